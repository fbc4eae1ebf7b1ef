#include "device/device_arena.h"

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

}  // namespace

std::unique_ptr<DeviceArena> make_host_arena(Bytes bytes) {
  return std::make_unique<HostArena>(bytes);
}

}  // namespace longshore
