// sweep_in_order: a StateSweep over a test's store, unit by unit, on the caller's thread.
#pragma once

#include "shard/shard_store.h"
#include "shard/unit_spec.h"

namespace longshore {

// Makes the sweep; store and model must outlive it.
inline StateSweep sweep_in_order(ShardStore& store, const ModelSpec& model) {
  const auto sweep = [&store, &model](bool all, const StateSweep::Visitor& visit) {
    for (const UnitSpec& unit : model.units) {
      if (!all && !unit.has_trainable()) continue;
      const auto lease = store.state(unit.id);
      visit(unit.id, *lease);
    }
  };
  return {.options = store.options(),
          .each = [sweep](const StateSweep::Visitor& visit) { sweep(true, visit); },
          .each_trained = [sweep](const StateSweep::Visitor& visit) { sweep(false, visit); }};
}

}  // namespace longshore
