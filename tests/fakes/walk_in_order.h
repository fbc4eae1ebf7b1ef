// walk_in_order: a StateSweep over a test's store, unit by unit, on the caller's thread.
#pragma once

#include "shard/shard_store.h"
#include "shard/unit_spec.h"

namespace longshore {

// Makes the sweep; store and model must outlive it.
inline StateSweep walk_in_order(ShardStore& store, const ModelSpec& model) {
  const auto walk = [&store, &model](bool all, const StateSweep::Visit& visit) {
    for (const UnitSpec& unit : model.units) {
      if (!all && !unit.has_trainable()) continue;
      const auto lease = store.state(unit.id);
      visit(unit.id, *lease);
    }
  };
  return {.options = store.options(),
          .each = [walk](const StateSweep::Visit& visit) { walk(true, visit); },
          .each_trained = [walk](const StateSweep::Visit& visit) { walk(false, visit); }};
}

}  // namespace longshore
