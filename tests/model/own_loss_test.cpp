// Goal: a loss is an object. One that no product file knows, with a column, sums and figures of its
// own, runs in a whole head and in one in pieces. tests/trainer/own_loss_run_test.cpp runs it from
// rows of data on.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <utility>

#include "model/families/families.h"
#include "model/losses/loss.h"
#include "model/parameters/model_spec.h"
#include "tests/model/plain_runner.h"
#include "tests/model/priced_loss.h"

namespace longshore {
namespace {

MicroBatch batch_with(ColumnId column, const std::vector<float>& values) {
  std::vector<int64_t> tokens, targets;
  for (int64_t i = 0; i < std::ssize(values); ++i) {
    tokens.push_back(i * 7919 % 300);
    targets.push_back(i * 31 % 300);
  }
  MicroBatch batch = PlainRunner::make_batch({tokens}, {targets});
  ColumnValues columns;
  columns[column] = values;
  batch.columns = std::make_shared<const ColumnValues>(std::move(columns));
  return batch;
}

// Prices as weights of the plain loss give the same loss and gradients.
TEST(OwnLoss, RunsInAnyHead) {
  const ArchSpec arch =
      read_arch_spec(Json::parse(R"({"model_type": "llama", "vocab_size": 300, "hidden_size": 64,
                      "intermediate_size": 96, "num_hidden_layers": 1,
                      "num_attention_heads": 4, "num_key_value_heads": 2})"),
                     "config.json");
  std::vector<float> prices;
  for (int i = 0; i < 40; ++i) prices.push_back(0.25f * static_cast<float>(i % 5) + 0.5f);
  MicroBatch own = batch_with(kAdvantageColumn, prices);
  own.loss = std::make_shared<PricedLoss>();
  const MicroBatch weighted = batch_with(kWeightColumn, prices);
  at::manual_seed(3);
  std::map<std::string, at::Tensor> weights;
  for (const int64_t rows : {0, 128}) {
    const DecoderModel model(arch, make_model_spec(arch, {}),
                             {.halves = {}, .embedding_rows = 0, .head_rows = rows});
    for (const UnitSpec& unit : model.spec().units) {
      for (const ParamSpec& parameter : unit.parameters) {
        if (!weights.contains(parameter.name)) {
          weights[parameter.name] = at::randn(parameter.shape) * 0.1 + 0.05;
        }
      }
    }
    const PlainRunner runner(model, weights, at::kFloat);
    const auto one = runner.gradients({own}, 0.1, PlainRunner::Recompute::kUnit);
    const auto two = runner.gradients({weighted}, 0.1, PlainRunner::Recompute::kUnit);
    EXPECT_EQ(one.loss_sum, two.loss_sum);
    EXPECT_EQ(one.trained, 40);
    for (const auto& [name, gradient] : one.gradients) {
      EXPECT_TRUE(at::allclose(gradient, two.gradients.at(name), 1e-5, 1e-7)) << name;
    }
  }
}

// Its sums of micro-batches and ranks add up to its figures; a batch without its column is refused.
TEST(OwnLoss, HasSumsAndFiguresOfItsOwn) {
  const PricedLoss loss;
  const std::array<int64_t, 2> starts = {0, 2};
  ColumnValues columns;
  columns[kAdvantageColumn] = {0.5f, 2.0f};
  const ScoredPositions positions{.places = at::arange(2),
                                  .losses = at::ones({2}),
                                  .document_starts = starts,
                                  .columns = columns};
  LossResult result;
  loss.apply(positions, result);
  LossSum sum = result;
  sum += result;
  EXPECT_EQ(sum.loss, 5.0);
  const FigureValues figures = loss.figures(sum);
  ASSERT_NE(figure_of(figures, "price"), nullptr);
  EXPECT_EQ(*figure_of(figures, "price"), 1.25);
  columns[kAdvantageColumn].clear();
  EXPECT_ANY_THROW(loss.apply(positions, result));
}

// A column has a value for each row of its axis: of all tokens where two of three are trained.
TEST(OwnLoss, NeedsAValueForEachRowOfAColumnsAxis) {
  const std::array<int64_t, 3> starts = {0, 2, 3};
  ColumnValues columns;
  const ScoredPositions positions{.places = at::arange(2),
                                  .losses = at::ones({2}),
                                  .document_starts = starts,
                                  .columns = columns};
  const Loss loss(traits_of(LossKind::kSft), {kPositionColumn, kDesirableColumn});
  columns.get<kPositionColumn>() = {0, 1, 0};
  columns.get<kDesirableColumn>() = {1, 0};
  LossResult result;
  loss.apply(positions, result);
  EXPECT_EQ(result.loss, 2.0);
  columns.get<kPositionColumn>().pop_back();
  EXPECT_ANY_THROW(loss.apply(positions, result));
}

}  // namespace
}  // namespace longshore
