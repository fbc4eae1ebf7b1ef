// BlockFile: asynchronous reads, writes and flushes of one file or simulated disk: a ring
// (io_uring), a pool of threads (pread, pwrite), or SimDisk. Only the thread that made it calls it.
// It reports the kernel's results and never retries; DriveQueue does. BlockBuffer is aligned memory
// for such I/O, and DirectFile the file on a drive that it works on.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/bytes.h"
#include "base/file.h"

namespace longshore {

// Offsets, lengths and addresses of every operation are multiples of this, which satisfies O_DIRECT
// on every known drive.
inline constexpr Bytes kBlockBytes = 4096;

struct BlockOp {
  enum class Kind : uint8_t { kRead, kWrite, kFlush };
  Kind kind = Kind::kRead;
  uint64_t tag = 0;  // returned with the completion
  Bytes offset = 0;
  std::span<std::byte> memory;  // owned by the file until the completion is read
};
std::string_view name_of(BlockOp::Kind kind);

struct BlockCompletion {
  uint64_t tag = 0;
  int64_t result = 0;  // bytes moved, or -errno
};

class BlockFile {
 public:
  // Waits for all operations in flight; memory is never touched after the destructor.
  virtual ~BlockFile() = default;
  virtual const std::string& path() const = 0;
  // Returns "io_uring", "threads" or "simulated".
  virtual std::string_view kind() const = 0;
  virtual Bytes size_bytes() const = 0;
  // Returns the maximum of operations in flight; submitting more is a bug.
  virtual int depth() const = 0;
  // Queues an operation; it may start only with the next reap. A flush makes durable the operations
  // that completed before it was submitted.
  virtual void submit(const BlockOp& op) = 0;
  // Waits until at least one operation has completed and appends all completed ones. Calling it
  // with nothing in flight is a bug.
  virtual void reap(std::vector<BlockCompletion>& completions) = 0;
  // Waits before a retry.
  virtual void pause(std::chrono::microseconds time) { std::this_thread::sleep_for(time); }
};

// BlockBuffer: a few blocks of zeroed, block-aligned memory for manifests, tables and probes. The
// code that makes it owns it; move-only. Bulk data uses the I/O window instead.

class BlockBuffer {
 public:
  BlockBuffer() = default;
  // The size is rounded up to whole blocks.
  explicit BlockBuffer(Bytes bytes)
      : size_(static_cast<size_t>(align_up(bytes, kBlockBytes))),
        memory_(
            static_cast<std::byte*>(std::aligned_alloc(static_cast<size_t>(kBlockBytes), size_))) {
    if (memory_ == nullptr && size_ > 0) throw std::bad_alloc();
    if (size_ > 0) std::memset(memory_.get(), 0, size_);
  }

  std::span<std::byte> bytes() const { return {memory_.get(), size_}; }

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  size_t size_ = 0;
  std::unique_ptr<std::byte, Free> memory_;
};

// DirectFile: one preallocated file per drive, opened for direct I/O and locked for this process.
// The owner opens block files on it, which it must outlive. The lock belongs to the open file, so
// it ends only after the last I/O of a killed process.

struct DirectFileOptions {
  std::string path;
  // With 0 the file must exist and keeps its size. Otherwise it is created or grown to this size; a
  // larger file keeps its size.
  Bytes size_bytes = 0;
  // The time to wait for another process's lock. A lock that this process has released, but the
  // kernel not yet, is waited for longer.
  std::chrono::milliseconds lock_wait = std::chrono::seconds(5);
};

class DirectFile {
 public:
  // Throws ConfigError if another process holds the file; DoesNotFitError with the missing bytes if
  // the file system is too full (space allocated meanwhile is released); IoError.
  explicit DirectFile(const DirectFileOptions& options);

  const UniqueFd& fd() const { return fd_; }
  const std::string& path() const { return fd_.path(); }
  Bytes size_bytes() const { return size_bytes_; }
  // Returns false if the file system lacks O_DIRECT (tmpfs); I/O then uses the page cache.
  bool direct() const { return direct_; }

 private:
  void open(const std::string& path, bool may_create);
  void lock(std::chrono::milliseconds wait);
  void check_alignment() const;
  void preallocate(Bytes size_bytes);
  void refuse_if_too_large(Bytes size_bytes) const;

  UniqueFd fd_;
  Bytes size_bytes_ = 0;
  bool direct_ = true;
  bool created_ = false;
};

}  // namespace longshore
