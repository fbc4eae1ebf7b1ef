// The losses over pairs, against closed forms, numeric derivatives and their limits.
#include "model/losses/preference_loss.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

namespace longshore {
namespace {

const std::vector<LossKind> kLosses = {LossKind::kDpo, LossKind::kDpoRobust, LossKind::kIpo,
                                       LossKind::kSimpo, LossKind::kOrpo};

PreferenceOptions options_of(LossKind loss) {
  const bool smoothed = loss != LossKind::kIpo && loss != LossKind::kOrpo;
  return {.loss = loss, .beta = 0.3, .label_smoothing = smoothed ? 0.1 : 0.0, .gamma = 0.5};
}

// The derivatives agree with central differences, for likely and unlikely answers of both lengths.
TEST(PreferenceLoss, HasTheDerivativesThatDifferencesShow) {
  constexpr double kStep = 1e-6;
  for (const LossKind loss : kLosses) {
    const PreferenceOptions options = options_of(loss);
    for (const double logp : {-0.4, -3.0, -25.0, -180.0}) {
      for (const double other : {-0.7, -12.0, -90.0}) {
        const AnswerScore chosen = {.logp = logp, .tokens = 7, .reference = logp * 0.9 - 1.0};
        const AnswerScore rejected = {.logp = other, .tokens = 3, .reference = other * 1.1 + 0.2};
        const PairLoss pair = pair_loss(options, chosen, rejected);
        const auto loss_at = [&](double by_chosen, double by_rejected) {
          AnswerScore c = chosen, d = rejected;
          c.logp += by_chosen;
          d.logp += by_rejected;
          return pair_loss(options, c, d).loss;
        };
        const double by_chosen = (loss_at(kStep, 0) - loss_at(-kStep, 0)) / (2 * kStep);
        const double by_rejected = (loss_at(0, kStep) - loss_at(0, -kStep)) / (2 * kStep);
        const auto tolerance = [](double value) { return 1e-6 * std::max(1.0, std::abs(value)); };
        EXPECT_NEAR(pair.by_chosen, by_chosen, tolerance(by_chosen)) << logp << " " << other;
        EXPECT_NEAR(pair.by_rejected, by_rejected, tolerance(by_rejected)) << logp << " " << other;
      }
    }
  }
}

// Numbers that were computed from the formulas of the papers by hand.
TEST(PreferenceLoss, AgreesWithTheFormulas) {
  const AnswerScore chosen = {.logp = -2.0, .tokens = 2, .reference = -3.0};
  const AnswerScore rejected = {.logp = -6.0, .tokens = 4, .reference = -5.0};
  const auto of = [&](PreferenceOptions options) { return pair_loss(options, chosen, rejected); };
  // z = 0.5 (1 - -1) = 1.
  const double right = std::log(1.0 + std::exp(-1.0)), wrong = std::log(1.0 + std::exp(1.0));
  const PairLoss dpo = of({.loss = LossKind::kDpo, .beta = 0.5});
  EXPECT_NEAR(dpo.loss, right, 1e-14);
  EXPECT_NEAR(dpo.chosen_reward, 0.5, 1e-14);
  EXPECT_NEAR(dpo.rejected_reward, -0.5, 1e-14);
  EXPECT_NEAR(of({.loss = LossKind::kDpo, .beta = 0.5, .label_smoothing = 0.2}).loss,
              0.8 * right + 0.2 * wrong, 1e-14);
  EXPECT_NEAR(of({.loss = LossKind::kDpoRobust, .beta = 0.5, .label_smoothing = 0.2}).loss,
              (0.8 * right - 0.2 * wrong) / 0.6, 1e-14);
  // 1 / 2 - -1 / 4 - 1 / (2 * 0.5) = -0.25.
  EXPECT_NEAR(of({.loss = LossKind::kIpo, .beta = 0.5}).loss, 0.0625, 1e-14);
  // beta (-1 - -1.5) - gamma = 2 * 0.5 - 0.7.
  const PairLoss simpo = of({.loss = LossKind::kSimpo, .beta = 2.0, .gamma = 0.7});
  EXPECT_NEAR(simpo.loss, std::log(1.0 + std::exp(-0.3)), 1e-14);
  EXPECT_NEAR(simpo.chosen_reward, -2.0, 1e-14);
  const auto odds = [](double p) { return p / (1.0 - p); };
  const double ratio = odds(std::exp(-1.0)) / odds(std::exp(-1.5));
  const PairLoss orpo = of({.loss = LossKind::kOrpo, .beta = 0.5});
  EXPECT_NEAR(orpo.loss, 1.0 - 0.5 * std::log(ratio / (1.0 + ratio)), 1e-14);
  EXPECT_NEAR(orpo.rejected_reward, -0.75, 1e-14);
}

// The SFT term adds the cross entropy of the chosen answer's tokens, divided by the step's mean
// length: summed over pairs of unequal lengths and divided by their number it is the mean over all
// chosen tokens. The derivative is that which differences show.
TEST(PreferenceLoss, OfTheSftTermIsTheMeanOverAllChosenTokens) {
  const AnswerScore longer = {.logp = -6.0, .tokens = 5}, shorter = {.logp = -3.0, .tokens = 1};
  constexpr double kWeight = 0.5, kMeanTokens = 3.0;
  double sum = 0.0;
  for (const AnswerScore& chosen : {longer, shorter}) {
    PairLoss pair = {.loss = 2.0, .by_chosen = 0.25, .by_rejected = 0.75};
    add_sft(kWeight, kMeanTokens, chosen, pair);
    sum += pair.loss - 2.0;
    EXPECT_NEAR(pair.by_chosen, 0.25 - kWeight / kMeanTokens, 1e-15);
    EXPECT_EQ(pair.by_rejected, 0.75);
  }
  EXPECT_NEAR(sum / 2.0, kWeight * (6.0 + 3.0) / (5.0 + 1.0), 1e-14);
}

// A loss with the SFT term reads the step's mean length from its column, and its figure is the mean
// over chosen tokens without the weight. Without the weight there is neither.
TEST(PreferenceLoss, WithTheSftTermReportsIt) {
  const std::array<int64_t, 3> starts = {0, 3, 5};
  ColumnValues columns;
  columns.get<kReferenceLogpColumn>() = {-2.0, -2.0};
  columns.get<kChosenTokensColumn>() = {4.0};
  const ScoredPositions positions{.places = at::arange(5),
                                  .losses = at::tensor({0.5f, 1.0f, 1.5f, 2.0f, 0.25f}),
                                  .document_starts = starts,
                                  .columns = columns};
  const PreferenceLoss plain(PreferenceOptions{.loss = LossKind::kDpo, .beta = 0.3});
  const PreferenceLoss with(
      PreferenceOptions{.loss = LossKind::kDpo, .beta = 0.3, .sft_weight = 0.5});
  LossResult one, two;
  const at::Tensor before = plain.apply(positions, one), after = with.apply(positions, two);
  EXPECT_NEAR(two.loss - one.loss, 0.5 * 3.0 / 4.0, 1e-14);
  EXPECT_TRUE(at::allclose(after - before, at::tensor({0.125f, 0.125f, 0.125f, 0.0f, 0.0f})));
  EXPECT_EQ(figure_of(plain.figures(one), "sft_loss"), nullptr);
  const FigureValues figures = with.figures(two);
  ASSERT_NE(figure_of(figures, "sft_loss"), nullptr);
  EXPECT_NEAR(*figure_of(figures, "sft_loss"), 3.0 / 3.0, 1e-14);
  EXPECT_NE(std::ranges::find(with.columns(), kChosenTokensColumn), with.columns().end());
}

// KTO's rows: values from the paper's formula, a derivative that differences show, and kl from
// sums.
TEST(PreferenceLoss, OfARowComparesItsRatioWithKl) {
  const PreferenceOptions options = {
      .loss = LossKind::kKto, .beta = 0.5, .desirable_weight = 2.0, .undesirable_weight = 3.0};
  const AnswerScore answer = {.logp = -2.0, .tokens = 2, .reference = -5.0};
  const auto sigmoid = [](double z) { return 1.0 / (1.0 + std::exp(-z)); };
  // 0.5 (3 - 1) = 1.
  const RowLoss good = row_loss(options, answer, true, 1.0);
  const RowLoss bad = row_loss(options, answer, false, 1.0);
  EXPECT_NEAR(good.loss, 2.0 * (1.0 - sigmoid(1.0)), 1e-14);
  EXPECT_NEAR(bad.loss, 3.0 * (1.0 - sigmoid(-1.0)), 1e-14);
  EXPECT_NEAR(good.reward, 1.5, 1e-14);
  constexpr double kStep = 1e-6;
  for (const bool desirable : {true, false}) {
    for (const double logp : {-0.3, -4.0, -9.0}) {
      const auto loss_at = [&](double by) {
        return row_loss(options, {.logp = logp + by, .tokens = 2, .reference = -5.0}, desirable,
                        0.7)
            .loss;
      };
      const RowLoss row =
          row_loss(options, {.logp = logp, .tokens = 2, .reference = -5.0}, desirable, 0.7);
      EXPECT_NEAR(row.by_logp, (loss_at(kStep) - loss_at(-kStep)) / (2 * kStep), 1e-8) << logp;
    }
  }
  EXPECT_EQ(row_loss(options, {.logp = 0.0, .tokens = 1, .reference = -1e5}, false, 0.0).loss, 3.0);
  EXPECT_EQ(kl_of(6.0, 4.0), 1.5);
  EXPECT_EQ(kl_of(-6.0, 4.0), 0.0);
  EXPECT_TRUE(std::isnan(kl_of(std::nan(""), 4.0)));
}

// Rows are counted by their label; there is no accuracy, and nothing of a label without rows.
TEST(PreferenceLoss, SumsOfRowsAreByLabel) {
  const PreferenceOptions options = {.loss = LossKind::kKto, .beta = 0.5};
  PreferenceSums sums;
  EXPECT_TRUE(sums.empty());
  const auto add = [&](bool desirable, double logp) {
    sums.add(row_loss(options, {.logp = logp, .tokens = 1}, desirable, 0.25), desirable, logp,
             0.25);
  };
  add(true, -2.0);
  add(true, -4.0);
  EXPECT_TRUE(std::isnan(means_of(sums).margin));
  add(false, -1.0);
  const PreferenceMeans means = means_of(sums);
  EXPECT_NEAR(means.chosen_reward, -1.5, 1e-14);
  EXPECT_NEAR(means.margin, -1.0, 1e-14);
  EXPECT_NEAR(means.rejected_logp, -1.0, 1e-14);
  EXPECT_NEAR(means.kl, 0.25, 1e-14);
  EXPECT_TRUE(std::isnan(means.accuracy));
}

// Nothing overflows where a pair is decided, and a certain answer has finite odds.
TEST(PreferenceLoss, StaysFinite) {
  for (const LossKind loss : kLosses) {
    for (const double logp : {0.0, -1e-12, -1e5}) {
      for (const double other : {0.0, -1e-12, -1e5}) {
        const PairLoss pair =
            pair_loss(options_of(loss), {.logp = logp, .tokens = 1}, {.logp = other, .tokens = 1});
        EXPECT_TRUE(std::isfinite(pair.loss)) << logp << " " << other;
        EXPECT_TRUE(std::isfinite(pair.by_chosen)) << logp << " " << other;
        EXPECT_TRUE(std::isfinite(pair.by_rejected)) << logp << " " << other;
      }
    }
  }
}

// Equal rewards are no win; means follow from sums.
TEST(PreferenceLoss, SumsCountWins) {
  const PreferenceOptions options = {.loss = LossKind::kDpo, .beta = 0.5};
  PreferenceSums sums, more;
  const auto add = [&](PreferenceSums& to, double c, double d) {
    to.add(pair_loss(options, {.logp = c, .tokens = 1}, {.logp = d, .tokens = 1}), c, d);
  };
  add(sums, -1.0, -2.0);
  add(sums, -2.0, -2.0);
  add(more, -4.0, -2.0);
  add_values(sums, more);
  EXPECT_EQ(sums.pairs, 3);
  EXPECT_EQ(sums.wins, 1);
  const PreferenceMeans means = means_of(sums);
  EXPECT_NEAR(means.chosen_reward, -3.5 / 3.0, 1e-14);
  EXPECT_NEAR(means.rejected_reward, -1.0, 1e-14);
  EXPECT_NEAR(means.margin, -0.5 / 3.0, 1e-14);
  EXPECT_NEAR(means.accuracy, 1.0 / 3.0, 1e-14);
  EXPECT_NEAR(means.chosen_logp, -7.0 / 3.0, 1e-14);
  EXPECT_NEAR(means.rejected_logp, -2.0, 1e-14);
}

}  // namespace
}  // namespace longshore
