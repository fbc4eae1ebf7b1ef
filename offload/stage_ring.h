// StageRing: the device slots that hold gathered units. Owned by the engine, used by its thread.
// A slot carries the tag (unit, version) of what it holds; the tag is checked when the slot is
// filled and when it is leased. A leased slot is never refilled.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/ids.h"
#include "device/device_memory.h"

namespace longshore {

class StageRing;

// The right to read one slot. Move-only; the destructor gives the slot back. Must not outlive its
// ring.
class UnitLease {
 public:
  UnitLease(UnitLease&& other) noexcept;
  UnitLease& operator=(UnitLease&&) = delete;
  ~UnitLease();
  UnitId unit() const { return unit_; }
  // The unit's flat parameter in the compute dtype, on the device.
  std::span<std::byte> bytes() const { return bytes_; }

 private:
  friend class StageRing;
  UnitLease(StageRing* ring, size_t slot, UnitId unit, std::span<std::byte> bytes)
      : ring_(ring), slot_(slot), unit_(unit), bytes_(bytes) {}
  StageRing* ring_;  // null after a move
  size_t slot_;
  UnitId unit_;
  std::span<std::byte> bytes_;
};

class StageRing {
 public:
  // `slots` are device buffers of equal size, one for each slot.
  explicit StageRing(std::vector<std::span<std::byte>> slots);

  bool holds(UnitId unit, StateVersion version) const;
  // The bytes of a free slot, the one unused for longest, now tagged (unit, version). The caller
  // fills them at once. CheckFailure when every slot is leased or the unit is in a slot already.
  std::span<std::byte> refill(UnitId unit, StateVersion version, Bytes unit_bytes);
  // CheckFailure when no slot holds (unit, version). A slot may have several leases.
  UnitLease lease(UnitId unit, StateVersion version);

  int64_t refills() const { return refills_; }

 private:
  friend class UnitLease;
  struct Slot {
    std::span<std::byte> memory;
    bool filled = false;
    UnitId unit;
    StateVersion version;
    Bytes unit_bytes = 0;
    int leases = 0;
    int64_t last_use = 0;
  };
  Slot* find(UnitId unit, StateVersion version);
  void release(size_t slot);

  std::vector<Slot> slots_;
  int64_t clock_ = 0;
  int64_t refills_ = 0;
};

}  // namespace longshore
