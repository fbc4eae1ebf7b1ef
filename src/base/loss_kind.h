// LossKind, LossTraits and the settings of losses. Plain values; any thread.
#pragma once

#include <array>
#include <cstddef>
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

// LossTraits: what data, plans and forecasts need to know of a loss; a row of the table of losses.
struct LossTraits {
  LossKind kind = LossKind::kSft;
  const char* name = "sft";    // the value of train.loss
  bool judged = false;         // over answers that people judged
  int64_t answers = 1;         // the answers of a row that it takes together: 2 if it is over pairs
  bool reference = false;      // it needs each answer's log-probability under a reference model
  bool scores_first = false;   // it is made from log-probabilities that the head computes first, so
                               // that the head computes its logits a second time for gradients
  bool forward_first = false;  // a step runs a forward of other rows before its own
  // If it takes only rows of token ids in a data.format of its name: their other members, for
  // messages. Rows of any other format have Loss::columns() beside the format's members.
  const char* own_rows = nullptr;

  bool paired() const { return answers == 2; }
};

inline constexpr std::array kLossTable = {
    LossTraits{},
    LossTraits{LossKind::kDpo, "dpo", true, 2, true, true},
    LossTraits{LossKind::kDpoRobust, "dpo-robust", true, 2, true, true},
    LossTraits{LossKind::kIpo, "ipo", true, 2, true, true},
    LossTraits{LossKind::kOrpo, "orpo", true, 2, false, true},
    LossTraits{LossKind::kSimpo, "simpo", true, 2, false, true},
    LossTraits{LossKind::kKto, "kto", true, 1, true, true, true},
    LossTraits{.kind = LossKind::kPolicy,
               .name = "policy",
               .scores_first = true,
               .own_rows = "\"old_logps\" and advantages"},
    LossTraits{.kind = LossKind::kDistill,
               .name = "distill",
               .own_rows = "\"teacher_ids\" and \"teacher_logps\""},
};

constexpr const LossTraits& traits_of(LossKind loss) {
  return kLossTable[static_cast<size_t>(loss)];
}
static_assert([] {
  for (size_t i = 0; i < kLossTable.size(); ++i) {
    if (static_cast<size_t>(kLossTable[i].kind) != i) return false;
  }
  return true;
}());

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
  LossKind loss = LossKind::kDpo;
  double beta = 0.1;
  double label_smoothing = 0.0;
  double gamma = 0.5;                                       // SimPO's margin, not divided by beta
  double sft_weight = 0.0;                                  // of the SFT term of a loss over pairs
  double desirable_weight = 1.0, undesirable_weight = 1.0;  // of KTO's rows
  PolicyOptions policy = {};
  bool operator==(const PreferenceOptions&) const = default;
};

}  // namespace longshore
