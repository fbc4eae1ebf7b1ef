// SlotOwners: records which unit holds each of a few slots that units use in rotation: the device's
// gradient buffers, the host gradient ring, the slots of state and parameters on drives. The owner
// of the slots owns it. The lane that first writes a slot claims it; the lane that last reads it
// frees it. The schedule decides which slot is used when; this class only detects its mistakes.
#pragma once

#include <atomic>
#include <deque>
#include <optional>

#include "base/errors.h"
#include "base/ids.h"

namespace longshore {

class SlotOwners {
 public:
  // `what` names a slot in error texts; it must be a literal.
  SlotOwners(const char* what, int32_t count) : what_(what) {
    for (int32_t i = 0; i < count; ++i) holders_.emplace_back(kFree);
  }

  void claim(int32_t place, UnitId unit) {
    int32_t holder = kFree;
    LONGSHORE_CHECK(at(place).compare_exchange_strong(holder, unit.value))
        << what_ << " " << place << " still has unit " << holder << "; unit " << unit
        << " may not take it";
  }
  // Claims any free slot; returns nullopt if none is free.
  std::optional<int32_t> claim_any(UnitId unit) {
    for (size_t i = 0; i < holders_.size(); ++i) {
      int32_t holder = kFree;
      if (holders_[i].compare_exchange_strong(holder, unit.value)) return static_cast<int32_t>(i);
    }
    return std::nullopt;
  }
  void check(int32_t place, UnitId unit) const {
    const int32_t holder = holders_.at(static_cast<size_t>(place));
    LONGSHORE_CHECK(holder == unit.value)
        << what_ << " " << place << " has unit " << holder << ", not " << unit;
  }
  void free(int32_t place, UnitId unit) {
    check(place, unit);
    at(place) = kFree;
  }
  // Returns the slot that the unit holds.
  std::optional<int32_t> place_of(UnitId unit) const {
    for (size_t i = 0; i < holders_.size(); ++i) {
      if (holders_[i] == unit.value) return static_cast<int32_t>(i);
    }
    return std::nullopt;
  }

 private:
  static constexpr int32_t kFree = -1;
  std::atomic<int32_t>& at(int32_t place) { return holders_.at(static_cast<size_t>(place)); }

  const char* what_;
  std::deque<std::atomic<int32_t>> holders_;
};

}  // namespace longshore
