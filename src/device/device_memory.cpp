#include "device/device_memory.h"

#include <algorithm>
#include <vector>

#include "base/errors.h"
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

// Checks the sizes before any memory is mapped.
Bytes checked_owned(Bytes cap, Bytes owned) {
  LONGSHORE_CHECK(owned >= 0 && owned <= cap) << owned << " of " << cap;
  LONGSHORE_CHECK(owned % kDeviceBufferAlignment == 0) << owned;
  return owned;
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

DeviceMemory::DeviceMemory(Bytes cap, Bytes owned)
    : DeviceMemory(cap, make_host_arena(checked_owned(cap, owned))) {}

DeviceMemory::DeviceMemory(Bytes cap, std::unique_ptr<DeviceArena> arena)
    : cap_(cap),
      arena_(std::move(arena)),
      workspace_(std::make_shared<WorkspaceMeter>(cap, checked_owned(cap, owned()))) {}

DeviceMemory::~DeviceMemory() = default;

DeviceBuffer DeviceMemory::carve(const std::string& name, Bytes bytes) {
  LONGSHORE_CHECK(bytes >= 0) << name;
  const Bytes rounded = align_up(bytes, kDeviceBufferAlignment);
  LONGSHORE_CHECK(rounded <= owned() - carved_)
      << name << " of " << bytes << " bytes goes beyond the plan's " << owned();
  std::vector<BytesHeld> held = {{name, rounded}};
  for (const DeviceBuffer& buffer : buffers_) {
    LONGSHORE_CHECK(buffer.name != name) << "carved twice: " << name;
    held.push_back({buffer.name, static_cast<Bytes>(buffer.bytes.size())});
  }
  buffers_.push_back(
      {name, arena_->bytes().subspan(static_cast<size_t>(carved_), static_cast<size_t>(rounded))});
  carved_ += rounded;
  workspace_->set_owned(std::move(held));
  return buffers_.back();
}

void DeviceMemory::check_carved() const {
  LONGSHORE_CHECK(carved_ == owned()) << carved_ << " of " << owned() << " bytes have a buffer";
}

DeviceMemory::Usage DeviceMemory::usage() const {
  return {owned(), workspace_->use()};
}

void DeviceMemory::reset_peak() {
  workspace_->reset_peak();
}

}  // namespace longshore
