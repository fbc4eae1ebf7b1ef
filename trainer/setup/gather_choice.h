// GatherChoice: how the shards of units come together on the device, as fsdp.gather says or as a
// measurement on all ranks has it. Engine's thread, before the plan is made.
#pragma once

#include "config/run_config.h"
#include "offload/plan/tier_plan.h"
#include "offload/staging/rank_groups.h"

namespace longshore {

// Sets inputs.gather. `groups`: null where the command joins no others; "auto" then is "host" where
// that is possible. ConfigError where the run file asks for what cannot be.
void choose_gather(const RunConfig& config, const RankGroups* groups, PlanInputs& inputs);

}  // namespace longshore
