// policy_loss: the clipped loss of a token under a policy that moved away from the one that wrote
// it. Pure functions in double, and the loss that is made of them; any thread.
//
// [Note: policy loss] With r = exp(logp - old logp) and the advantage A of a token:
//   -min(r A, clip(r, 1 - clip_low, 1 + clip_high) A)
// A step's loss is the mean over its trained tokens, as in TRL's GRPO with loss_type = "dapo", the
// default. There is no term for a reference model: TRL's beta is 0.
#pragma once

#include <cstdint>
#include <tuple>

#include "base/loss_kind.h"
#include "base/value_sums.h"
#include "model/losses/loss.h"

namespace longshore {

struct PolicyTerm {
  double loss = 0.0;
  double by_logp = 0.0;  // derivative of the loss
  double ratio = 0.0;
  bool clipped = false;  // the clip holds the token, which gives no gradient
};

PolicyTerm policy_term(const PreferenceOptions& options, double logp, double old_logp,
                       double advantage);

// Sums over trained tokens, from which a step's means follow.
struct PolicySums {
  int64_t tokens = 0;
  int64_t clipped = 0;
  double ratios = 0.0;

  void add(const PolicyTerm& term);
  auto values() { return std::tie(tokens, clipped, ratios); }
};

struct PolicyMeans {
  double ratio = 0.0;
  double clip_fraction = 0.0;
};

// Returns the means; there must be a token.
PolicyMeans means_of(const PolicySums& sums);

inline constexpr std::array kPolicyFigures = {
    LossFigure{"policy/ratio", "train/policy/ratio", "eval/policy/ratio",
               "The mean ratio of the tokens' probabilities to the old ones; with train.loss = "
               "\"policy\".",
               "ratio"},
    LossFigure{"policy/clip_fraction", "train/policy/clip_fraction", "eval/policy/clip_fraction",
               "The share of tokens that the clip holds.", "clipped", true},
};

// PolicyLoss: its own sums are PolicySums.
class PolicyLoss : public Loss {
 public:
  explicit PolicyLoss(const PreferenceOptions& options)
      : Loss(traits_of(LossKind::kPolicy), {kAdvantageColumn, kOldLogpColumn}), options_(options) {}
  FigureValues figures(const LossSum& sum) const override;

 protected:
  at::Tensor score(const ScoredPositions& positions, LossResult& result) const override;

 private:
  PreferenceOptions options_;
};

}  // namespace longshore
