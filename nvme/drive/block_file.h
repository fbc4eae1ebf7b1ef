// BlockFile: asynchronous reads, writes and flushes of one file or simulated disk. Three kinds: a
// ring (io_uring), a pool of threads (pread, pwrite), and SimDisk. One thread, the one that made
// it, calls it. It reports what the kernel reported and never retries: DriveQueue does.
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

// Offsets, lengths and addresses of every operation are multiples of this: what O_DIRECT needs on
// every drive we know.
inline constexpr Bytes kBlockBytes = 4096;

struct BlockOp {
  enum class Kind : uint8_t { kRead, kWrite, kFlush };
  Kind kind = Kind::kRead;
  uint64_t tag = 0;  // comes back with the completion
  Bytes offset = 0;
  std::span<std::byte> memory;  // belongs to the file until the completion is read
};
std::string_view name_of(BlockOp::Kind kind);

struct BlockCompletion {
  uint64_t tag = 0;
  int64_t result = 0;  // bytes moved, or -errno
};

class BlockFile {
 public:
  // Waits for what is in flight: memory is never touched after the destructor.
  virtual ~BlockFile() = default;
  virtual const std::string& path() const = 0;
  // "io_uring", "threads", "simulated".
  virtual std::string_view kind() const = 0;
  virtual Bytes size_bytes() const = 0;
  // Operations in flight at most; submitting more is our mistake.
  virtual int depth() const = 0;
  // Queues an operation; it may start only with the next reap. A flush makes durable what completed
  // before it was submitted.
  virtual void submit(const BlockOp& op) = 0;
  // Waits until at least one operation has completed and appends all that have. Nothing in flight
  // is our mistake.
  virtual void reap(std::vector<BlockCompletion>& completions) = 0;
  // The wait before a retry.
  virtual void pause(std::chrono::microseconds time) { std::this_thread::sleep_for(time); }
};

}  // namespace longshore
