// RouterLoad: counts of the routers' choices, and the loss that balances tokens over experts.
#include "model/units/router_load.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <cmath>

#include "model/decoder/expert_math.h"

namespace longshore {
namespace {

constexpr RouterShape kShape{
    .layers = 3, .experts = 4, .top_k = 2, .balance = 0.5, .watched = true};

// Scores: two sparse layers of [T, experts] scores; layer 1 is dense.
struct Scores {
  at::Tensor first, second;
};

Routing routing_of(const at::Tensor& scores) {
  return route(scores, {.experts = 4, .top_k = 2, .balance = 0.5, .watched = true});
}

void note(RouterLoad& load, int64_t layer, const at::Tensor& scores) {
  const Routing routing = routing_of(scores);
  load.note(layer, dispatch(routing.experts, kShape.experts).starts, routing.of_all);
}

RouterLoad load_of(const Scores& scores, const std::vector<int64_t>& micro_batches) {
  RouterLoad load(kShape, at::kCPU);
  load.begin();
  load.count(true);
  int64_t begin = 0;
  for (const int64_t count : micro_batches) {
    note(load, 0, scores.first.narrow(0, begin, count));
    note(load, 2, scores.second.narrow(0, begin, count));
    begin += count;
  }
  load.count(false);
  note(load, 0, scores.first);  // backward runs it again
  return load;
}

// Computes the loss with the formula of transformers, over both layers' tokens.
at::Tensor written_out(const at::Tensor& scores) {
  const at::Tensor probabilities = at::softmax(scores, 1);
  const at::Tensor chosen = std::get<1>(at::topk(probabilities, 2));
  const at::Tensor mask = at::one_hot(chosen, 4).to(at::kDouble);
  return (mask.mean(0) * probabilities.mean(0).unsqueeze(0)).sum() * 4;
}

class RouterLoads : public testing::Test {
 protected:
  void SetUp() override {
    at::set_num_threads(1);
    at::manual_seed(5);
    scores = {at::randn({9, 4}, at::kDouble), at::randn({9, 4}, at::kDouble)};
    scores.second.select(1, 3).sub_(50.0);  // expert 3 is idle there
    narrow = {scores.first.to(at::kFloat), scores.second.to(at::kFloat)};
  }
  Scores scores, narrow;
};

// The balance loss and its gradient agree with the formula.
TEST_F(RouterLoads, BalanceLossAndItsGradientAreThoseOfTheFormula) {
  const at::Tensor all = at::cat({scores.first, scores.second}).requires_grad_(true);
  at::Tensor loss;
  {
    const at::AutoGradMode on(true);
    loss = written_out(all);
    loss.mul(kShape.balance).backward();
  }
  RouterLoad load = load_of(narrow, {9});
  EXPECT_NEAR(router_statistics(kShape, load.sums()).balance_loss, loss.item<double>(), 1e-6);
  load.balance(load.pooled());
  for (const bool over_all : {true, false}) {
    const MoeSpec moe{.experts = 4,
                      .top_k = 2,
                      .scores = over_all ? RouterScores::kSoftmax : RouterScores::kSoftmaxOfChosen,
                      .balance = kShape.balance};
    const Routing routing = route(narrow.first, moe);
    const at::Tensor got = route_backward(at::zeros({9, 2}), load.gradient(), routing, moe);
    EXPECT_TRUE(at::allclose(got.to(at::kDouble), all.grad().narrow(0, 0, 9), 1e-4, 1e-8))
        << over_all;
  }
}

// Goal: the loss covers the step's tokens, so any micro-batches and ranks give the same bits.
TEST_F(RouterLoads, MicroBatchesAndRanksGiveTheSameBits) {
  RouterLoad whole = load_of(narrow, {9}), cut = load_of(narrow, {2, 6, 1});
  whole.balance(whole.pooled());
  cut.balance(cut.pooled());
  EXPECT_TRUE(at::equal(whole.gradient(), cut.gradient()));
  const Scores one{narrow.first.narrow(0, 0, 4), narrow.second.narrow(0, 0, 4)};
  const Scores other{narrow.first.narrow(0, 4, 5), narrow.second.narrow(0, 4, 5)};
  RouterLoad rank = load_of(one, {4});
  std::vector<double> pairs = rank.pooled();
  const std::vector<double> theirs = load_of(other, {5}).pooled();
  for (size_t i = 0; i < pairs.size(); ++i) pairs[i] += theirs[i];
  rank.balance(pairs);
  EXPECT_TRUE(at::equal(whole.gradient(), rank.gradient()));
}

// The statistics cover sparse layers only.
TEST_F(RouterLoads, FiguresAreOfSparseLayers) {
  const RouterStatistics figures = router_statistics(kShape, load_of(narrow, {4, 5}).sums());
  ASSERT_EQ(figures.load.size(), 2u) << "the dense layer has none";
  int64_t most = 0;
  for (const std::vector<int64_t>& layer : figures.load) {
    int64_t sum = 0;
    for (const int64_t tokens : layer) {
      sum += tokens;
      most = std::max(most, tokens);
    }
    EXPECT_EQ(sum, 18);
  }
  EXPECT_EQ(figures.load[1][3], 0);
  EXPECT_GE(figures.idle, 1);
  EXPECT_DOUBLE_EQ(figures.most, static_cast<double>(most) / 4.5);
  const at::Tensor p = at::softmax(at::cat({scores.first, scores.second}), 1);
  EXPECT_NEAR(figures.entropy, -(p * p.clamp_min(1e-300).log()).sum(1).mean().item<double>(), 1e-5);
}

// Goal: over several steps each correction moves by the rate against its expert's load, as in a
// reference in fp64, and a layer without loads, or with equal ones, keeps its own.
TEST_F(RouterLoads, CorrectionsMoveTowardTheMeanLoad) {
  RouterShape shape = kShape;
  shape.correction_rate = 1e-3;
  std::vector<float> corrections = {0.5F, -0.25F, 0.0F, 0.125F, 1.0F, 2.0F,
                                    3.0F, 4.0F,   0.0F, 0.0F,   0.0F, 0.0F};
  const std::vector<float> start = corrections;
  std::vector<double> reference(start.begin(), start.end());
  for (int step = 0; step < 7; ++step) {
    const Scores moved{narrow.first + at::randn({9, 4}), narrow.second + at::randn({9, 4})};
    const RouterLoad load = load_of(moved, {4, 5});
    move_corrections(shape, load.sums(), corrections);
    for (const int64_t layer : {0, 2}) {
      for (int64_t expert = 0; expert < 4; ++expert) {
        const auto place = static_cast<size_t>(layer * 4 + expert);
        const double mean = 9.0 * 2.0 / 4.0, own = load.sums()[place];
        reference[place] += 1e-3 * (own < mean ? 1.0 : own > mean ? -1.0 : 0.0);
      }
    }
  }
  for (size_t i = 0; i < corrections.size(); ++i) {
    EXPECT_NEAR(corrections[i], reference[i], 1e-6) << i;
    EXPECT_EQ(corrections[i] == start[i], i >= 4 && i < 8) << i;
  }
  const std::vector<double> equal(corrections.size() + 20, 3.0);
  const std::vector<float> before = corrections;
  move_corrections(shape, equal, corrections);
  EXPECT_EQ(corrections, before);
}

// Goal: corrections that are set replace the layer's own, and none are nothing.
TEST_F(RouterLoads, SetCorrectionsAreThoseOfTheirLayer) {
  RouterLoad load(kShape, at::kCPU);
  EXPECT_FALSE(load.correction(1).defined());
  load.set_corrections({0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11});
  EXPECT_TRUE(at::equal(load.correction(1), at::tensor({4.0F, 5.0F, 6.0F, 7.0F})));
}

// Goal: a rank or step without a token has no gradient and no statistics, and no NaN.
TEST_F(RouterLoads, NothingNotedIsNothing) {
  RouterLoad load(kShape, at::kCPU);
  load.begin();
  load.balance(load.pooled());
  EXPECT_TRUE(at::equal(load.gradient(), at::zeros({4})));
  const RouterStatistics figures = router_statistics(kShape, load.sums());
  EXPECT_TRUE(figures.load.empty());
  EXPECT_EQ(figures.balance_loss, 0.0);
}

}  // namespace
}  // namespace longshore
