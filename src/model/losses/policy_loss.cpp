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

}  // namespace longshore
