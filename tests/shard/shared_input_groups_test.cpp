// Activation checkpoints that several units share, and specs of a carry that are refused.
#include "shard/input_tier.h"

#include <gtest/gtest.h>

#include "base/errors.h"
#include "tests/fakes/specs.h"

namespace longshore {
namespace {

std::string runs_of(const ModelSpec& model) {
  std::string text;
  const SharedInputGroups runs(model);
  for (const SharedInputGroup& run : runs.all()) {
    text += std::to_string(run.number) + ": " + std::to_string(run.first.value) + " to " +
            std::to_string(run.last.value) + "; ";
  }
  return text;
}

// Units that a tensor passes through share its checkpoint. Units: embedding, four blocks, head.
TEST(SharedInputGroups, JoinUnitsThatTensorsPassThrough) {
  ModelSpec model = fakes::make_small_model(4, false);
  EXPECT_EQ(runs_of(model), "1: 1 to 1; 2: 2 to 2; 3: 3 to 3; 4: 4 to 4; 5: 5 to 5; ");
  model.units[0].carry_out = {{.elements_per_position = 8, .running = true}};
  model.units[1].carry_out = {{8}, {.elements_per_position = 1, .wide = true}};
  model.units[2].carry_out = {{.elements_per_position = 2, .wide = true},
                              {.elements_per_position = 8, .passes = 0}};
  model.units[3].carry_out = {{.elements_per_position = 8, .passes = 1},
                              {.elements_per_position = 3, .wide = true, .running = true}};
  validate_model_spec(model);
  EXPECT_EQ(runs_of(model), "1: 2 to 4; 2: 5 to 5; ");
  const SharedInputGroups runs(model);
  EXPECT_EQ(runs.of(UnitId(0)), nullptr) << "the first unit has no input";
  EXPECT_EQ(runs.of(UnitId(1)), nullptr) << "nothing of it is kept";
  EXPECT_TRUE(runs.names(UnitId(2)));
  EXPECT_FALSE(runs.names(UnitId(3)));
  EXPECT_EQ(runs.of(UnitId(3)), runs.of(UnitId(4)));
  EXPECT_EQ(kept_bytes_per_position(model, runs.all().front(), DType::kBF16), 8 * 2 + 4 + 2 * 4);
  EXPECT_EQ(kept_bytes_per_position(model, runs.all().front(), DType::kF32), 8 * 4 + 4 + 2 * 4);
}

// Resident tensors join no units, and are counted once, where they begin.
TEST(SharedInputGroups, LeaveResidentTensorsOut) {
  ModelSpec model = fakes::make_small_model(4, false);
  const CarryTensorSpec wide = {.elements_per_position = 3, .wide = true, .resident = true};
  CarryTensorSpec passing = wide;
  passing.passes = 1;
  model.units[1].carry_out = {{8}, wide};
  model.units[2].carry_out = {{8}, passing, {.elements_per_position = 2, .resident = true}};
  model.units[3].carry_out = {{.elements_per_position = 8, .running = true}, passing};
  validate_model_spec(model);
  EXPECT_EQ(runs_of(model), "1: 1 to 1; 2: 2 to 2; 3: 3 to 3; 4: 5 to 5; ");
  EXPECT_EQ(kept_bytes_per_position(model, *SharedInputGroups(model).of(UnitId(2)), DType::kBF16),
            8 * 2);
  EXPECT_EQ(resident_bytes_per_position(model, DType::kBF16), 3 * 4 + 2 * 2);
}

// Results lie behind the inputs, each at a multiple of 16 bytes per position, in the units that
// backward runs; the rest of the group is as before.
TEST(SharedInputGroups, KeepResultsOfUnitsThatRunBackward) {
  ModelSpec model = fakes::make_small_model(3, false);
  for (size_t u = 0; u < 2; ++u) {
    for (ParamSpec& parameter : model.units[u].parameters) parameter.frozen = true;
  }
  for (const size_t u : {1, 2}) {
    model.units[u].carry_out.front().elements_per_position = 5;
    model.units[u].results = {
        {.elements_per_position = 5},
        {.elements_per_position = 3, .wide = true, .kept_from = KeptResults::kHeads},
        {.elements_per_position = 7, .kept_from = KeptResults::kMlp}};
  }
  validate_model_spec(model);
  const SharedInputGroups runs(model, KeptResults::kHeads);
  EXPECT_FALSE(runs.of(UnitId(1))->keeps_results()) << "nothing below it is trained";
  EXPECT_FALSE(runs.of(UnitId(3))->keeps_results()) << "it has none";
  const SharedInputGroup run = *runs.of(UnitId(2));
  EXPECT_EQ(run.results, KeptResults::kHeads);
  EXPECT_EQ(input_bytes_per_position(model, run, DType::kBF16), 5 * 2);
  EXPECT_EQ(kept_bytes_per_position(model, run, DType::kBF16), 16 + 16 + 3 * 4);
  EXPECT_EQ(kept_bytes_per_position(model, run, DType::kF32), 32 + 32 + 3 * 4);
  EXPECT_FALSE(SharedInputGroups(model).of(UnitId(2))->keeps_results())
      << "unless the plan keeps them";
  const SharedInputGroups less(model, KeptResults::kAttention), all(model, KeptResults::kMlp);
  EXPECT_EQ(kept_bytes_per_position(model, *less.of(UnitId(2)), DType::kBF16), 16 + 5 * 2);
  EXPECT_EQ(kept_bytes_per_position(model, *all.of(UnitId(2)), DType::kBF16), 16 + 16 + 16 + 7 * 2);
}

std::string problem(size_t unit, const std::vector<CarryTensorSpec>& carry) {
  ModelSpec model = fakes::make_small_model(2, false);
  model.units[0].carry_out = {{8}, {.elements_per_position = 8, .running = true}};
  model.units[unit].carry_out = carry;
  try {
    validate_model_spec(model);
  } catch (const CheckFailure& error) {
    return error.what();
  }
  return "accepted";
}

// A carry whose tensors cannot pass as declared is refused.
TEST(ModelSpec, RefusesCarriesThatCannotPass) {
  const auto expect = [](size_t unit, const std::vector<CarryTensorSpec>& carry,
                         const std::string& part) {
    const std::string text = problem(unit, carry);
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  const CarryTensorSpec passing = {.elements_per_position = 8, .passes = 0};
  EXPECT_EQ(problem(1, {passing}), "accepted");
  expect(0, {passing}, "carry tensor 0 of unit embedding passes tensor 0 of 0");
  expect(1, {{.elements_per_position = 8, .passes = 2}}, "passes tensor 2 of 2");
  expect(1, {{.elements_per_position = 8, .passes = 1}}, "passes, and is running");
  expect(1, {{.elements_per_position = 8, .passes = 0, .running = true}}, "passes, and is running");
  expect(1, {{.elements_per_position = 8, .passes = 0, .resident = true}},
         "is not like the tensor that it passes");
  expect(1, {{.elements_per_position = 8, .running = true, .resident = true}},
         "is running, and resident");
  expect(1, {{.elements_per_position = 9, .passes = 0}}, "is not like the tensor that it passes");
  expect(1, {{.elements_per_position = 8, .wide_gradient = true, .passes = 0}},
         "is not like the tensor that it passes");
  expect(1, {passing, passing}, "carry tensor 1 of unit block.0 passes another's tensor");
  expect(2, {{.elements_per_position = 8, .running = true}}, "is running, and the last unit's");
}

}  // namespace
}  // namespace longshore
