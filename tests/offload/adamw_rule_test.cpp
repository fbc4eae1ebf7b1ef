// Parameter groups: the scalars of each parameter, and groups that match nothing.
#include "offload/optimizer/adamw.h"

#include <gtest/gtest.h>

#include "base/errors.h"
#include "tests/fakes/specs.h"
#include "tests/offload/adamw_slices.h"

namespace longshore {
namespace {

using fakes::AdamWState;
using fakes::Form;

AdamWOptions options_with_groups() {
  return {.weight_decay = 0.1,
          .groups = {{{"*.norm", "*.bias"}, 1.0, 0.0}, {{"head.*"}, 0.25, 0.5}, {{"*"}, 2.0, {}}},
          .seed = 0};
}

// Returns the value after one update from 1 with a zero gradient, which only decay moves.
float after_decay(const AdamWRule& rule, const ParamSpec& parameter) {
  AdamWState state(Form::kMaster, DType::kF32, {1.0f});
  state.set_gradient({0.0f});
  rule.apply(rule.group_of(parameter), state.slice());
  return state.master[0];
}

// Each group has its own learning rate and decay.
TEST(AdamWRule, GivesEachGroupItsRateAndDecay) {
  AdamWRule rule(options_with_groups());
  rule.stage({.update = 1, .lr = 0.5, .clip_scale = 1.0});
  const auto keep = [](double lr, double decay) { return static_cast<float>(1.0 - lr * decay); };
  EXPECT_EQ(after_decay(rule, fakes::make_parameter("block.0.norm", {64})), 1.0f);
  EXPECT_EQ(after_decay(rule, fakes::make_parameter("head.norm", {64})), 1.0f) << "first match";
  EXPECT_EQ(after_decay(rule, fakes::make_parameter("head.weight", {8, 8})), keep(0.125, 0.5));
  EXPECT_EQ(after_decay(rule, fakes::make_parameter("head.scale", {8})), keep(0.125, 0.5))
      << "a decay of the group's own holds for vectors too";
  EXPECT_EQ(after_decay(rule, fakes::make_parameter("block.0.up", {8, 8})), keep(1.0, 0.1));
  EXPECT_EQ(after_decay(rule, fakes::make_parameter("block.0.scale", {8})), 1.0f) << "a vector";
}

// Without groups an update uses the options' scalars.
TEST(AdamWRule, WithoutGroupsIsTheStepOfItsOptions) {
  const AdamWOptions options = {.weight_decay = 0.1, .seed = 0};
  AdamWRule rule(options);
  rule.stage({.update = 3, .lr = 1e-2, .clip_scale = 0.5});
  AdamWState by_rule(Form::kSplitBf16, DType::kBF16, fakes::random_values(1000, 1));
  by_rule.set_gradient(fakes::random_values(1000, 2));
  AdamWState by_step = by_rule;
  rule.apply(rule.group_of(fakes::make_parameter("a", {10, 100})), by_rule.slice());
  adamw_step(by_step.slice(), make_adamw_scalars(options, 3, 1e-2, 0.5, true));
  EXPECT_TRUE(same_bits(by_rule, by_step));
}

// Globs that match no trained parameter are refused.
TEST(AdamWRule, RefusesGlobsThatNameNothingTrained) {
  ModelSpec model = fakes::make_small_model(2, false);
  try {
    check_groups(options_with_groups(), model);
    FAIL() << "no parameter is a bias";
  } catch (const ConfigError& error) {
    ASSERT_EQ(error.problems().size(), 1u);
    EXPECT_EQ(error.problems()[0],
              "optimizer.groups: '*.bias' of group 1 matches no parameter that is trained");
  }
  AdamWOptions options = {.groups = {{{"head.*"}, 0.5, {}}}, .seed = 0};
  EXPECT_NO_THROW(check_groups(options, model));
  for (ParamSpec& parameter : model.units.back().parameters) parameter.frozen = true;
  EXPECT_THROW(check_groups(options, model), ConfigError);
}

// Goal: a group that has no effect, because earlier ones have all of its parameters, is refused.
TEST(AdamWRule, RefusesAGroupThatEarlierOnesHideCompletely) {
  const ModelSpec model = fakes::make_small_model(2, false);
  AdamWOptions options = {.groups = {{{"*"}, 0.5, {}}, {{"head.*"}, 0.25, {}}}, .seed = 0};
  try {
    check_groups(options, model);
    FAIL() << "the second group has no parameter";
  } catch (const ConfigError& error) {
    ASSERT_EQ(error.problems().size(), 1u);
    EXPECT_TRUE(error.problems()[0].starts_with("optimizer.groups: group 2 has no parameter"));
  }
  std::swap(options.groups[0], options.groups[1]);
  EXPECT_NO_THROW(check_groups(options, model));
}

}  // namespace
}  // namespace longshore
