// DirectReader: reads ranges of a large file that will not be needed again soon, past the kernel's
// page cache (O_DIRECT). Where a file system has no direct I/O, it reads through the cache and
// drops the pages afterwards. Its owner makes one for an open file; reading is safe from several
// threads, and each that reads keeps one buffer of kWindowBytes until it ends. A call waits for one
// read at a time: ReadingThreads has as many calls in progress as a drive needs.
//
// Direct reads begin and end on blocks of the file, while tensors lie anywhere. A window of whole
// blocks is therefore read into the buffer, and the wanted bytes are copied out. A long range goes
// straight to its place, apart from its first and last block, where the drive can write to such
// addresses: most NVMe drives need multiples of 4 bytes, other drives of 512.
#pragma once

#include <span>

#include "base/bytes.h"
#include "base/file.h"

namespace longshore {

class DirectReader {
 public:
  static constexpr Bytes kWindowBytes = kMiB;

  // Opens the same file once more; `fd` stays the caller's and must outlive the reader. The time of
  // the last access is not changed where the system permits that.
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

}  // namespace longshore
