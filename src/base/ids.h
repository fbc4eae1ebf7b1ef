// Ids: distinct integer types, so that arguments cannot be swapped. Plain values.
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

// Position of a unit in forward order, from 0.
using UnitId = StrongId<struct UnitTag, int32_t>;
// A process of the run, from 0.
using Rank = StrongId<struct RankTag, int32_t>;
// An optimizer step, counted from 1; 0 is the state before the first step.
using Step = StrongId<struct StepTag, int64_t>;
// A complete state of all parameters and moments; grows by one with every step, skipped or not.
using StateVersion = StrongId<struct StateVersionTag, int64_t>;

}  // namespace longshore
