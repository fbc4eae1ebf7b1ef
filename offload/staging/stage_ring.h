// StageRing: the device slots that hold gathered units. Owned by the engine; the lanes that copy
// and gather fill slots while the compute lane leases others. A slot has the tag (unit, version),
// which is checked on every fill and lease. A leased slot is never refilled, and an incomplete slot
// is never leased. The schedule decides which unit uses which slot; the ring detects violations.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/ids.h"
#include "base/mutex.h"
#include "device/device_memory.h"
#include "offload/schedule/pass_plan.h"

namespace longshore {

class StageRing;

// UnitLease: the right to read one slot of a ring, which outlives it. Move-only; releases on
// destruction.
class UnitLease {
 public:
  UnitLease(UnitLease&& other) noexcept;
  UnitLease& operator=(UnitLease&&) = delete;
  ~UnitLease();
  UnitId unit() const { return unit_; }
  // Returns the unit's flat parameter in the compute dtype, on the device.
  std::span<std::byte> bytes() const { return bytes_; }

 private:
  friend class StageRing;
  UnitLease(StageRing* ring, DeviceSlot slot, UnitId unit, std::span<std::byte> bytes)
      : ring_(ring), slot_(slot), unit_(unit), bytes_(bytes) {}
  StageRing* ring_;  // null after a move
  DeviceSlot slot_;
  UnitId unit_;
  std::span<std::byte> bytes_;
};

class StageRing {
 public:
  // `slots` are device buffers, one for each slot.
  explicit StageRing(std::vector<std::span<std::byte>> slots);

  // Tags the slot (unit, version) and returns its first `unit_bytes` bytes; the caller fills them
  // and calls end_fill(). Throws CheckFailure if the slot is leased, being filled, or too small.
  std::span<std::byte> begin_fill(const Placed& placed, StateVersion version, Bytes unit_bytes);
  // Returns the bytes of a slot being filled with (unit, version); else throws CheckFailure.
  std::span<std::byte> filling(const Placed& placed, StateVersion version);
  void end_fill(const Placed& placed, StateVersion version);
  // Leases a slot, perhaps several times. Throws CheckFailure unless it holds all of (unit,
  // version).
  UnitLease lease(const Placed& placed, StateVersion version);

 private:
  friend class UnitLease;
  enum class Content : uint8_t { kNothing, kFilling, kComplete };
  struct Slot {
    std::span<std::byte> memory;
    Content content = Content::kNothing;
    UnitId unit;
    StateVersion version;
    Bytes unit_bytes = 0;
    int leases = 0;
  };
  Slot& held(const Placed& placed, StateVersion version, Content content)
      LONGSHORE_REQUIRES(*mutex_);
  void release(DeviceSlot slot);

  std::unique_ptr<Mutex> mutex_ = std::make_unique<Mutex>();
  SlotVector<DeviceSlot, Slot> slots_ LONGSHORE_GUARDED_BY(*mutex_);
};

}  // namespace longshore
