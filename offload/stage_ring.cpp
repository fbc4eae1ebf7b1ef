#include "offload/stage_ring.h"

#include <utility>

#include "base/errors.h"

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
  for (std::span<std::byte> memory : slots) {
    LONGSHORE_CHECK(memory.size() == slots.front().size()) << "slots differ in size";
    slots_.emplace_back().memory = memory;
  }
}

StageRing::Slot* StageRing::find(UnitId unit, StateVersion version) {
  for (Slot& slot : slots_) {
    if (slot.filled && slot.unit == unit && slot.version == version) return &slot;
  }
  return nullptr;
}

bool StageRing::holds(UnitId unit, StateVersion version) const {
  return const_cast<StageRing*>(this)->find(unit, version) != nullptr;
}

std::span<std::byte> StageRing::refill(UnitId unit, StateVersion version, Bytes unit_bytes) {
  LONGSHORE_CHECK(find(unit, version) == nullptr) << "unit " << unit << " is in a slot already";
  Slot* chosen = nullptr;
  for (Slot& slot : slots_) {
    if (slot.leases > 0) continue;
    if (chosen == nullptr || slot.last_use < chosen->last_use) chosen = &slot;
  }
  LONGSHORE_CHECK(chosen != nullptr) << "every slot is leased; unit " << unit << " has no place";
  LONGSHORE_CHECK(unit_bytes <= static_cast<Bytes>(chosen->memory.size()))
      << "unit " << unit << " has " << unit_bytes << " bytes, a slot " << chosen->memory.size();
  chosen->filled = true;
  chosen->unit = unit;
  chosen->version = version;
  chosen->unit_bytes = unit_bytes;
  chosen->last_use = ++clock_;
  ++refills_;
  return chosen->memory.first(static_cast<size_t>(unit_bytes));
}

UnitLease StageRing::lease(UnitId unit, StateVersion version) {
  Slot* slot = find(unit, version);
  LONGSHORE_CHECK(slot != nullptr) << "no slot holds unit " << unit << " version " << version;
  ++slot->leases;
  slot->last_use = ++clock_;
  return UnitLease(this, static_cast<size_t>(slot - slots_.data()), unit,
                   slot->memory.first(static_cast<size_t>(slot->unit_bytes)));
}

void StageRing::release(size_t slot) {
  --slots_[slot].leases;
}

}  // namespace longshore
