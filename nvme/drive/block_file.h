// BlockFile: asynchronous reads, writes and flushes of one file or simulated disk: a ring
// (io_uring), a pool of threads (pread, pwrite), or SimDisk. Only the thread that made it calls it.
// It reports the kernel's results and never retries; DriveQueue does.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/bytes.h"

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

}  // namespace longshore
