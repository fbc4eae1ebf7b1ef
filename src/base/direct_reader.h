// DirectReader: reads ranges of a large file that will not be needed again soon, past the kernel's
// page cache (O_DIRECT). Where a file system has no direct I/O, it reads through the cache and
// drops the pages afterwards. Its owner makes one for an open file; reading is safe from several
// threads, and each that reads keeps one buffer of kWindowBytes until it ends. A call waits for one
// read at a time: ReadingThreads has as many calls in progress as a drive needs.
//
// Direct reads begin and end on blocks of the file, but tensors begin at any byte. A window of
// whole blocks is therefore read into the buffer, and the wanted bytes are copied out. A long range
// is read straight into the caller's memory, apart from its first and last block, if the drive can
// write to its address: most NVMe drives need multiples of 4 bytes, other drives of 512.
#pragma once

#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "base/bytes.h"
#include "base/file.h"
#include "base/mutex.h"

namespace longshore {

class DirectReader {
 public:
  static constexpr Bytes kWindowBytes = kMiB;

  // Opens the same file again; the caller keeps `fd`, which must outlive the reader. Reads do not
  // change the time of last access where the system permits that (O_NOATIME).
  explicit DirectReader(const UniqueFd& fd);

  // Returns whether reads bypass the page cache.
  bool direct() const { return direct_.valid(); }

  // Fills `out` from `offset`. Throws IoError as read_exact_at does.
  void read(Bytes offset, std::span<std::byte> out) const;

 private:
  Bytes read_blocks(Bytes begin, std::span<std::byte> blocks) const;

  const UniqueFd* buffered_;
  UniqueFd direct_;                    // invalid: the file system has no direct I/O
  Bytes block_bytes_ = 4 * kKiB;       // offsets and sizes of reads are multiples of it
  Bytes memory_alignment_ = 4 * kKiB;  // addresses are; it divides block_bytes_
};

// ReadingThreads: threads for work that mostly waits for a drive. A drive reaches its speed only
// with many reads in flight, more than there are cores: while some threads copy or check what they
// have read, the others keep the drive busy. To keep the drive busy between two long ranges too, a
// caller may begin a range while the last parts of the previous one are still being read. The owner
// of the files' tier owns it; any thread may call it.

class ReadingThreads {
 public:
  // The number of reads in flight.
  static constexpr int kThreads = 16;

  // The parts of one call of begin().
  class Reads {
    friend class ReadingThreads;
    std::function<void(int64_t)> work;
    int64_t count = 0, begun = 0, running = 0;
    std::exception_ptr failure;  // the first of all parts
  };

  ReadingThreads();
  // Waits for the calls of `work` that have begun.
  ~ReadingThreads();
  ReadingThreads(const ReadingThreads&) = delete;
  ReadingThreads& operator=(const ReadingThreads&) = delete;

  // Calls work(i) once for every i in [0, count), in order, on all threads. Returns when the last
  // call has begun; after a failure no further one begins. Copies `work`.
  std::shared_ptr<Reads> begin(int64_t count, std::function<void(int64_t)> work);
  // Returns when all calls have ended, and rethrows the first exception.
  void finish(const Reads& reads);

 private:
  void serve();

  Mutex mutex_;  // also protects the fields of Reads
  Condition to_threads_;
  Condition to_callers_;
  std::deque<std::shared_ptr<Reads>> waiting_ LONGSHORE_GUARDED_BY(mutex_);  // have parts to begin
  bool stop_ LONGSHORE_GUARDED_BY(mutex_) = false;
  std::vector<std::jthread> threads_;
};

}  // namespace longshore
