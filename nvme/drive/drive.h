// Drive: whole transfers of any length on one file, whatever the file answers in between. The owner
// of a transfer keeps it and its memory until `wait` returns or throws. InlineDrive does the work
// inside `wait` (tests, deterministic) and belongs to one thread; ThreadDrive has a thread of its
// own that issues and reaps, and any thread starts transfers and waits for its own.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/errors.h"
#include "base/mutex.h"
#include "nvme/drive/block_file.h"
#include "nvme/drive/drive_queue.h"

namespace longshore {

class StripeMap;

// A transfer failed for good: what the drive said, and where.
class DriveError : public IoError {
 public:
  DriveError(const std::string& text, int error_number, Bytes offset)
      : IoError(text), error_number_(error_number), offset_(offset) {}
  int error_number() const { return error_number_; }
  Bytes offset() const { return offset_; }  // of the first byte that could not be moved

 private:
  int error_number_;
  Bytes offset_;
};

class Drive {
 public:
  virtual ~Drive() = default;
  virtual const std::string& path() const = 0;
  virtual Bytes size_bytes() const = 0;
  virtual std::string_view kind() const = 0;
  // Begins the transfer.
  virtual void start(Transfer& transfer) = 0;
  // Returns once the transfer is done; DriveError where it failed.
  virtual void wait(Transfer& transfer) = 0;

  void read(Bytes offset, std::span<std::byte> memory);
  void write(Bytes offset, std::span<const std::byte> memory);
  void flush();

 private:
  void run(BlockOp::Kind kind, Bytes offset, std::span<std::byte> memory);
};

// Opens the drives for files laid out as the map says; the window may be registered.
using MakeDrives = std::function<std::vector<std::unique_ptr<Drive>>(const StripeMap& map,
                                                                     std::span<std::byte> window)>;

std::vector<Drive*> borrow(const std::vector<std::unique_ptr<Drive>>& drives);

// Waits for transfers[i] on drives[i], all of them, then throws the first failure.
void wait_all(const std::vector<Drive*>& drives, std::vector<Transfer>& transfers);

class InlineDrive final : public Drive {
 public:
  InlineDrive(std::unique_ptr<BlockFile> file, Bytes chunk_bytes);
  const std::string& path() const override { return file_->path(); }
  Bytes size_bytes() const override { return file_->size_bytes(); }
  std::string_view kind() const override { return file_->kind(); }
  void start(Transfer& transfer) override;
  void wait(Transfer& transfer) override;

 private:
  std::unique_ptr<BlockFile> file_;
  DriveQueue queue_;
  std::vector<Transfer*> finished_;
};

class ThreadDrive final : public Drive {
 public:
  using MakeFile = std::function<std::unique_ptr<BlockFile>()>;
  // `make_file` runs on the new thread, because a ring belongs to the thread that made it; what it
  // throws is thrown here.
  ThreadDrive(MakeFile make_file, Bytes chunk_bytes);
  // Finishes the transfers that were started.
  ~ThreadDrive() override;
  ThreadDrive(const ThreadDrive&) = delete;
  ThreadDrive& operator=(const ThreadDrive&) = delete;

  const std::string& path() const override { return path_; }
  Bytes size_bytes() const override { return size_bytes_; }
  std::string_view kind() const override { return kind_; }
  void start(Transfer& transfer) override;
  void wait(Transfer& transfer) override;

 private:
  void run(const MakeFile& make_file, Bytes chunk_bytes);
  void serve(DriveQueue& queue);
  bool take_incoming(DriveQueue& queue);

  std::string path_;
  std::string_view kind_;
  Bytes size_bytes_ = 0;
  Mutex mutex_;
  Condition to_thread_;
  Condition to_owner_;
  std::vector<Transfer*> incoming_ LONGSHORE_GUARDED_BY(mutex_);
  bool ready_ LONGSHORE_GUARDED_BY(mutex_) = false;
  bool stop_ LONGSHORE_GUARDED_BY(mutex_) = false;
  std::exception_ptr broken_ LONGSHORE_GUARDED_BY(mutex_);  // the thread ended with this
  std::thread thread_;
};

}  // namespace longshore
