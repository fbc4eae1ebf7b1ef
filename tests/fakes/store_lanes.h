// The lanes over one store at once, as a step with deferred updates runs them: unit by unit the
// update of the last step, then the fetch of the forward pass; then the fetches of the backward
// pass. Every byte that a lane gets is compared. For tests of stores, with any number of real
// threads inside.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "shard/flat_layout.h"
#include "shard/shard_store.h"

namespace longshore::fakes {

// Sets all parameters and moments of a unit to what `step` leaves; frozen ones only at step 0. By a
// lease of its own, or the one given.
void write_unit(ShardStore& store, const FlatLayout& layout, UnitId unit, int64_t step);
void write_values_of(ShardStore::StateLease& state, const FlatLayout& layout, UnitId unit,
                     int64_t step);
// Empty, or what differs between the unit's parameters, as the device reads them, and what `step`
// leaves.
std::string parameter_difference(const ShardStore& store, std::span<const std::byte> parameters,
                                 const FlatLayout& layout, UnitId unit, int64_t step);

// Steps 1 to `steps`, on a store that holds step 0. `after_updates(step)` is called on this thread
// once the last unit of the step is updated, while the other lanes go on with the backward pass; no
// update begins before it has returned. Returns the first difference, or nothing.
std::string run_lanes(ShardStore& store, const std::vector<FlatLayout>& layouts, int64_t steps,
                      const std::function<void(int64_t)>& after_updates);

}  // namespace longshore::fakes
