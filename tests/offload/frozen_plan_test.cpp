// The plan of a frozen model in its own files.
#include <gtest/gtest.h>

#include <memory>
#include <span>

#include "offload/plan/plan_text.h"
#include "offload/plan/tier_plan.h"
#include "pinned/frozen_file_store.h"
#include "tests/fakes/specs.h"
#include "tests/offload/plan_cases.h"

namespace longshore {
namespace {

// Frozen parameters in the model's files leave the trained state and two slots in host memory; a
// step reads them for every fetch, in the dtype of the files.
TEST(FrozenPlan, CountsSlotsAndReadsOfTheFiles) {
  ModelSpec model = fakes::make_small_model(5, false);
  Bytes stored = 0;
  for (UnitSpec& unit : model.units) {
    for (ParamSpec& parameter : unit.parameters) parameter.frozen = true;
    stored += 4 * unit.parameters.front().elements();
    for (const ParamSpec& parameter : std::span(unit.parameters).subspan(1)) {
      stored += 2 * parameter.elements();
    }
    unit.parameters.push_back(fakes::make_parameter(unit.name + ".adapter", {64, 8}));
  }
  PlanInputs inputs = made_up_inputs(model);
  inputs.prefetch = 0;
  const TierPlan host = draft_tier_plan(inputs, made_up_machine());
  FrozenFiles files;
  for (const UnitSpec& unit : model.units) files[unit.parameters.front().name] = DType::kF32;
  inputs.frozen_files = std::make_shared<const FrozenFiles>(std::move(files));
  const TierPlan plan = draft_tier_plan(inputs, made_up_machine());
  EXPECT_TRUE(plan.frozen_in_files);
  EXPECT_EQ(plan.device.owned, host.device.owned);
  EXPECT_EQ(plan.step.traffic.h2d, host.step.traffic.h2d);
  EXPECT_EQ(plan.step.traffic.nvme_read, 0);
  EXPECT_EQ(plan.step.traffic.nvme_written, 0);
  EXPECT_EQ(plan.host.gradients, host.host.gradients);
  const std::vector<FlatLayout> layouts = make_layouts(model, 1);
  EXPECT_EQ(plan.host.arena, FrozenFileStore::planned_bytes(layouts, inputs.state));
  EXPECT_EQ(host.host.total - plan.host.total, host.host.arena - plan.host.arena);
  Bytes forward = 0;
  for (const Op& op : plan.step.schedules.forward.ops) {
    if (op.kind == OpKind::kReadParameters) forward += op.bytes;
  }
  EXPECT_EQ(forward, stored);
  EXPECT_GT(plan.step.traffic.files_read, stored);
  const std::string text = format_plan(plan, made_up_machine());
  EXPECT_NE(text.find("read from model files " + format_bytes(plan.step.traffic.files_read)),
            std::string::npos);
  EXPECT_EQ(text.find("nvme:"), std::string::npos);
  inputs.topology = {.ranks = 2, .shard_ranks = 2};
  inputs.ranks_per_node = 2;
  EXPECT_NE(why_not_on_host(inputs).find("offload.parameters"), std::string::npos);
}

}  // namespace
}  // namespace longshore
