// SlotOwners: which unit has which of a few places that units use in turn: the device's gradient
// buffers, the ring of gradients in host memory, the slots of state and parameters on drives. Owned
// by who owns the places; claimed by the lane that writes a place first, freed by the lane that
// reads it last. Which place and when is the schedule's decision: this only finds out where it is
// wrong.
#pragma once

#include <atomic>
#include <deque>
#include <optional>

#include "base/errors.h"
#include "base/ids.h"

namespace longshore {

class SlotOwners {
 public:
  // `what`: a place's name in errors; a literal.
  SlotOwners(const char* what, int32_t count) : what_(what) {
    for (int32_t i = 0; i < count; ++i) holders_.emplace_back(kFree);
  }

  void claim(int32_t place, UnitId unit) {
    int32_t holder = kFree;
    LONGSHORE_CHECK(at(place).compare_exchange_strong(holder, unit.value))
        << what_ << " " << place << " still has unit " << holder << "; unit " << unit
        << " may not take it";
  }
  // For whoever needs any: a free place, claimed; none where there is none.
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
  // The place that the unit has.
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
