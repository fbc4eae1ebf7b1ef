// distill_loss: how far a model is from a teacher of whom each position has the likeliest tokens.
// Functions over the tensors of a chunk of positions; compute thread only.
//
// [Note: distillation] A position has up to k tokens with the teacher's log-probabilities, p_i; the
// rest of its probability, p_r, is one more class. With q the student's probabilities, both at the
// temperature T, and w the weight of cross entropy, which is at temperature 1:
//   (1 - w) (sum_i p_i log(p_i / q_i) + p_r log(p_r / q_r)) + w nll
// A step's loss is its weighted mean over trained tokens. The divergence is not multiplied by T^2,
// as in TRL. q_r is never 1 - sum q_i, which loses all its digits where the student agrees with the
// teacher: the log-sum-exp runs over the tokens of the rest alone, and one over those of the
// teacher. With both, R and K, the sum A = sum_i p_i s_i of the scores s = logits / T, and H the
// negative entropy of the teacher's classes, the divergence is
//   H - A - p_r R + logaddexp(R, K)
// R, K and A are sums over tokens, so the pieces of a head pass them on.
#pragma once

#include <ATen/ATen.h>

#include <array>
#include <cstdint>
#include <tuple>

#include "base/columns.h"
#include "base/loss_kind.h"
#include "base/value_sums.h"
#include "model/losses/loss.h"

namespace longshore {

// Sums over trained tokens, from which a step's mean follows.
struct DistillSums {
  int64_t tokens = 0;
  double kl = 0.0;  // without weights and cross entropy

  auto values() { return std::tie(tokens, kl); }
};

inline constexpr std::array kDistillFigures = {
    LossFigure{"distill/kl", "train/distill/kl", "eval/distill/kl",
               "The mean divergence of the tokens from the teacher's; with train.loss = "
               "\"distill\".",
               "kl"},
};

// DistillLoss: the head of a model with ArchSpec::distill computes it. Its own sums are
// DistillSums.
class DistillLoss : public Loss {
 public:
  DistillLoss() : Loss(traits_of(LossKind::kDistill)) {}
  FigureValues figures(const LossSum& sum) const override;
};

// The sums over tokens of the vocabulary, by position, fp32; or the loss's derivatives by them.
struct DistillState {
  // [N, 3]: log-sum-exp of the rest's scores, of the teacher's, and of all logits at temperature 1
  // (with cross entropy alone).
  at::Tensor logs;
  at::Tensor sums;  // [N, 2]: A, and the target's logit

  // Returns the state before any token.
  static DistillState before(int64_t positions, const at::TensorOptions& like);
};

// Returns the derivatives by the sums before some tokens.
DistillState chained(const DistillState& earlier, const DistillState& after,
                     const DistillState& by_after);

// TeacherChunk: what the teacher says of some trained positions, on the device.
class TeacherChunk {
 public:
  // Takes the columns of a batch's trained positions [begin, begin + count).
  TeacherChunk(const DistillOptions& options, const ColumnValues& columns, int64_t begin,
               int64_t count, at::Device device);

  // The state is that over the whole vocabulary.
  at::Tensor divergences(const DistillState& all) const;                           // [N, 1]
  at::Tensor losses(const DistillState& all, const at::Tensor& divergence) const;  // [N]
  // Returns the derivatives of the sum of factors [N, 1] * losses.
  DistillState derivatives(const DistillState& all, const at::Tensor& factors) const;

 private:
  friend class DistillScores;

  DistillOptions options_;
  at::Tensor ids_;            // int64 [N, k]
  at::Tensor used_;           // bool [N, k]: false for the repetitions of the first id
  at::Tensor probabilities_;  // fp32 [N, k], 0 where not used
  at::Tensor rest_;           // fp32 [N, 1]
  at::Tensor entropy_;        // fp32 [N, 1]: H
};

// DistillScores: the scores of a teacher's positions for some tokens of the vocabulary.
class DistillScores {
 public:
  // `logits`, fp32 [N, tokens], are those of the tokens from `first` on, and are overwritten.
  // `targets` int64 [N]. The teacher must outlive the object.
  DistillScores(const TeacherChunk* teacher, at::Tensor logits, int64_t first,
                const at::Tensor& targets);

  // Returns the state with these tokens.
  DistillState after(const DistillState& earlier) const;
  // Returns the derivatives by the logits; called at most once.
  at::Tensor by_logits(const DistillState& after, const DistillState& by_after);

 private:
  const TeacherChunk& teacher_;
  at::Tensor rest_;    // [N, tokens]: scores, -infinity for the teacher's tokens
  at::Tensor places_;  // int64 [N, k]: of the teacher's tokens, 0 if not among these
  at::Tensor used_;    // bool [N, k]: the place is that of a token
  at::Tensor scores_;  // [N, k]: at the places
  at::Tensor plain_;   // [N, tokens]: the logits; undefined without cross entropy
  at::Tensor target_;  // int64 [N, 1]: the target's place
  at::Tensor inside_;  // bool [N, 1]: the target is among these
};

}  // namespace longshore
