// The pipeline gives a rule its whole matrices, whichever rank has them.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/errors.h"
#include "offload/optimizer/optimizer_pipeline.h"
#include "pinned/pinned_store.h"
#include "tests/fakes/specs.h"
#include "tests/trainer/muon_rule.h"

namespace longshore {
namespace {

constexpr StateOptions kState = {.format = StateFormat::kSplit,
                                 .compute = DType::kF32,
                                 .drain = DType::kF32,
                                 .regions = kMuonBesideAdamW};

// Returns a unit with a table, a vector, and fused, stacked, alternating and transposed matrices.
ModelSpec matrix_unit() {
  ModelSpec model;
  UnitSpec& unit = model.units.emplace_back();
  unit.id = UnitId(0);
  unit.name = "unit";
  const auto add = [&unit](const char* name, std::vector<int64_t> shape, MatrixForm form = {},
                           bool stacked = false) {
    unit.parameters.push_back(fakes::make_parameter(name, std::move(shape)));
    unit.parameters.back().matrices = std::move(form);
    unit.parameters.back().stacked = stacked;
  };
  add("table", {70, 64}, {.none = true});
  add("norm", {64});
  add("fused", {96, 64}, {.outputs = {32, 48, 16}});
  add("experts", {5, 32, 24}, {.outputs = {1, 1}}, true);
  add("transposed", {24, 48}, {.transposed = true, .outputs = {16, 32}});
  add("down", {33, 31});
  keep_matrices_whole(model, *muon_beside_adamw());
  return model;
}

float value_at(const std::string& name, int64_t element, int64_t update) {
  const auto key = static_cast<double>(name.size() + 1);
  return static_cast<float>(
      0.1 *
      std::sin(key * (0.37 * static_cast<double>(element) + 1.9 * static_cast<double>(update)) +
               0.001 * static_cast<double>(element % 97 * (update + 1))));
}

using Masters = std::map<std::string, std::vector<float>>;

// Updates the unit on one rank of several, and adds its masters.
void update_on(Rank rank, int32_t ranks, int64_t updates, Masters& masters) {
  const ModelSpec model = matrix_unit();
  const std::vector<FlatLayout> layouts = make_layouts(model, ranks, DType::kF32);
  WorkerPool pool(3);
  PinnedStore store(layouts, kState, false, &pool);
  HostGradients gradients(layouts, {.dtype = DType::kF32}, false, pool);
  OptimizerPipeline pipeline(&store, &gradients, layouts, model, rank, muon_beside_adamw(), &pool);
  const auto visit = [&](const auto& use) {
    const auto state = store.state(UnitId(0));
    for (const ShardPiece& piece : layouts[0].trained_pieces(rank)) {
      use(model.units[0].parameters[static_cast<size_t>(piece.parameter)], piece,
          state->segment(piece.segment));
    }
  };
  std::vector<float> values;
  visit([&](const ParamSpec& parameter, const ShardPiece& piece, const StateSpans& state) {
    values.clear();
    for (int64_t i = 0; i < piece.elements; ++i) {
      values.push_back(value_at(parameter.name, piece.parameter_begin + i, 0));
    }
    write_values(state, piece.shard_begin, values);
  });
  for (int64_t update = 1; update <= updates; ++update) {
    visit([&](const ParamSpec& parameter, const ShardPiece& piece, const StateSpans&) {
      const auto to = as_span<float>(gradients.segment(UnitId(0), piece.segment));
      for (int64_t i = 0; i < piece.elements; ++i) {
        to[static_cast<size_t>(piece.shard_begin + i)] =
            value_at(parameter.name, piece.parameter_begin + i, update);
      }
    });
    pipeline.stage({.update = update, .lr = 0.02});
    pipeline.flush();
  }
  visit([&](const ParamSpec& parameter, const ShardPiece& piece, const StateSpans& state) {
    std::vector<float>& whole = masters[parameter.name];
    whole.resize(static_cast<size_t>(parameter.elements()));
    read_values(state, piece.shard_begin,
                std::span(whole).subspan(static_cast<size_t>(piece.parameter_begin),
                                         static_cast<size_t>(piece.elements)));
  });
}

Masters updated_on(int32_t ranks, int64_t updates) {
  Masters masters;
  for (int32_t rank = 0; rank < ranks; ++rank) update_on(Rank(rank), ranks, updates, masters);
  return masters;
}

// The bits of all parameters are the same on any number of ranks.
TEST(MatrixUpdates, HaveTheSameBitsOnAnyNumberOfRanks) {
  const Masters one = updated_on(1, 3);
  ASSERT_EQ(one.size(), 6u);
  for (const int32_t ranks : {2, 3, 8}) EXPECT_EQ(updated_on(ranks, 3), one) << ranks;
}

// After the first update each matrix has moved by a nearly orthogonal one: its rows, or columns if
// they are fewer, have norms around the rate. Only a rule that saw the right elements does that.
TEST(MatrixUpdates, MoveEachMatrixByANearlyOrthogonalOne) {
  const Masters masters = updated_on(3, 1);
  const ModelSpec model = matrix_unit();
  size_t matrices = 0;
  for (const ParamSpec& parameter : model.units[0].parameters) {
    for (const MatrixPlace& place : parameter.matrix_places()) {
      ++matrices;
      double squares = 0.0;
      for (int64_t row = 0; row < place.rows; ++row) {
        for (int64_t column = 0; column < place.columns; ++column) {
          const int64_t element = place.element(row, column);
          const double moved = masters.at(parameter.name)[static_cast<size_t>(element)] -
                               value_at(parameter.name, element, 0);
          squares += moved * moved;
        }
      }
      const double tall = static_cast<double>(place.rows) / static_cast<double>(place.columns);
      const double rate = 0.02 * std::sqrt(std::max(1.0, tall));
      // Newton-Schulz brings singular values near one; a matrix has as many as its shorter side.
      EXPECT_LT(std::sqrt(squares), 1.3 * rate * std::sqrt(std::min(place.rows, place.columns)));
      EXPECT_GT(std::sqrt(squares), 0.5 * rate) << parameter.name;
    }
  }
  EXPECT_EQ(matrices, 3u + 10 + 2 + 1);
}

// A rule with a seed, as one of matrices has whose moments are narrow.
class RoundedRule final : public UpdateRule {
 public:
  explicit RoundedRule(uint64_t seed) : seed_(seed) {}
  std::span<const StateRegion> regions() const override { return MuonRule::kRegions; }
  uint64_t seed() const override { return seed_; }
  int32_t group_of(const ParamSpec&) const override { return 0; }
  void stage(const StepUpdate&) override {}
  void apply(int32_t, const UpdateSlice&) const override {}

 private:
  uint64_t seed_;
};

// The seed of rounding is the run's, whichever of two rules rounds.
TEST(MatrixUpdates, EitherRuleHasTheSeed) {
  const auto seed_of = [](uint64_t elements, uint64_t matrices) {
    AdamWOptions options;
    options.seed = elements;
    return TwoRules(std::make_unique<AdamWRule>(options), std::make_unique<RoundedRule>(matrices),
                    kMuonBesideAdamW, [](const ParamSpec&) { return true; })
        .seed();
  };
  EXPECT_EQ(seed_of(7, 0), 7u);
  EXPECT_EQ(seed_of(0, 7), 7u);
  EXPECT_EQ(seed_of(7, 7), 7u);
  EXPECT_THROW(seed_of(7, 8), CheckFailure);
}

// A rule for elements alone marks nothing, and a rule for matrices is refused where there are none.
TEST(MatrixUpdates, OnlyMatricesAreMarked) {
  const ModelSpec model = matrix_unit();
  for (const ParamSpec& parameter : model.units[0].parameters) {
    EXPECT_EQ(parameter.whole_matrices, !parameter.matrix_places().empty()) << parameter.name;
  }
  ModelSpec plain = model;
  for (ParamSpec& parameter : plain.units[0].parameters) parameter.whole_matrices = false;
  const ModelSpec before = plain;
  keep_matrices_whole(plain, AdamWRule(AdamWOptions{}));
  EXPECT_EQ(plain, before);
  EXPECT_THROW(keep_matrices_whole(plain, MuonRule()), ConfigError);
}

// A rule of whole matrices that keeps a region in the given format.
class RuleOfFormat final : public UpdateRule {
 public:
  explicit RuleOfFormat(MomentFormat format)
      : regions_{{{"momentum_buffer", Moment::kFirst, format}}} {}
  std::span<const StateRegion> regions() const override { return regions_; }
  int32_t group_of(const ParamSpec&) const override { return 0; }
  UpdateGrain grain_of(const ParamSpec& parameter) const override {
    return parameter.matrix_places().empty() ? UpdateGrain::kElements : UpdateGrain::kMatrices;
  }
  void stage(const StepUpdate&) override {}
  void apply(int32_t, const UpdateSlice&) const override {}

 private:
  std::array<StateRegion, 1> regions_;
};

// Blocks of 8-bit codes would share scales between matrices, so such a rule is refused by name.
TEST(MatrixUpdates, RegionsInEightBitsAreRefused) {
  ModelSpec model = matrix_unit();
  EXPECT_NO_THROW(keep_matrices_whole(model, RuleOfFormat(MomentFormat::kF32)));
  EXPECT_NO_THROW(keep_matrices_whole(model, RuleOfFormat(MomentFormat::kBF16)));
  try {
    keep_matrices_whole(model, RuleOfFormat(MomentFormat::kInt8));
    ADD_FAILURE() << "taken";
  } catch (const ConfigError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("'fused' is updated as whole matrices"), std::string::npos) << text;
    EXPECT_NE(text.find("\"momentum_buffer\" for it in 8 bits"), std::string::npos) << text;
    EXPECT_NE(text.find("keep it in fp32 or bf16"), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace longshore
