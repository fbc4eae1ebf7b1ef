// Tiers: where a rank's parameters, state and inputs live, made as a plan says. Owned by the
// engine. What follows from a plan's choice of a tier is here and in offload/plan; everything else
// sees interfaces. A tier of one's own is another MakeTiers.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "base/ids.h"
#include "offload/plan/tier_plan.h"
#include "pinned/shared_shards.h"
#include "pinned/worker_pool.h"
#include "shard/flat_layout.h"
#include "shard/input_tier.h"
#include "shard/run_key.h"
#include "shard/shard_store.h"

namespace longshore {

struct Tiers {
  std::unique_ptr<ShardStore> state;     // and parameters
  const SharedShards* shared = nullptr;  // `state`, where other ranks read parameters from it
  std::unique_ptr<InputTier> inputs;     // null: inputs stay on the device
};

struct TierRequest {
  const TierPlan& plan;
  const std::vector<FlatLayout>& layouts;
  Rank rank;
  RunKey run;        // whose state it is, where it outlives the process
  WorkerPool* pool;  // outlives the tiers
};
using MakeTiers = std::function<Tiers(const TierRequest&)>;

// Host memory and drives. Opens and locks the files of a plan with drives.
Tiers make_tiers(const TierRequest& request);

}  // namespace longshore
