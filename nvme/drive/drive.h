// Drive: transfers of any length on one file, with retries of partial and refused operations. The
// owner of a transfer keeps it and its memory until `wait` returns or throws. InlineDrive works
// inside `wait` (deterministic, for tests) and belongs to one thread. ThreadDrive has a thread that
// issues and reaps; any thread may start transfers and wait for its own.
#pragma once

#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/errors.h"
#include "base/mutex.h"
#include "nvme/drive/block_file.h"

namespace longshore {

// DriveQueue: cuts transfers into chunks, keeps as many in flight as the file's depth, and handles
// every result of the file. One thread. The results of a chunk are handled as follows:
//
//   all bytes moved        done
//   some bytes moved       continue from the last whole block
//   nothing moved          failure: the file is shorter than it should be
//   EINTR, EAGAIN, ENOMEM, EBUSY, ECANCELED   retry after a growing pause, kMaxRetries times
//   EIO on a read          retry once, then in ever smaller pieces, to name the bad block
//   anything else          failure
//
// A failed chunk fails its transfer; the transfer ends when none of its chunks is in flight.

struct TransferFailure {
  bool failed = false;
  int error_number = 0;
  Bytes offset = 0;
  Bytes bytes = 0;
  std::string reason;  // replaces errno's text
};

// A read or write of one contiguous range, or a flush. The caller of Drive::start owns it; the
// drive owns the fields below the line until the transfer is done.
struct Transfer {
  BlockOp::Kind kind = BlockOp::Kind::kRead;
  Bytes offset = 0;
  std::span<std::byte> memory;
  bool urgent = false;  // precedes waiting transfers that are not urgent, because a lane waits for
                        // it
  // ----
  bool done = true;
  bool waiting = false;  // has unsent chunks
  Bytes issued_bytes = 0;
  int chunks_in_flight = 0;
  TransferFailure failure;
};

class DriveQueue {
 public:
  // The retries of one refused chunk before it fails; their pauses total about 20 ms.
  static constexpr int kMaxRetries = 16;

  // `file` must outlive the queue. `chunk_bytes` is a multiple of kBlockBytes.
  DriveQueue(BlockFile* file, Bytes chunk_bytes);

  void start(Transfer& transfer);
  bool busy() const { return !waiting_.empty() || in_flight_ > 0; }
  // Sends chunks up to the depth, waits for at least one completion if any is in flight, and
  // appends the finished transfers.
  void step(std::vector<Transfer*>& finished);

 private:
  struct Chunk {
    Transfer* transfer = nullptr;
    Bytes offset = 0;  // in the file
    std::span<std::byte> memory;
    Bytes moved = 0;
    Bytes piece = 0;  // bytes of one operation; less than the chunk while searching a bad block
    int refusals = 0;
    int read_errors = 0;
  };

  void fill(std::vector<Transfer*>& finished);
  bool next_chunk(Transfer& transfer, Chunk& chunk) const;
  void send(size_t slot);
  void complete(const BlockCompletion& completion, std::vector<Transfer*>& finished);
  // Both return true if the chunk must be sent again.
  bool after_error(Chunk& chunk, int error_number);
  bool after_read_error(Chunk& chunk);
  void fail(const Chunk& chunk, int error_number, const std::string& reason);

  BlockFile* file_;
  Bytes chunk_bytes_;
  std::deque<Transfer*> waiting_;  // have unsent chunks
  std::vector<Chunk> slots_;
  std::vector<size_t> free_slots_;
  int in_flight_ = 0;
  std::vector<BlockCompletion> completions_;
};

class StripeMap;

// A transfer failed permanently; it carries the drive's error and the offset.
class DriveError : public IoError {
 public:
  DriveError(const std::string& text, int error_number, Bytes offset)
      : IoError(text), error_number_(error_number), offset_(offset) {}
  int error_number() const { return error_number_; }
  Bytes offset() const { return offset_; }  // of the first byte that was not moved

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
  // Returns whether the path still names the file that the drive works on.
  virtual bool is_named() const { return true; }
  // Begins the transfer.
  virtual void start(Transfer& transfer) = 0;
  // Returns once the transfer is done. Throws DriveError if it failed.
  virtual void wait(Transfer& transfer) = 0;

  void read(Bytes offset, std::span<std::byte> memory);
  void write(Bytes offset, std::span<const std::byte> memory);
  void flush();

 private:
  void run(BlockOp::Kind kind, Bytes offset, std::span<std::byte> memory);
};

// Opens the drives' files for the map's layout; the window may be registered for I/O.
using MakeDrives = std::function<std::vector<std::unique_ptr<Drive>>(const StripeMap& map,
                                                                     std::span<std::byte> window)>;

std::vector<Drive*> borrow(const std::vector<std::unique_ptr<Drive>>& drives);

// Waits for every transfers[i] on drives[i], then throws the first failure.
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
  // `make_file` runs on the new thread, because a ring belongs to the thread that made it. The
  // constructor rethrows its exceptions.
  ThreadDrive(MakeFile make_file, Bytes chunk_bytes);
  // Finishes the started transfers.
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
  std::exception_ptr broken_ LONGSHORE_GUARDED_BY(mutex_);  // the exception that ended the thread
  std::thread thread_;
};

// OpenDrive: a drive on a locked file, over io_uring if available and over threads otherwise. The
// store owns it; a separate thread issues the operations.

enum class IoEngine : uint8_t {
  kAuto,  // the ring, or threads if it is blocked, with one log line
  kRing,  // the ring, or an error
  kThreads,
};

struct DriveOptions {
  DirectFileOptions file;
  Bytes chunk_bytes = 2 * kMiB;
  int depth = 32;  // chunks in flight
  IoEngine engine = IoEngine::kAuto;
  // The I/O window, which the ring registers.
  std::vector<std::span<std::byte>> memory = {};
};

// Owns the file with its lock and the thread that serves it. The memory must outlive it.
class OpenDrive final : public Drive {
 public:
  explicit OpenDrive(const DriveOptions& options);

  const std::string& path() const override { return file_.path(); }
  Bytes size_bytes() const override { return file_.size_bytes(); }
  std::string_view kind() const override { return drive_->kind(); }
  bool is_named() const override { return longshore::is_named(file_.fd()); }
  void start(Transfer& transfer) override { drive_->start(transfer); }
  void wait(Transfer& transfer) override { drive_->wait(transfer); }
  const DirectFile& file() const { return file_; }

 private:
  DirectFile file_;  // must outlive the thread
  std::unique_ptr<ThreadDrive> drive_;
};

// Makes a block file for the calling thread.
std::unique_ptr<BlockFile> make_block_file(const DirectFile* file, int depth, IoEngine engine,
                                           const std::vector<std::span<std::byte>>& memory);

}  // namespace longshore
