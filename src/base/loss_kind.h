// LossKind, PolicyOptions, DistillOptions, PreferenceOptions: the loss of a run and its settings.
// Plain values; any thread.
#pragma once

#include <cstdint>

namespace longshore {

// kSft, kPolicy ([Note: policy loss]) and kDistill ([Note: distillation]) sum over trained tokens;
// preference losses sum over pairs, or over rows with kKto ([Note: preference losses]).
enum class LossKind : uint8_t {
  kSft,
  kDpo,
  kDpoRobust,
  kIpo,
  kOrpo,
  kSimpo,
  kKto,
  kPolicy,
  kDistill
};

// Returns whether the loss is over answers that people judged.
constexpr bool is_preference(LossKind loss) {
  return loss >= LossKind::kDpo && loss <= LossKind::kKto;
}

// Returns whether each of its samples is a pair: a chosen and a rejected answer.
constexpr bool is_paired(LossKind loss) {
  return is_preference(loss) && loss != LossKind::kKto;
}

// Returns the answers of a row that the loss takes together: 2 if it is over pairs.
constexpr int64_t answers_of(LossKind loss) {
  return is_paired(loss) ? 2 : 1;
}

// Returns whether the loss needs each answer's log-probability under a reference model.
constexpr bool has_reference(LossKind loss) {
  return is_preference(loss) && loss != LossKind::kOrpo && loss != LossKind::kSimpo;
}

// Returns whether it is made from log-probabilities that the head computes first, so that it
// computes its logits a second time for gradients.
constexpr bool scores_first(LossKind loss) {
  return is_preference(loss) || loss == LossKind::kPolicy;
}

// The clip of kPolicy. The defaults are those of TRL's GRPO, and of the run file's section
// "policy".
struct PolicyOptions {
  double clip_low = 0.2;
  double clip_high = 0.2;
  bool operator==(const PolicyOptions&) const = default;
};

// The settings of kDistill, with the defaults of the run file's section "distill".
struct DistillOptions {
  int64_t top_k = 16;        // the most tokens of a teacher at a position
  double temperature = 1.0;  // of teacher and student
  double ce_weight = 0.0;    // the share of cross entropy in the loss
  bool operator==(const DistillOptions&) const = default;
};

// The defaults are TRL's, and those of the run file's section "preference".
struct PreferenceOptions {
  LossKind loss = LossKind::kDpo;  // one that scores_first()
  double beta = 0.1;
  double label_smoothing = 0.0;
  double gamma = 0.5;                                       // SimPO's margin, not divided by beta
  double desirable_weight = 1.0, undesirable_weight = 1.0;  // of KTO's rows
  PolicyOptions policy = {};
  bool operator==(const PreferenceOptions&) const = default;
};

}  // namespace longshore
