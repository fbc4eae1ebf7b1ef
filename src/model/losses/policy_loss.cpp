#include "model/losses/policy_loss.h"

#include <algorithm>
#include <cmath>

#include "base/errors.h"

namespace longshore {

PolicyTerm policy_term(const PreferenceOptions& options, double logp, double old_logp,
                       double advantage) {
  const double ratio = std::exp(logp - old_logp);
  const double low = 1.0 - options.policy.clip_low, high = 1.0 + options.policy.clip_high;
  PolicyTerm term{.ratio = ratio};
  term.clipped = advantage > 0.0 ? ratio > high : advantage < 0.0 && ratio < low;
  term.loss = -advantage * (term.clipped ? std::clamp(ratio, low, high) : ratio);
  term.by_logp = term.clipped ? 0.0 : -advantage * ratio;
  return term;
}

void PolicySums::add(const PolicyTerm& term) {
  tokens += 1;
  clipped += term.clipped ? 1 : 0;
  ratios += term.ratio;
}

PolicyMeans means_of(const PolicySums& sums) {
  LONGSHORE_CHECK(sums.tokens > 0);
  const auto tokens = static_cast<double>(sums.tokens);
  return {.ratio = sums.ratios / tokens,
          .clip_fraction = static_cast<double>(sums.clipped) / tokens};
}

FigureValues PolicyLoss::figures(const LossSum& sum) const {
  const auto sums = sum.named<PolicySums>();
  if (sums.tokens == 0) return {};
  const PolicyMeans means = means_of(sums);
  return {{kPolicyFigures[0].key, means.ratio}, {kPolicyFigures[1].key, means.clip_fraction}};
}

at::Tensor PolicyLoss::score(const ScoredPositions& positions, LossResult& result) const {
  const at::Tensor values = positions.losses.to(at::kCPU).contiguous();
  const auto* const loss = values.const_data_ptr<float>();
  const std::vector<float>& advantages = positions.columns[kAdvantageColumn];
  const std::vector<float>& old_logps = positions.columns[kOldLogpColumn];
  const auto count = static_cast<size_t>(values.numel());
  at::Tensor factors = at::empty({values.numel()}, at::kFloat);
  auto* const factor = factors.mutable_data_ptr<float>();
  PolicySums sums;
  for (size_t i = 0; i < count; ++i) {
    const PolicyTerm term =
        policy_term(options_, -static_cast<double>(loss[i]), static_cast<double>(old_logps[i]),
                    static_cast<double>(advantages[i]));
    result.loss += term.loss;
    sums.add(term);
    factor[i] = static_cast<float>(-term.by_logp);  // a loss is a negative logp
  }
  result.add(sums);
  result.trained = values.numel();
  return factors;
}

}  // namespace longshore
