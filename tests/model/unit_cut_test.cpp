// Blocks cut in two: which units that makes, and that the numbers stay the same bits.
#include "model/unit_cut.h"

#include <gtest/gtest.h>

#include "base/errors.h"
#include "tests/model/golden_case.h"
#include "tests/model/plain_runner.h"

namespace longshore {
namespace {

using Kind = UnitPolicy::Kind;

UnitPolicy by_hand(std::vector<std::vector<std::string>> groups) {
  return {.kind = Kind::kGroups, .classes = {}, .groups = std::move(groups)};
}

std::string names(const ModelSpec& model) {
  std::string text;
  for (const UnitSpec& unit : model.units) text += (text.empty() ? "" : " ") + unit.name;
  return text;
}

std::string parameters(const ModelSpec& model) {
  std::string text;
  for (const UnitSpec& unit : model.units) {
    for (const ParamSpec& parameter : unit.parameters) text += parameter.name + "\n";
  }
  return text;
}

TEST(UnitCut, FollowsThePolicy) {
  const GoldenCase golden = read_golden_case("llama-tied");
  const ModelSpec whole = make_model_spec(golden.arch, golden.file_tensors());
  const auto made = [&](const UnitPolicy& policy) {
    const ModelSpec cut = cut_units(golden.arch, whole, cut_for(policy, golden.arch));
    EXPECT_EQ(parameters(cut), parameters(whole));
    EXPECT_EQ(cut.units.back().borrowed, whole.units.back().borrowed);
    const auto classes = unit_classes(golden.arch, cut);
    return names(merge_units(cut, group_units(cut, classes, policy)));
  };
  EXPECT_EQ(made({}), names(whole));
  EXPECT_EQ(made({.kind = Kind::kHalf, .classes = {}, .groups = {}}),
            "embedding block.0.attention block.0.mlp block.1.attention block.1.mlp head");
  EXPECT_EQ(made(by_hand({{"block.1.mlp", "head"}})),
            "embedding block.0 block.1.attention block.1.mlp..head");
  EXPECT_EQ(made(by_hand({{"block.0.mlp", "block.1.attention"}})),
            "embedding block.0.attention block.0.mlp..block.1.attention block.1.mlp head");
  EXPECT_THROW(made(by_hand({{"block.0.mlp", "block.1"}, {"block.1.mlp"}})), ConfigError)
      << "block.1 is both whole and cut";
  EXPECT_THROW(made(by_hand({{"block.7.mlp"}})), ConfigError);
}

class CutBits : public testing::TestWithParam<std::string> {};

// Goal: a block and its two halves give the same bits, in every family, fp32 and bf16, with graphs
// kept or made again.
TEST_P(CutBits, HalvesGiveTheBitsOfBlocks) {
  const GoldenCase golden = read_golden_case(GetParam());
  const ModelSpec spec = make_model_spec(golden.arch, golden.file_tensors());
  const DecoderModel whole(golden.arch, spec);
  const UnitPolicy halves{.kind = Kind::kHalf, .classes = {}, .groups = {}};
  const DecoderModel cut(golden.arch, spec, cut_for(halves, golden.arch));
  std::vector<std::vector<int64_t>> tokens, targets;
  for (size_t row = 0; row < 3; ++row) {
    tokens.push_back(golden.rows.at(row).tokens);
    targets.push_back(golden.rows.at(row).targets);
  }
  const std::vector<MicroBatch> batches{PlainRunner::make_batch(tokens, targets)};
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const PlainRunner expected(whole, golden.weights, dtype), halved(cut, golden.weights, dtype);
    EXPECT_TRUE(at::equal(halved.logits(batches[0]), expected.logits(batches[0])));
    const auto once = expected.gradients(batches, 0.1, PlainRunner::Recompute::kUnit);
    for (const auto recompute : {PlainRunner::Recompute::kUnit, PlainRunner::Recompute::kNone}) {
      const auto twice = halved.gradients(batches, 0.1, recompute);
      EXPECT_EQ(twice.loss_sum, once.loss_sum);
      ASSERT_EQ(twice.gradients.size(), once.gradients.size());
      for (const auto& [name, gradient] : once.gradients) {
        EXPECT_TRUE(at::equal(gradient, twice.gradients.at(name))) << name << " " << dtype;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Golden, CutBits, testing::ValuesIn(golden_case_names()),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace longshore
