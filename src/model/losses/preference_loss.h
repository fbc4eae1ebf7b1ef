// preference_loss: losses over answers that people judged, from the answers' log-probabilities.
// Pure functions in double, and the loss that is made of them; any thread.
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
//
// The SFT term of weight w adds -w logp_c / t to a pair's loss, where t is the mean of n_c over the
// pairs of the whole step. So the step's loss has w times the mean of -log p over the tokens of all
// its chosen answers, whatever micro-batches and ranks are; TRL's "sft" is that of a micro-batch.
//
// kto has rows of one answer, of equal weight in a step:
//   kto         w (1 - sigmoid(beta (r - kl))) if it is desirable, else w (1 - sigmoid(beta (kl -
//   r)))
// kl is the mean of r over prompts with answers of other rows (MismatchedDataset), at least 0. It
// is that of the whole step and has no gradient, so a forward without gradients computes it before.
#pragma once

#include <cstdint>
#include <limits>
#include <tuple>

#include "base/loss_kind.h"
#include "base/value_sums.h"
#include "model/losses/loss.h"

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

// Adds the SFT term of this weight to a pair, whose step has `mean_tokens` trained tokens a chosen
// answer.
void add_sft(double weight, double mean_tokens, const AnswerScore& chosen, PairLoss& pair);

// The loss of a row of KTO.
struct RowLoss {
  double loss = 0.0;
  double by_logp = 0.0;
  double reward = 0.0;
};

RowLoss row_loss(const PreferenceOptions& options, const AnswerScore& answer, bool desirable,
                 double kl);

// Returns the kl of `count` mismatched rows, whose r have this sum; 0 without rows.
double kl_of(double sum, double count);

// Sums over pairs or rows, from which a step's means follow.
struct PreferenceSums {
  int64_t pairs = 0;
  int64_t wins = 0;                  // pairs whose chosen answer has the higher reward
  int64_t chosen = 0, rejected = 0;  // answers: one of each in a pair, one of both in a row of KTO
  double chosen_rewards = 0.0, rejected_rewards = 0.0;
  double chosen_logps = 0.0, rejected_logps = 0.0;
  double kls = 0.0;           // of rows of KTO: the kl of each
  int64_t chosen_tokens = 0;  // of chosen answers; counted for the SFT term alone

  void add(const PairLoss& pair, double chosen_logp, double rejected_logp);
  void add(const RowLoss& row, bool desirable, double logp, double kl);
  auto values() {
    return std::tie(pairs, wins, chosen, rejected, chosen_rewards, rejected_rewards, chosen_logps,
                    rejected_logps, kls, chosen_tokens);
  }
  bool empty() const { return chosen + rejected == 0; }
};

// The means of a step or an evaluation over its pairs, or over its rows by their label. What does
// not exist is not a number: a mean over nothing, an accuracy without pairs, a kl with them, the
// loss of an SFT term without that term.
struct PreferenceMeans {
  double chosen_reward = 0.0, rejected_reward = 0.0;
  double margin = 0.0;    // of the two
  double accuracy = 0.0;  // share of pairs whose chosen answer has the higher reward
  double chosen_logp = 0.0, rejected_logp = 0.0;
  double kl = 0.0;
  // This is the SFT term without its weight.
  double sft_loss = std::numeric_limits<double>::quiet_NaN();
};

// Returns the means; the sums must not be empty.
PreferenceMeans means_of(const PreferenceSums& sums);

inline constexpr std::array kPreferenceFigures = {
    LossFigure{"rewards/chosen", "train/rewards/chosen", "eval/rewards/chosen",
               "The mean reward of the chosen answers; with a loss over pairs."},
    LossFigure{"rewards/rejected", "train/rewards/rejected", "eval/rewards/rejected",
               "The mean reward of the rejected answers."},
    LossFigure{"rewards/margins", "train/rewards/margins", "eval/rewards/margins",
               "The mean of the chosen answer's reward less the rejected one's.", "margin"},
    LossFigure{"rewards/accuracies", "train/rewards/accuracies", "eval/rewards/accuracies",
               "The share of pairs whose chosen answer has the higher reward.", "accuracy", true},
    LossFigure{"logps/chosen", "train/logps/chosen", "eval/logps/chosen",
               "The mean log-probability of the chosen answers."},
    LossFigure{"logps/rejected", "train/logps/rejected", "eval/logps/rejected",
               "The mean log-probability of the rejected answers."},
    LossFigure{"kl", "train/kl", "eval/kl",
               "With KTO, the estimate of the kl that rewards compare with.", "kl"},
    LossFigure{"sft_loss", "train/sft_loss", "eval/sft_loss",
               "With preference.sft_weight, the mean cross entropy of the chosen answers' tokens, "
               "without that weight.",
               "sft"},
};

// Returns those of the means that are numbers.
FigureValues figures_of(const PreferenceMeans& means);

// PreferenceLoss: documents 2k and 2k + 1 of a micro-batch are the chosen and the rejected answer
// of a pair; with KTO each document is a row. Its own sums are PreferenceSums.
class PreferenceLoss : public Loss {
 public:
  explicit PreferenceLoss(const PreferenceOptions& options);
  FigureValues figures(const LossSum& sum) const override;

 protected:
  at::Tensor score(const ScoredPositions& positions, LossResult& result) const override;

 private:
  // Adds the losses of the micro-batch's pairs or rows to `result`, and returns their derivatives
  // by the log-probability of each document.
  std::vector<double> add_losses(const ScoredPositions& positions,
                                 const std::vector<AnswerScore>& scores, LossResult& result) const;

  PreferenceOptions options_;
};

}  // namespace longshore
