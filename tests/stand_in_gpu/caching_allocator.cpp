#include "tests/stand_in_gpu/caching_allocator.h"

#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <mutex>
#include <new>
#include <unordered_set>

#include "base/errors.h"
#include "device/counting_allocator.h"
#include "tests/stand_in_gpu/stand_in.h"

namespace longshore::stand_in {
namespace {

constexpr Bytes kRounding = 512;
constexpr Bytes kMostSmall = kMiB;
// The least bytes and the rounding by which a request counts against the limit.
constexpr Bytes kLeastLarge = 10 * kMiB, kLargeRounding = 2 * kMiB;
constexpr Bytes kNowhere = -1;
// The priority is above the counting allocator's.
constexpr uint8_t kPriority = 20;
constexpr size_t kAlignment = 64;

Bytes counted_request(Bytes bytes) {
  if (bytes <= kMostSmall) return 2 * kMiB;
  return bytes < kLeastLarge ? 20 * kMiB : align_up(bytes, kLargeRounding);
}

thread_local int host_memory = 0;

// Header: lies in front of each tensor's bytes.
struct alignas(kAlignment) Header {
  CachingAllocator::Block block;
};

// OwnBlocks: the live blocks that TensorMemory made. It is never destroyed, because LibTorch frees
// static tensors after the program's own statics are gone.
struct OwnBlocks {
  std::mutex mutex;
  std::unordered_set<void*> blocks;
};
OwnBlocks& own_blocks() {
  static auto* value = new OwnBlocks;
  return *value;
}

void release(void* data) {
  if (data == nullptr) return;
  {
    const std::lock_guard lock(own_blocks().mutex);
    own_blocks().blocks.erase(data);
  }
  auto* const header = static_cast<Header*>(data) - 1;
  caching_allocator().give_back(header->block);
  std::free(header);
}

// Frees a block of either kind: operators of LibTorch that allocate without a tensor (oneDNN's
// scratch) use the allocator's one deleter.
void release_either(void* data) {
  bool own = false;
  {
    const std::lock_guard lock(own_blocks().mutex);
    own = own_blocks().blocks.contains(data);
  }
  own ? release(data) : counting_allocator().raw_deleter()(data);
}

// TensorMemory: LibTorch's CPU allocator; under a budget of the stand-in GPU tensors are its own.
class TensorMemory final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    if (!tensors_are_gpus()) return counting_allocator().allocate(bytes);
    if (bytes == 0) return {nullptr, nullptr, &release, c10::Device(c10::DeviceType::CPU)};
    CachingAllocator::Block block;
    if (host_memory == 0) {
      const auto taken = caching_allocator().take(static_cast<Bytes>(bytes));
      if (!taken) refuse_tensor(static_cast<Bytes>(bytes));
      block = *taken;
    }
    void* place = std::aligned_alloc(
        kAlignment, sizeof(Header) + static_cast<size_t>(
                                         align_up(static_cast<Bytes>(bytes), Bytes{kAlignment})));
    LONGSHORE_CHECK(place != nullptr) << bytes;
    void* const data = new (place) Header{block} + 1;
    const std::lock_guard lock(own_blocks().mutex);
    own_blocks().blocks.insert(data);
    return {data, data, &release, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release_either; }
  void copy_data(void* destination, const void* source, std::size_t count) const override {
    default_copy_data(destination, source, count);
  }
};

}  // namespace

std::optional<CachingAllocator::Block> CachingAllocator::take(Bytes bytes) {
  const std::lock_guard lock(mutex_);
  bytes = align_up(bytes, kRounding);
  const int segment = bytes <= kMostSmall ? 0 : 1;
  std::optional<Block> block = place(segment, bytes);
  if (!block) {
    empty_locked();
    use_.retries += 1;
    block = place(segment, bytes);
  }
  if (!block) return std::nullopt;
  segments_[segment].blocks[block->begin] = bytes;
  use_.tensors += bytes;
  use_.tensors_peak = std::max(use_.tensors_peak, use_.tensors);
  return block;
}

std::optional<CachingAllocator::Block> CachingAllocator::place(int index, Bytes bytes) {
  Segment& segment = segments_[index];
  Bytes begin = fit_in_mapped(segment, bytes);
  if (begin == kNowhere) {
    begin = first_gap(segment, bytes);
    if (!map_pages(segment, begin, begin + bytes, bytes)) return std::nullopt;
  }
  return Block{index, begin, bytes};
}

// Returns the first of the smallest free pieces of mapped memory that are large enough.
Bytes CachingAllocator::fit_in_mapped(const Segment& segment, Bytes bytes) {
  Bytes best = kNowhere, best_bytes = std::numeric_limits<Bytes>::max();
  const Bytes end = static_cast<Bytes>(segment.mapped.size()) * segment.page;
  const auto look_at = [&](Bytes from, Bytes to) {
    for (Bytes begin = from; to - begin >= bytes;) {
      const Bytes page = begin / segment.page;
      if (!segment.mapped[static_cast<size_t>(page)]) {
        begin = (page + 1) * segment.page;
        continue;
      }
      Bytes last = page + 1;
      while (last * segment.page < to && segment.mapped[static_cast<size_t>(last)]) ++last;
      const Bytes piece = std::min(to, last * segment.page) - begin;
      if (piece >= bytes && piece < best_bytes) best = begin, best_bytes = piece;
      begin += piece;
    }
  };
  Bytes free = 0;
  for (const auto& [begin, size] : segment.blocks) {
    look_at(free, begin);
    free = begin + size;
  }
  look_at(free, end);
  return best;
}

Bytes CachingAllocator::first_gap(const Segment& segment, Bytes bytes) {
  Bytes free = 0;
  for (const auto& [begin, size] : segment.blocks) {
    if (begin - free >= bytes) return free;
    free = begin + size;
  }
  return free;
}

bool CachingAllocator::map_pages(Segment& segment, Bytes begin, Bytes end, Bytes request) {
  const auto last = static_cast<size_t>((end + segment.page - 1) / segment.page);
  const size_t before = segment.mapped.size();
  const auto is_mapped = [&](size_t page) { return page < before && segment.mapped[page]; };
  Bytes more = 0;
  for (auto page = static_cast<size_t>(begin / segment.page); page < last; ++page) {
    if (!is_mapped(page)) more += segment.page;
  }
  if (use_.held + counted_request(request) > limit_) return false;
  if (taken_ + use_.held + more > total_) return false;
  segment.mapped.resize(std::max(before, last), false);
  for (auto page = static_cast<size_t>(begin / segment.page); page < last; ++page) {
    segment.mapped[page] = true;
  }
  use_.held += more;
  use_.held_peak = std::max(use_.held_peak, use_.held);
  return true;
}

void CachingAllocator::give_back(const Block& block) {
  if (block.bytes == 0) return;
  const std::lock_guard lock(mutex_);
  LONGSHORE_CHECK(segments_[block.segment].blocks.erase(block.begin) == 1) << block.begin;
  use_.tensors -= block.bytes;
}

void CachingAllocator::empty_cache() {
  const std::lock_guard lock(mutex_);
  empty_locked();
}

void CachingAllocator::empty_locked() {
  for (Segment& segment : segments_) {
    std::vector<bool> needed(segment.mapped.size(), false);
    for (const auto& [begin, size] : segment.blocks) {
      for (Bytes page = begin / segment.page; page * segment.page < begin + size; ++page) {
        needed[static_cast<size_t>(page)] = true;
      }
    }
    for (size_t page = 0; page < needed.size(); ++page) {
      if (segment.mapped[page] && !needed[page]) use_.held -= segment.page;
    }
    segment.mapped = std::move(needed);
  }
}

WorkspaceUse CachingAllocator::use() const {
  const std::lock_guard lock(mutex_);
  return use_;
}

void CachingAllocator::reset_peak() {
  const std::lock_guard lock(mutex_);
  use_.held_peak = use_.held;
  use_.tensors_peak = use_.tensors;
}

void CachingAllocator::set_limit(Bytes limit) {
  const std::lock_guard lock(mutex_);
  limit_ = limit;
}

void CachingAllocator::add_taken(Bytes bytes) {
  const std::lock_guard lock(mutex_);
  taken_ += bytes;
}

void CachingAllocator::set_total(Bytes total) {
  const std::lock_guard lock(mutex_);
  total_ = total;
}

Bytes CachingAllocator::free_bytes() const {
  const std::lock_guard lock(mutex_);
  return std::max<Bytes>(0, total_ - taken_ - use_.held);
}

CachingAllocator& caching_allocator() {
  static auto* const it = [] {
    static TensorMemory memory;
    c10::SetCPUAllocator(&memory, kPriority);
    return new CachingAllocator;
  }();
  return *it;
}

HostMemory::HostMemory() {
  host_memory += 1;
}
HostMemory::~HostMemory() {
  host_memory -= 1;
}

}  // namespace longshore::stand_in
