#include "device/device_arena.h"

#include <algorithm>
#include <vector>

#include "base/mutex.h"
#include "device/host_mapping.h"

namespace longshore {
namespace {

class HostArena final : public DeviceArena {
 public:
  explicit HostArena(Bytes bytes) : mapping_(bytes, "device memory") {}
  std::span<std::byte> bytes() const override { return mapping_.bytes(); }

 private:
  HostMapping mapping_;
};

struct GpuArenas {
  Mutex mutex;
  std::vector<std::span<const std::byte>> ranges LONGSHORE_GUARDED_BY(mutex);
};
GpuArenas& gpu_arenas() {
  static auto* value = new GpuArenas;
  return *value;
}

}  // namespace

GpuBytes::GpuBytes(std::span<const std::byte> bytes) : begin_(bytes.data()) {
  const MutexLock lock(gpu_arenas().mutex);
  gpu_arenas().ranges.push_back(bytes);
}

GpuBytes::~GpuBytes() {
  if (begin_ == nullptr) return;
  const MutexLock lock(gpu_arenas().mutex);
  std::erase_if(gpu_arenas().ranges, [this](auto range) { return range.data() == begin_; });
}

bool in_gpu_arena(std::span<const std::byte> bytes) {
  if (bytes.empty()) return true;
  const MutexLock lock(gpu_arenas().mutex);
  return std::ranges::any_of(gpu_arenas().ranges, [bytes](auto range) {
    return bytes.data() >= range.data() && bytes.data() - range.data() <= std::ssize(range) &&
           std::ssize(bytes) <= std::ssize(range) - (bytes.data() - range.data());
  });
}

std::unique_ptr<DeviceArena> make_host_arena(Bytes bytes) {
  return std::make_unique<HostArena>(bytes);
}

}  // namespace longshore
