#include "offload/staging/stage_ring.h"

#include <utility>

#include "base/errors.h"
#include "base/mutex.h"

namespace longshore {

UnitLease::UnitLease(UnitLease&& other) noexcept
    : ring_(std::exchange(other.ring_, nullptr)),
      slot_(other.slot_),
      unit_(other.unit_),
      bytes_(other.bytes_) {}

UnitLease::~UnitLease() {
  if (ring_ != nullptr) ring_->release(slot_);
}

StageRing::StageRing(std::vector<std::span<std::byte>> slots) {
  LONGSHORE_CHECK(!slots.empty()) << "a ring needs a slot";
  for (std::span<std::byte> memory : slots) slots_.emplace_back().memory = memory;
}

std::span<std::byte> StageRing::begin_fill(const Placed& placed, StateVersion version,
                                           Bytes unit_bytes) {
  const MutexLock lock(*mutex_);
  Slot& slot = slots_[placed.slot];
  LONGSHORE_CHECK(slot.leases == 0) << "slot " << placed.slot << " is leased for unit " << slot.unit
                                    << "; unit " << placed.unit << " may not take it";
  LONGSHORE_CHECK(slot.content != Content::kFilling)
      << "slot " << placed.slot << " is being filled with unit " << slot.unit << "; unit "
      << placed.unit << " may not take it";
  LONGSHORE_CHECK(unit_bytes <= static_cast<Bytes>(slot.memory.size()))
      << "unit " << placed.unit << " has " << unit_bytes << " bytes, slot " << placed.slot << " "
      << slot.memory.size();
  slot.content = Content::kFilling;
  slot.unit = placed.unit;
  slot.version = version;
  slot.unit_bytes = unit_bytes;
  return slot.memory.first(static_cast<size_t>(unit_bytes));
}

StageRing::Slot& StageRing::held(const Placed& placed, StateVersion version, Content content) {
  Slot& slot = slots_[placed.slot];
  const bool holds = slot.content == content && slot.unit == placed.unit && slot.version == version;
  LONGSHORE_CHECK(holds) << "slot " << placed.slot << " does not hold "
                         << (content == Content::kFilling ? "the beginnings of " : "") << "unit "
                         << placed.unit << " version " << version;
  return slot;
}

std::span<std::byte> StageRing::filling(const Placed& placed, StateVersion version) {
  const MutexLock lock(*mutex_);
  const Slot& slot = held(placed, version, Content::kFilling);
  return slot.memory.first(static_cast<size_t>(slot.unit_bytes));
}

void StageRing::end_fill(const Placed& placed, StateVersion version) {
  const MutexLock lock(*mutex_);
  held(placed, version, Content::kFilling).content = Content::kComplete;
}

UnitLease StageRing::lease(const Placed& placed, StateVersion version) {
  const MutexLock lock(*mutex_);
  Slot& slot = held(placed, version, Content::kComplete);
  ++slot.leases;
  return UnitLease(this, placed.slot, placed.unit,
                   slot.memory.first(static_cast<size_t>(slot.unit_bytes)));
}

void StageRing::release(DeviceSlot slot) {
  const MutexLock lock(*mutex_);
  --slots_[slot].leases;
}

}  // namespace longshore
