// StageRing: the device slots that hold gathered units. Owned by the engine; filled by the lanes
// that copy and gather, leased by the compute lane, at the same time.
// A slot carries the tag (unit, version) of what it holds; the tag is checked when the slot is
// filled and when it is leased. A leased slot is never refilled, a slot that is not complete never
// leased. Which unit goes to which slot, and who waits for whom, is the schedule's decision: the
// ring only finds out where it is wrong.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "base/ids.h"
#include "device/device_memory.h"
#include "offload/schedule/pass_plan.h"

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
  // Device buffers, one for each slot.
  explicit StageRing(std::vector<std::span<std::byte>> slots);

  // The slot's first `unit_bytes` bytes, now tagged (unit, version). The caller fills them and then
  // says so. CheckFailure when the slot is leased, being filled, or too small.
  std::span<std::byte> begin_fill(const Placed& placed, StateVersion version, Bytes unit_bytes);
  // The bytes of a slot that is being filled with (unit, version); CheckFailure where it is not.
  std::span<std::byte> filling(const Placed& placed, StateVersion version);
  void end_fill(const Placed& placed, StateVersion version);
  // CheckFailure when the slot does not hold all of (unit, version). A slot may have several
  // leases.
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
  Slot& held(const Placed& placed, StateVersion version, Content content);
  void release(size_t slot);

  std::unique_ptr<std::mutex> mutex_ = std::make_unique<std::mutex>();
  std::vector<Slot> slots_;
};

}  // namespace longshore
