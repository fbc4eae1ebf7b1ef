// DeviceKind: the kind of device that computes. Plain value.
#pragma once

#include <cstdint>
#include <string_view>

namespace longshore {

enum class DeviceKind : uint8_t { kCpu, kCuda };

constexpr std::string_view name_of(DeviceKind kind) {
  return kind == DeviceKind::kCpu ? "cpu" : "cuda";
}

}  // namespace longshore
