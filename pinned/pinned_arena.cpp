#include "pinned/pinned_arena.h"

#include <algorithm>

#include "base/progress.h"

namespace longshore {
namespace {

// One task touches this many bytes, enough to outweigh the cost of a task.
constexpr size_t kTouchBlockBytes = 64 * static_cast<size_t>(kMiB);
constexpr size_t kSmallPageBytes = 4096;

void touch(std::span<std::byte> memory, WorkerPool& pool) {
  Progress progress("preparing host memory", static_cast<Bytes>(memory.size()));
  const size_t blocks = (memory.size() + kTouchBlockBytes - 1) / kTouchBlockBytes;
  pool.for_each_block(static_cast<int64_t>(blocks), [&](int64_t block) {
    const size_t begin = static_cast<size_t>(block) * kTouchBlockBytes;
    const size_t end = std::min(begin + kTouchBlockBytes, memory.size());
    for (size_t i = begin; i < end; i += kSmallPageBytes) {
      // The volatile store forces the page in; the value is already zero.
      *static_cast<volatile std::byte*>(&memory[i]) = std::byte{0};
    }
    progress.add(static_cast<Bytes>(end - begin));
  });
}

}  // namespace

PinnedArena::PinnedArena(Bytes bytes, bool register_with_gpus, WorkerPool& pool, bool shared)
    : mapping_(shared ? HostMapping::shared(bytes, "host tier") : HostMapping(bytes, "host tier")) {
  touch(mapping_.bytes(), pool);
  huge_page_bytes_ = longshore::huge_page_bytes(mapping_.bytes());
  if (register_with_gpus) registration_ = HostRegistration(mapping_.bytes());
}

}  // namespace longshore
