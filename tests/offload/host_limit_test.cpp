// The host memory that a rank may plan with if several ranks share a machine.
#include <gtest/gtest.h>

#include "base/errors.h"
#include "offload/plan/tier_plan.h"
#include "tests/fakes/specs.h"

namespace longshore {
namespace {

PlanInputs inputs_of(const ModelSpec& model, int32_t ranks) {
  PlanInputs inputs;
  inputs.model = &model;
  inputs.costs = [&model](int64_t positions, int64_t) {
    return std::vector<UnitCost>(model.units.size(), {positions, positions, positions});
  };
  inputs.sequences_per_step = 4;
  inputs.micro_batch = 1;
  inputs.max_tokens = 16;
  inputs.topology = make_topology(ShardStrategy::kNoShard, ranks, ranks);
  inputs.ranks_per_node = ranks;
  return inputs;
}

// Goal: ranks of one machine never plan with more memory than it has; a given limit is per rank.
TEST(HostLimit, IsSharedByTheRanksOfAMachine) {
  const ModelSpec model = fakes::make_small_model(3, false);
  Machine machine;
  machine.physical_cores = machine.logical_cores = 4;
  machine.ram_total = machine.ram_available = 64 * kGiB;
  const Bytes needed = draft_tier_plan(inputs_of(model, 1), machine).host.total;
  for (const int32_t ranks : {1, 2, 4}) {
    PlanInputs inputs = inputs_of(model, ranks);
    EXPECT_EQ(draft_tier_plan(inputs, machine).host.limit, machine.host_available() / ranks);
    Machine tight = machine;
    tight.ram_total = tight.ram_available = ranks * draft_tier_plan(inputs, machine).host.total;
    if (tight.host_available() < tight.ram_available) continue;
    EXPECT_NO_THROW(make_tier_plan(inputs, tight)) << ranks;
    tight.ram_total = tight.ram_available = tight.ram_available - ranks;
    EXPECT_THROW(make_tier_plan(inputs, tight), DoesNotFitError) << ranks;
    inputs.host_cap = 2 * needed;
    EXPECT_EQ(draft_tier_plan(inputs, machine).host.limit, 2 * needed);
  }
}

}  // namespace
}  // namespace longshore
