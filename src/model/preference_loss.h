// preference_loss: losses over pairs of answers to one prompt, from the answers' log-probabilities.
// Pure functions in double; any thread.
//
// [Note: preference losses] logp is the sum of an answer's log-probabilities, n its trained tokens,
// m = logp / n, r = logp - reference; c is the chosen answer and d the rejected one. With
// z = beta (r_c - r_d), e = label smoothing and L(z) = -log sigmoid(z):
//   dpo         (1 - e) L(z) + e L(-z)
//   dpo-robust  ((1 - e) L(z) - e L(-z)) / (1 - 2e)
//   ipo         (r_c / n_c - r_d / n_d - 1 / (2 beta))^2
//   simpo       (1 - e) L(s) + e L(-s) with s = beta (m_c - m_d) - gamma; no reference
//   orpo        -m_c + beta L(o_c - o_d) with o = m - log(1 - exp(m)); no reference
// Each pair has the same weight in a step, so no result depends on micro-batches or ranks. The
// first term of ORPO covers the chosen answer, as in its paper; TRL's covers its prompt too.
#pragma once

#include <cstdint>

#include "base/loss_kind.h"

namespace longshore {

// One answer under the model and under the reference.
struct AnswerScore {
  double logp = 0.0;       // over trained positions
  int64_t tokens = 0;      // trained positions, at least 1
  double reference = 0.0;  // logp of the reference; unused by losses without one
};

struct PairLoss {
  double loss = 0.0;
  double by_chosen = 0.0;  // derivative of the loss by the chosen answer's logp
  double by_rejected = 0.0;
  // beta r, or beta m for a loss without a reference.
  double chosen_reward = 0.0, rejected_reward = 0.0;
};

PairLoss pair_loss(const PreferenceOptions& options, const AnswerScore& chosen,
                   const AnswerScore& rejected);

// Sums over pairs, from which a step's means follow.
struct PreferenceSums {
  int64_t pairs = 0;
  int64_t wins = 0;  // pairs whose chosen answer has the higher reward
  double chosen_rewards = 0.0, rejected_rewards = 0.0;
  double chosen_logps = 0.0, rejected_logps = 0.0;

  void add(const PairLoss& pair, double chosen_logp, double rejected_logp);
  PreferenceSums& operator+=(const PreferenceSums& other);
};

// The means of a step or an evaluation over its pairs.
struct PreferenceMeans {
  double chosen_reward = 0.0, rejected_reward = 0.0;
  double margin = 0.0;    // of the two
  double accuracy = 0.0;  // share of pairs whose chosen answer has the higher reward
  double chosen_logp = 0.0, rejected_logp = 0.0;
};

// Returns the means; there must be a pair.
PreferenceMeans means_of(const PreferenceSums& sums);

}  // namespace longshore
