// StateSweep: the way to every unit's state outside of steps, to load, restore or save it. Made by
// whoever owns the tier (Engine::state_sweep), who reads units ahead and writes them behind.
#pragma once

#include <functional>

#include "shard/shard_store.h"

namespace longshore {

struct StateSweep {
  using Visitor = std::function<void(UnitId unit, ShardStore::StateLease& state)>;

  StateOptions options;
  // Calls `visit` for every unit, in order, one at a time, on a thread of its own; returns when
  // what it changed is where the tier keeps it. Throws what failed first.
  std::function<void(const Visitor& visit)> each;
  // For every unit of which something is trained.
  std::function<void(const Visitor& visit)> each_trained;
};

}  // namespace longshore
