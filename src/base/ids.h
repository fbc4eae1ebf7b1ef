// StrongId: distinct integer types that keep arguments from being swapped. Plain values.
#pragma once

#include <compare>
#include <cstdint>
#include <ostream>

namespace longshore {

template <typename Tag, typename Int>
struct StrongId {
  Int value = 0;
  constexpr StrongId() = default;
  constexpr explicit StrongId(Int v) : value(v) {}
  constexpr auto operator<=>(const StrongId&) const = default;
  friend std::ostream& operator<<(std::ostream& out, StrongId id) { return out << id.value; }
};

// The position of a unit in forward order, from 0.
using UnitId = StrongId<struct UnitTag, int32_t>;
// The index of a process of the run, from 0.
using Rank = StrongId<struct RankTag, int32_t>;
// An optimizer step, counted from 1; 0 is the state before the first step.
using Step = StrongId<struct StepTag, int64_t>;
// The version of all parameters and moments; it grows by one with every step, skipped or not.
using StateVersion = StrongId<struct StateVersionTag, int64_t>;

}  // namespace longshore
