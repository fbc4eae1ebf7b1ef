// Tiers: the stores of a rank's parameters, state and inputs, made by a plan. Owned by the
// engine. Only this file and offload/plan know the tiers; all other code uses interfaces. A custom
// MakeTiers adds a tier.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "base/ids.h"
#include "offload/plan/tier_plan.h"
#include "pinned/pinned_store.h"
#include "pinned/worker_pool.h"
#include "shard/durability.h"
#include "shard/flat_layout.h"
#include "shard/frozen_source.h"
#include "shard/input_tier.h"
#include "shard/shard_store.h"

namespace longshore {

struct Tiers {
  std::unique_ptr<ShardStore> state;     // and parameters
  SlottedStore* slots = nullptr;         // `state`, if it passes through slots
  DurableStore* durable = nullptr;       // `state`, if it makes steps durable
  const SharedShards* shared = nullptr;  // `state`, if other ranks read parameters from it
  std::unique_ptr<InputTier> inputs;     // null: inputs stay on the device

  // Leases the state that the schedule brought to `slot`; empty: the state is in host memory.
  std::unique_ptr<ShardStore::StateLease> lease_state(UnitId unit,
                                                      std::optional<StateSlot> slot) const {
    return slot ? slots->state_in(unit, *slot) : state->state(unit);
  }
};

struct TierRequest {
  const TierPlan& plan;
  const std::vector<FlatLayout>& layouts;
  Rank rank;
  RunKey run;        // the run whose state persists on drives
  WorkerPool* pool;  // must outlive the tiers
  const ModelSpec& model;
  Rank shard;                            // in its shard group
  const FrozenSource* frozen = nullptr;  // for a plan with frozen_in_files; must outlive the tiers
};
using MakeTiers = std::function<Tiers(const TierRequest&)>;

// Makes host and drive tiers. A plan with drives opens and locks its files.
Tiers make_tiers(const TierRequest& request);
// Makes the same tiers, with frozen parameters from `frozen` where the plan says so.
MakeTiers make_tiers_over(const FrozenSource* frozen);

}  // namespace longshore
