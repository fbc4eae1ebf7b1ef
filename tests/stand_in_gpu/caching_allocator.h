// CachingAllocator: where LibTorch's allocator for GPUs, with growing segments, would put a tensor,
// and what it would hold of the GPU for it. Bytes are rounded up to 512; requests of up to 1 MiB
// come from a segment that grows by 2 MiB, larger ones from one that grows by 20 MiB; what is freed
// stays, until a request finds no room or the cache is emptied. One for the stand-in GPU, with the
// tensors' bytes in host memory. Any thread.
#pragma once

#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "device/workspace_meter.h"

namespace longshore::stand_in {

class CachingAllocator {
 public:
  // A tensor's place in one of the two segments.
  struct Block {
    int segment = 0;
    Bytes begin = 0, bytes = 0;  // of 0 bytes: none
  };

  // Nothing where the limit or the GPU has no room, even after the cache was emptied.
  std::optional<Block> take(Bytes bytes);
  void give_back(const Block& block);
  void empty_cache();

  WorkspaceUse use() const;
  void reset_peak();
  // What it may hold; what others leave of the GPU counts as well.
  void set_limit(Bytes limit);
  // Bytes of the GPU that arenas and other processes have.
  void add_taken(Bytes bytes);
  // The GPU's memory, and what is free of it.
  void set_total(Bytes total);
  Bytes free_bytes() const;

 private:
  struct Segment {
    Bytes page;
    std::map<Bytes, Bytes> blocks;  // bytes by where they begin
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

// While one lives, what this thread asks for is no memory of the GPU: what a stand-in for a kernel
// computes with, and the kernel does not have.
class HostMemory {
 public:
  HostMemory();
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;
  ~HostMemory();
};

}  // namespace longshore::stand_in
