// Units merged by policy: the resulting units, and results with the same bits.
#include "model/parameters/unit_cut.h"

#include <gtest/gtest.h>

#include "base/errors.h"
#include "tests/fakes/specs.h"

namespace longshore {
namespace {

const std::vector<std::string> kClasses = {"Embedding", "Layer", "Layer", "Layer", "Head"};

std::string names(const ModelSpec& model, const UnitPolicy& policy) {
  std::string text;
  for (const UnitSpec& unit : merge_units(model, group_units(model, kClasses, policy)).units) {
    text += (text.empty() ? "" : " ") + unit.name;
  }
  return text;
}

std::string problem(const ModelSpec& model, const UnitPolicy& policy) {
  try {
    group_units(model, kClasses, policy);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "accepted";
}

// The policy decides which units are merged.
TEST(UnitGroups, FollowThePolicy) {
  const ModelSpec model = fakes::make_small_model(3, false);
  using Kind = UnitPolicy::Kind;
  EXPECT_EQ(names(model, {}), "embedding block.0 block.1 block.2 head");
  EXPECT_EQ(names(model, {.kind = Kind::kClasses, .classes = {"Layer"}, .groups = {}}),
            "embedding block.0 block.1 block.2 head");
  EXPECT_EQ(names(model, {.kind = Kind::kClasses, .classes = {"Embedding"}, .groups = {}}),
            "embedding block.0..head");
  // A block has 22208 parameters, the embedding 16448.
  EXPECT_EQ(
      names(model,
            {.kind = Kind::kMinParameters, .classes = {}, .min_parameters = 40000, .groups = {}}),
      "embedding..block.1 block.2..head");
  EXPECT_EQ(names(model, {.kind = Kind::kGroups,
                          .classes = {},
                          .groups = {{"block.1", "block.0"}, {"block.2", "head"}}}),
            "embedding block.0..block.1 block.2..head");
}

// Merging keeps every parameter and every tie.
TEST(UnitGroups, KeepEveryParameterAndTies) {
  const ModelSpec model = fakes::make_small_model(3, true);
  const UnitPolicy apart{
      .kind = UnitPolicy::Kind::kGroups, .classes = {}, .groups = {{"embedding", "block.0"}}};
  const ModelSpec merged = merge_units(model, group_units(model, kClasses, apart));
  EXPECT_EQ(merged.parameter_elements(), model.parameter_elements());
  EXPECT_EQ(merged.units.back().tied, (std::vector<ParamRef>{{UnitId(0), 0}}));
  const UnitPolicy together{.kind = UnitPolicy::Kind::kClasses, .classes = {}, .groups = {}};
  const ModelSpec one = merge_units(model, group_units(model, kClasses, together));
  ASSERT_EQ(one.units.size(), 1u);
  EXPECT_TRUE(one.units[0].tied.empty()) << "it owns what the head tied";
}

// A merged unit passes the tensors that all of its members pass, and recomputes from its input.
TEST(UnitGroups, KeepWhatPassesThroughAllMembers) {
  ModelSpec model = fakes::make_small_model(5, false);
  const CarryTensorSpec sum = {.elements_per_position = 1, .wide = true, .running = true};
  model.units[1].carry_out = {{8}, {9}, sum};
  model.units[2].carry_out = {
      {.elements_per_position = 9, .passes = 1}, sum, {.elements_per_position = 8, .passes = 0}};
  model.units[3].carry_out = {{.elements_per_position = 8, .passes = 2}, {9}, sum};
  validate_model_spec(model);
  const auto carries = [&](const std::vector<std::vector<int>>& groups) {
    std::vector<std::vector<UnitId>> ids;
    for (const std::vector<int>& group : groups) {
      ids.emplace_back();
      for (const int unit : group) ids.back().push_back(UnitId(unit));
    }
    std::string text;
    for (const UnitSpec& unit : merge_units(model, ids).units) {
      for (const CarryTensorSpec& tensor : unit.carry_out) {
        if (tensor.passes) text += "passes " + std::to_string(*tensor.passes) + " ";
        text += tensor.running ? "running " : tensor.passes ? "" : "kept ";
      }
      text += "| ";
    }
    return text;
  };
  EXPECT_EQ(carries({{0}, {1}, {2}, {3}, {4}, {5}, {6}}),
            "kept | kept kept running | passes 1 running passes 0 | passes 2 kept running | kept | "
            "kept | | ");
  EXPECT_EQ(carries({{0}, {1}, {2, 3}, {4}, {5}, {6}}),
            "kept | kept kept kept | passes 0 kept running | kept | kept | | ");
  EXPECT_EQ(carries({{0}, {1, 2}, {3}, {4, 5}, {6}}),
            "kept | kept running kept | passes 2 kept kept | kept | | ");
}

// A wrong policy is refused with what the model has.
TEST(UnitGroups, SayWhatTheModelHas) {
  const ModelSpec model = fakes::make_small_model(3, false);
  using Kind = UnitPolicy::Kind;
  EXPECT_EQ(problem(model, {.kind = Kind::kClasses, .classes = {"Leyer"}, .groups = {}}),
            "fsdp.units: the model has no class \"Leyer\", did you mean \"Layer\"?; it has "
            "\"Embedding\", \"Layer\", \"Head\"");
  EXPECT_NE(problem(model, {.kind = Kind::kGroups, .classes = {}, .groups = {{"block.9"}}})
                .find("the model has no unit \"block.9\""),
            std::string::npos);
  EXPECT_EQ(
      problem(model, {.kind = Kind::kGroups, .classes = {}, .groups = {{"block.0", "block.2"}}}),
      "fsdp.units: a group must hold units that follow each other; between \"block.0\" and "
      "\"block.2\" others are missing");
  EXPECT_EQ(
      problem(model, {.kind = Kind::kGroups, .classes = {}, .groups = {{"block.0"}, {"block.0"}}}),
      "fsdp.units: unit \"block.0\" is named twice");
}

}  // namespace
}  // namespace longshore
