// StateSweep: access to every unit's state outside of steps, to load, restore or save it. The owner
// of the tier makes it (Engine::state_sweep), reads units ahead and writes them behind.
#pragma once

#include <functional>

#include "shard/shard_store.h"

namespace longshore {

struct StateSweep {
  using Visitor = std::function<void(UnitId unit, ShardStore::StateLease& state)>;

  StateOptions options;
  // Calls `visit` for every unit in order, one at a time, on a separate thread. Returns when all
  // changes are in the tier. Throws the first failure.
  std::function<void(const Visitor& visit)> each;
  // Does the same for every unit with trainable parameters.
  std::function<void(const Visitor& visit)> each_trained;
};

}  // namespace longshore
