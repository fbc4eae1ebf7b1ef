// DeviceMemory: the device's hard byte cap, and who holds what of it. One per device, owned by the
// run, and outliving every buffer carved from it. Two parts:
//   owned       one arena of exactly the plan's size, carved once into named buffers
//   workspace   LibTorch's temporaries, counted by a WorkspaceMeter against cap - owned
// The arena is host memory, or a GPU's; nothing here reads or writes it.
// Carving is for one thread; the meter is for any.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "device/device_arena.h"
#include "device/workspace_meter.h"

namespace longshore {

// Carved buffers start at, and are rounded up to, multiples of this.
inline constexpr Bytes kDeviceBufferAlignment = 256;

// A named part of a DeviceMemory's arena; valid as long as the memory. Not an owner.
struct DeviceBuffer {
  std::string name;
  std::span<std::byte> bytes;
};

class DeviceMemory {
 public:
  // Bytes that buffers and workspace have now, and the most they ever had together.
  struct Usage {
    Bytes owned = 0;
    WorkspaceUse workspace = {};
    Bytes peak() const { return owned + workspace.held_peak; }
  };

  // 0 <= owned <= cap; `owned` is a multiple of kDeviceBufferAlignment.
  // Over host memory: the CPU device.
  DeviceMemory(Bytes cap, Bytes owned);
  // Over an arena of exactly the owned bytes.
  DeviceMemory(Bytes cap, std::unique_ptr<DeviceArena> arena);
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  ~DeviceMemory();

  Bytes cap() const { return cap_; }
  Bytes owned() const { return static_cast<Bytes>(arena_->bytes().size()); }
  Bytes workspace_cap() const { return cap_ - owned(); }

  // The next part of the arena, zero-filled, at least `bytes` long (rounded up to the alignment).
  // Names are unique. Carving beyond `owned` breaks the plan: CheckFailure.
  DeviceBuffer carve(const std::string& name, Bytes bytes);
  // Every owned byte has a buffer: CheckFailure otherwise.
  void check_carved() const;
  const std::vector<DeviceBuffer>& buffers() const { return buffers_; }

  Usage usage() const;
  // From here on the peak counts anew.
  void reset_peak();

  // What counts the workspace; shared, because temporaries may outlive this object.
  const std::shared_ptr<WorkspaceMeter>& workspace() const { return workspace_; }

 private:
  Bytes cap_;
  std::unique_ptr<DeviceArena> arena_;
  Bytes carved_ = 0;
  std::vector<DeviceBuffer> buffers_;
  std::shared_ptr<WorkspaceMeter> workspace_;
};

}  // namespace longshore
