// OpenDrive: a drive on a locked file, over io_uring if available and over threads otherwise. The
// store owns it; a separate thread issues the operations.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "nvme/drive/block_file.h"
#include "nvme/drive/drive.h"

namespace longshore {

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
