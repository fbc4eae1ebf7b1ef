// CachingAllocator: models where LibTorch's GPU allocator with expandable segments puts a tensor,
// and the bytes of the GPU that it holds. Bytes are rounded up to 512; requests of up to 1 MiB come
// from a segment that grows by 2 MiB, larger ones from one that grows by 20 MiB; freed memory stays
// until a request finds no room or the cache is emptied. One for the stand-in GPU, with the
// tensors' bytes in host memory. Any thread.
#pragma once

#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "device/device_memory.h"

namespace longshore::stand_in {

class CachingAllocator {
 public:
  // Block: a tensor's offset in one of the two segments.
  struct Block {
    int segment = 0;
    Bytes begin = 0, bytes = 0;  // an empty block has 0 bytes
  };

  // Returns a block, or nothing if limit or GPU have no room even after the cache was emptied.
  std::optional<Block> take(Bytes bytes);
  void give_back(const Block& block);
  void empty_cache();

  WorkspaceUse use() const;
  void reset_peak();
  // Sets the most bytes that it may hold; the GPU's free memory is a limit too.
  void set_limit(Bytes limit);
  // Adds bytes of the GPU that arenas and other processes hold.
  void add_taken(Bytes bytes);
  // Sets the bytes of the GPU's memory.
  void set_total(Bytes total);
  Bytes free_bytes() const;

 private:
  struct Segment {
    Bytes page;
    std::map<Bytes, Bytes> blocks;  // bytes by offset
    std::vector<bool> mapped;       // by page
  };

  std::optional<Block> place(int segment, Bytes bytes);
  bool map_pages(Segment& segment, Bytes begin, Bytes end, Bytes request);
  void empty_locked();
  static Bytes fit_in_mapped(const Segment& segment, Bytes bytes);
  static Bytes first_gap(const Segment& segment, Bytes bytes);

  mutable std::mutex mutex_;
  Segment segments_[2] = {{2 * kMiB, {}, {}}, {20 * kMiB, {}, {}}};
  WorkspaceUse use_;
  Bytes limit_ = Bytes{1} << 60;
  Bytes total_ = 0;
  Bytes taken_ = 0;
};

CachingAllocator& caching_allocator();

// HostMemory: while it lives, this thread's allocations are not the GPU's: a kernel's stand-in
// needs memory that the kernel does not.
class HostMemory {
 public:
  HostMemory();
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;
  ~HostMemory();
};

}  // namespace longshore::stand_in
