// PricedLoss: a loss that no product file knows, with a column, sums and a figure of its own.
#pragma once

#include <ATen/ATen.h>

#include <tuple>
#include <vector>

#include "model/losses/loss.h"

namespace longshore {

struct PricedSums {
  int64_t tokens = 0;
  double prices = 0.0;
  auto values() { return std::tie(tokens, prices); }
};

// The sum of the tokens' losses, each times its price, which is a float of the token.
class PricedLoss : public Loss {
 public:
  PricedLoss() : Loss({.name = "priced", .scores_first = true}, {kAdvantageColumn}) {}
  FigureValues figures(const LossSum& sum) const override {
    const auto sums = sum.named<PricedSums>();
    return {{"price", sums.prices / static_cast<double>(sums.tokens)}};
  }

 protected:
  at::Tensor score(const ScoredPositions& positions, LossResult& result) const override {
    const std::vector<float>& prices = positions.columns[kAdvantageColumn];
    PricedSums sums{.tokens = positions.losses.numel()};
    for (const float price : prices) sums.prices += static_cast<double>(price);
    result.trained = sums.tokens;
    result.loss = ordered_sum(positions.losses, prices);
    result.add(sums);
    return at::tensor(prices, at::kFloat);
  }
};

}  // namespace longshore
