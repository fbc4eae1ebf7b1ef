// The units that a pass fetches, their slots and times: by hand, and over random models.
#include "offload/schedule/pass_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <random>

#include "base/errors.h"
#include "tests/fakes/specs.h"

namespace longshore {
namespace {

// Returns the units fetched before each execution: "0 1|2||".
std::string fetches(const PassPlan& plan) {
  std::string text;
  for (const UnitExecution& execution : plan.executions) {
    std::string units;
    for (const Placed& fetch : execution.fetches) {
      units += (units.empty() ? "" : " ") + std::to_string(fetch.unit.value);
    }
    text += units + "|";
  }
  return text;
}

PassInputs equal_slots(const ModelSpec& model, size_t slots, int64_t prefetch) {
  return {.unit_bytes = std::vector<Bytes>(model.units.size(), 8),
          .slot_bytes = std::vector<Bytes>(slots, 8),
          .prefetch = prefetch};
}

// Units run forward, then backward down to the lowest trainable unit.
TEST(PassPlan, VisitsForwardThenBackwardDownToTheLowestTrainableUnit) {
  ModelSpec model = fakes::make_small_model(2, false);  // units 0 1 2 3
  const auto values = [&](Pass pass) {
    std::vector<int32_t> order;
    for (UnitId unit : execution_order(model, pass)) order.push_back(unit.value);
    return order;
  };
  EXPECT_EQ(values(Pass::kTrain), (std::vector<int32_t>{0, 1, 2, 3, 2, 1, 0}));
  EXPECT_EQ(values(Pass::kForward), (std::vector<int32_t>{0, 1, 2, 3}));
  for (size_t unit : {0, 1}) {
    for (ParamSpec& parameter : model.units[unit].parameters) parameter.frozen = true;
  }
  EXPECT_EQ(values(Pass::kTrain), (std::vector<int32_t>{0, 1, 2, 3, 2}));
}

// Units are fetched on demand or ahead, and backward reuses the units that forward left in slots.
TEST(PassPlan, FetchesWhenAskedForOrAheadAndUsesWhatForwardLeft) {
  const ModelSpec model = fakes::make_small_model(2, false);
  EXPECT_EQ(fetches(plan_pass(model, Pass::kTrain, equal_slots(model, 1, 0))), "0|1|2|3|2|1|0|");
  EXPECT_EQ(fetches(plan_pass(model, Pass::kTrain, equal_slots(model, 2, 0))), "0|1|2|3||1|0|");
  // Unit 2 stays for backward while the loss runs.
  EXPECT_EQ(fetches(plan_pass(model, Pass::kTrain, equal_slots(model, 2, 1))), "0 1|2|3||1|0||");
  EXPECT_EQ(fetches(plan_pass(model, Pass::kTrain, equal_slots(model, 4, 3))), "0 1 2 3|||||||");
  EXPECT_EQ(fetches(plan_pass(model, Pass::kForward, equal_slots(model, 2, 1))), "0 1|2|3||");
}

// Goal: a unit whose backward reads no parameters is not fetched for it and gets no slot, and the
// units fetched ahead in its slot come no later.
TEST(PassPlan, FetchesNothingForABackwardThatReadsNoParameters) {
  for (const bool tied : {false, true}) {
    ModelSpec model = fakes::make_small_model(2, tied);
    model.units[0].backward_reads_parameters = false;
    validate_model_spec(model);
    const PassPlan plan = plan_pass(model, Pass::kTrain, equal_slots(model, 2, 1));
    EXPECT_EQ(fetches(plan), tied ? "0 1|2|3|0|2 1|||" : "0 1|2|3||1|||");
    EXPECT_EQ(plan.executions.back().unit, UnitId(0));
    EXPECT_TRUE(plan.executions.back().leases.empty());
    EXPECT_EQ(plan.executions.front().leases.size(), 1U);
  }
  ModelSpec model = fakes::make_small_model(2, true);
  model.units.back().backward_reads_parameters = false;
  EXPECT_THROW(validate_model_spec(model), CheckFailure);
}

// With a slot for every unit each is fetched once.
TEST(PassPlan, GivesEveryUnitItsOwnSlotWhereThereIsOne) {
  const ModelSpec model = fakes::make_small_model(2, false);
  const PassInputs inputs{.unit_bytes = {16, 8, 8, 4}, .slot_bytes = {16, 8, 8, 4}};
  const PassPlan plan = plan_pass(model, Pass::kTrain, inputs);
  EXPECT_EQ(fetches(plan), "0|1|2|3||||");
  for (const UnitExecution& execution : plan.executions) {
    for (const Placed& lease : execution.leases) {
      EXPECT_EQ(inputs.slot_bytes[static_cast<size_t>(lease.slot.value)],
                inputs.unit_bytes[static_cast<size_t>(lease.unit.value)]);
    }
  }
}

// A tied head needs two slots.
TEST(PassPlan, RefusesTooFewSlotsForATiedHead) {
  const ModelSpec model = fakes::make_small_model(2, true);
  EXPECT_THROW(plan_pass(model, Pass::kTrain, equal_slots(model, 1, 0)), CheckFailure);
  EXPECT_NO_THROW(plan_pass(model, Pass::kTrain, equal_slots(model, 2, 0)));
}

// Replays a plan: each execution finds its units in their slots, fetched no later than it, and no
// fetch takes a slot that the execution leases.
void replay(const PassPlan& plan, const PassInputs& inputs) {
  std::vector<std::optional<UnitId>> slots(inputs.slot_bytes.size());
  for (const UnitExecution& execution : plan.executions) {
    for (const Placed& fetch : execution.fetches) {
      const auto slot = static_cast<size_t>(fetch.slot.value);
      EXPECT_LE(inputs.unit_bytes[static_cast<size_t>(fetch.unit.value)], inputs.slot_bytes[slot]);
      EXPECT_TRUE(std::ranges::find(slots, fetch.unit) == slots.end()) << "fetched twice";
      slots[slot] = fetch.unit;
    }
    ASSERT_FALSE(execution.leases.empty());
    EXPECT_EQ(execution.leases.front().unit, execution.unit);
    for (const Placed& lease : execution.leases) {
      EXPECT_EQ(slots[static_cast<size_t>(lease.slot.value)], lease.unit);
    }
  }
}

// Random models and slots give plans that hold every unit an execution needs.
TEST(PassPlan, HoldsWhatEveryVisitNeedsOverRandomModels) {
  std::mt19937 random(11);
  for (int i = 0; i < 300; ++i) {
    const ModelSpec model =
        fakes::make_small_model(1 + static_cast<int>(random() % 9), random() % 2 == 0);
    PassInputs inputs;
    inputs.prefetch = random() % 4;
    for (size_t u = 0; u < model.units.size(); ++u) inputs.unit_bytes.push_back(1 + random() % 9);
    const Bytes largest = *std::ranges::max_element(inputs.unit_bytes);
    inputs.slot_bytes.assign(std::max<size_t>(2, static_cast<size_t>(inputs.prefetch) + 1),
                             largest);
    const Pass pass = random() % 2 == 0 ? Pass::kTrain : Pass::kForward;
    replay(plan_pass(model, pass, inputs), inputs);
  }
}

}  // namespace
}  // namespace longshore
