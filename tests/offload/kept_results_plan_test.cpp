// The plan of runs that keep attention's results between forward and backward.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

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
  inputs.keep_results = KeptResults::kAttention;
  const TierPlan kept = draft_tier_plan(inputs, made_up_machine());
  // Three blocks, four micro-batches of 100 positions.
  const Bytes results = 3 * 4 * 100 * (64 * 2 + 4 * 4);
  EXPECT_EQ(kept.step.kept_results, KeptResults::kAttention);
  EXPECT_NEAR(static_cast<double>(kept.device.total - unit.device.total), results, 3 * 4 * 512);
  const auto line = std::ranges::find(kept.device.lines, "kept results", &PlanLine::name);
  ASSERT_NE(line, kept.device.lines.end());
  EXPECT_EQ(line->bytes, kept.device.total - unit.device.total);
  Bytes sum = 0;
  for (const PlanLine& each : kept.device.lines) sum += each.bytes;
  EXPECT_EQ(sum, kept.device.total);

  inputs.offload_inputs = true;
  const TierPlan host = draft_tier_plan(inputs, made_up_machine());
  EXPECT_EQ(host.device.input_slots, 3) << "a slot is saved while the next unit computes";
  inputs.keep_results = KeptResults::kNone;
  const TierPlan plain = draft_tier_plan(inputs, made_up_machine());
  EXPECT_EQ(plain.device.input_slots, 2);
  // Checkpoints of the last units stay in their slots: of block 2 and the head, or of all blocks
  // but the first and of the head.
  EXPECT_GT(host.step.offloaded_inputs[1], plain.step.offloaded_inputs[1]);
  EXPECT_EQ(host.step.offloaded_inputs[1] - plain.step.offloaded_inputs[1],
            kept.device.buffer({BufferKind::kInput, UnitId(1)})->bytes -
                unit.device.buffer({BufferKind::kInput, UnitId(1)})->bytes);
}

// Each value of fsdp.recompute keeps what the one before keeps and its own results.
TEST(TierPlan, KeepsMoreResultsWithEachValue) {
  ModelSpec model = fakes::make_small_model(3, false);
  for (size_t u = 1; u <= 3; ++u) {
    model.units[u].results = {{.elements_per_position = 64},
                              {.elements_per_position = 96, .kept_from = KeptResults::kHeads},
                              {.elements_per_position = 128, .kept_from = KeptResults::kMiddle},
                              {.elements_per_position = 256, .kept_from = KeptResults::kMlp}};
  }
  PlanInputs inputs = made_up_inputs(model);
  const Bytes unit = draft_tier_plan(inputs, made_up_machine()).device.total;
  int64_t elements = 0;
  for (const auto& [kept, own] : std::map<KeptResults, int64_t>{{KeptResults::kAttention, 64},
                                                                {KeptResults::kHeads, 96},
                                                                {KeptResults::kMiddle, 128},
                                                                {KeptResults::kMlp, 256}}) {
    elements += own;
    inputs.keep_results = kept;
    const TierPlan plan = draft_tier_plan(inputs, made_up_machine());
    // Three blocks, four micro-batches of 100 positions, two bytes each.
    EXPECT_NEAR(static_cast<double>(plan.device.total - unit),
                static_cast<double>(3 * 4 * 100 * 2 * elements), 3 * 4 * 512);
    EXPECT_EQ(plan.step.kept_results, kept);
  }
}

}  // namespace
}  // namespace longshore
