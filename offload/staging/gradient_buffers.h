// GradientBuffers: who has which of the device's gradient buffers: claimed when a unit's backward
// begins, free again when its gradient is home. Owned by the engine; claimed by the compute lane,
// read by the reduce lane, freed by the D2H lane. Which buffer and when is the schedule's decision:
// this only finds out where it is wrong.
#pragma once

#include <atomic>
#include <deque>

#include "base/errors.h"
#include "base/ids.h"

namespace longshore {

class GradientBuffers {
 public:
  explicit GradientBuffers(int32_t count) {
    for (int32_t i = 0; i < count; ++i) holders_.emplace_back(kFree);
  }

  void claim(int32_t buffer, UnitId unit) {
    int32_t holder = kFree;
    LONGSHORE_CHECK(at(buffer).compare_exchange_strong(holder, unit.value))
        << "gradient buffer " << buffer << " still has unit " << holder << "; unit " << unit
        << " may not take it";
  }
  void check(int32_t buffer, UnitId unit) const {
    const int32_t holder = holders_.at(static_cast<size_t>(buffer));
    LONGSHORE_CHECK(holder == unit.value)
        << "gradient buffer " << buffer << " has unit " << holder << ", not " << unit;
  }
  void free(int32_t buffer, UnitId unit) {
    check(buffer, unit);
    at(buffer) = kFree;
  }

 private:
  static constexpr int32_t kFree = -1;
  std::atomic<int32_t>& at(int32_t buffer) { return holders_.at(static_cast<size_t>(buffer)); }

  std::deque<std::atomic<int32_t>> holders_;
};

}  // namespace longshore
