// Numbered memory that units use in rotation. Each kind of slot has a number type of its
// own, so a function that takes a state slot cannot be called with a parameter slot. An operation
// or tier that uses no slot of a kind has std::nullopt. SlotVector keeps a value for each slot, and
// SlotOwners the unit that holds it. The schedule decides which unit uses which slot when.
#pragma once

#include <atomic>
#include <deque>
#include <iterator>
#include <optional>
#include <vector>

#include "base/errors.h"
#include "base/ids.h"

namespace longshore {

// ---- On the device.
// Holds a gathered unit (StageRing).
using DeviceSlot = StrongId<struct DeviceSlotTag, int32_t>;
// Sums a unit's gradient, from its backward to the end of its drain.
using GradientBuffer = StrongId<struct GradientBufferTag, int32_t>;
// Holds the activation checkpoints of a group of units, where they are offloaded.
using InputSlot = StrongId<struct InputSlotTag, int32_t>;

// ---- In host memory.
// Holds a drained gradient until its update (HostGradients), where units share a ring.
using HostGradientSlot = StrongId<struct HostGradientSlotTag, int32_t>;
// Holds activation checkpoints on their way to drives and back (InputTier).
using StagingSlot = StrongId<struct StagingSlotTag, int32_t>;
// Hold a unit's state and its parameters on their way to drives and back (ShardStore).
using StateSlot = StrongId<struct StateSlotTag, int32_t>;
using ParameterSlot = StrongId<struct ParameterSlotTag, int32_t>;

// One element for each slot of a kind. An index without an element throws std::out_of_range.
template <typename Slot, typename T>
class SlotVector : public std::vector<T> {
 public:
  using std::vector<T>::vector;
  T& operator[](Slot slot) { return this->at(static_cast<size_t>(slot.value)); }
  const T& operator[](Slot slot) const { return this->at(static_cast<size_t>(slot.value)); }
};

// Returns the element of a unit. The check fails for a unit without one.
template <typename Elements>
auto& of_unit(Elements& elements, UnitId unit) {
  LONGSHORE_CHECK(unit.value >= 0 && unit.value < std::ssize(elements)) << "unit " << unit;
  return elements[static_cast<size_t>(unit.value)];
}

// Detects mistakes of the schedule. The owner of the slots owns it. The lane that first writes a
// slot claims it; the lane that last reads it frees it.
template <typename Slot>
class SlotOwners {
 public:
  // `what` names a slot in error texts; it must be a literal.
  SlotOwners(const char* what, int32_t count) : what_(what) {
    for (int32_t i = 0; i < count; ++i) holders_.emplace_back(kFree);
  }

  void claim(Slot slot, UnitId unit) {
    int32_t holder = kFree;
    LONGSHORE_CHECK(at(slot).compare_exchange_strong(holder, unit.value))
        << what_ << " " << slot << " still has unit " << holder << "; unit " << unit
        << " may not take it";
  }
  // Claims any free slot; returns nullopt if none is free.
  std::optional<Slot> claim_any(UnitId unit) {
    for (size_t i = 0; i < holders_.size(); ++i) {
      int32_t holder = kFree;
      if (holders_[i].compare_exchange_strong(holder, unit.value)) {
        return Slot(static_cast<int32_t>(i));
      }
    }
    return std::nullopt;
  }
  void check(Slot slot, UnitId unit) const {
    const int32_t holder = holders_.at(static_cast<size_t>(slot.value));
    LONGSHORE_CHECK(holder == unit.value)
        << what_ << " " << slot << " has unit " << holder << ", not " << unit;
  }
  void free(Slot slot, UnitId unit) {
    check(slot, unit);
    at(slot) = kFree;
  }
  // Returns the slot that the unit holds.
  std::optional<Slot> slot_of(UnitId unit) const {
    for (size_t i = 0; i < holders_.size(); ++i) {
      if (holders_[i] == unit.value) return Slot(static_cast<int32_t>(i));
    }
    return std::nullopt;
  }

 private:
  static constexpr int32_t kFree = -1;
  std::atomic<int32_t>& at(Slot slot) { return holders_.at(static_cast<size_t>(slot.value)); }

  const char* what_;
  std::deque<std::atomic<int32_t>> holders_;
};

}  // namespace longshore
