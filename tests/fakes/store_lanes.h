// run_lanes(): runs the lanes over one store concurrently, like a step with deferred updates: unit
// by unit the update of the last step and the fetch of the forward pass, then the fetches of the
// backward pass. Every byte that a lane gets is compared. For tests of stores with any number of
// threads.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "shard/flat_layout.h"
#include "shard/shard_store.h"

namespace longshore::fakes {

// Sets all parameters and moments of a unit to the values of `step` (frozen ones only at step 0),
// through a lease of its own or the given one.
void write_unit(ShardStore& store, const FlatLayout& layout, UnitId unit, int64_t step);
void write_values_of(ShardStore::StateLease& state, const FlatLayout& layout, UnitId unit,
                     int64_t step);
// Returns the difference between the unit's parameters in the device layout and the values of
// `step`; empty if they are equal.
std::string parameter_difference(const ShardStore& store, std::span<const std::byte> parameters,
                                 const FlatLayout& layout, UnitId unit, int64_t step);

// Runs steps 1 to `steps` on a store that holds step 0. Calls `after_updates(step)` on this thread
// once the last unit of the step is updated, while other lanes continue with the backward pass; no
// update begins before it returns. Returns the first difference, or nothing.
std::string run_lanes(ShardStore& store, const std::vector<FlatLayout>& layouts, int64_t steps,
                      const std::function<void(int64_t)>& after_updates);

}  // namespace longshore::fakes
