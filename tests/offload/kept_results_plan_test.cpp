// The plan of runs that keep attention's results between forward and backward.
#include <gtest/gtest.h>

#include <algorithm>

#include "offload/plan/tier_plan.h"
#include "tests/fakes/specs.h"
#include "tests/offload/plan_cases.h"

namespace longshore {
namespace {

// Attention's results are beside the activation checkpoints, on the device or with them on the
// host, and the plan shows their bytes.
TEST(TierPlan, CountsResultsThatAreKept) {
  ModelSpec model = fakes::make_small_model(3, false);
  for (size_t u = 1; u <= 3; ++u) {
    model.units[u].results = {{.elements_per_position = 64},
                              {.elements_per_position = 4, .wide = true}};
  }
  PlanInputs inputs = made_up_inputs(model);
  const TierPlan unit = draft_tier_plan(inputs, made_up_machine());
  inputs.keep_results = true;
  const TierPlan kept = draft_tier_plan(inputs, made_up_machine());
  // Three blocks, four micro-batches of 100 positions.
  const Bytes results = 3 * 4 * 100 * (64 * 2 + 4 * 4);
  EXPECT_TRUE(kept.step.keeps_results);
  EXPECT_NEAR(static_cast<double>(kept.device.total - unit.device.total), results, 3 * 4 * 512);
  const auto line = std::ranges::find(kept.device.lines, "attention results", &PlanLine::name);
  ASSERT_NE(line, kept.device.lines.end());
  EXPECT_EQ(line->bytes, kept.device.total - unit.device.total);
  Bytes sum = 0;
  for (const PlanLine& each : kept.device.lines) sum += each.bytes;
  EXPECT_EQ(sum, kept.device.total);

  inputs.offload_inputs = true;
  const TierPlan host = draft_tier_plan(inputs, made_up_machine());
  EXPECT_EQ(host.device.input_slots, 3) << "a slot is saved while the next unit computes";
  inputs.keep_results = false;
  const TierPlan plain = draft_tier_plan(inputs, made_up_machine());
  EXPECT_EQ(plain.device.input_slots, 2);
  // Checkpoints of the last units stay in their slots: of block 2 and the head, or of all blocks
  // but the first and of the head.
  EXPECT_GT(host.step.offloaded_inputs[1], plain.step.offloaded_inputs[1]);
  EXPECT_EQ(host.step.offloaded_inputs[1] - plain.step.offloaded_inputs[1],
            kept.device.buffer({BufferKind::kInput, UnitId(1)})->bytes -
                unit.device.buffer({BufferKind::kInput, UnitId(1)})->bytes);
}

}  // namespace
}  // namespace longshore
