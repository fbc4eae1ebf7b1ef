// LossKind and PreferenceOptions: the loss of a run and its settings. Plain values; any thread.
#pragma once

#include <cstdint>

namespace longshore {

// kSft sums over trained tokens; the others sum over pairs ([Note: preference losses]).
enum class LossKind : uint8_t { kSft, kDpo, kDpoRobust, kIpo, kOrpo, kSimpo };

// Returns the answers of a row that the loss takes together: 2 if it is over pairs.
constexpr int64_t answers_of(LossKind loss) {
  return loss == LossKind::kSft ? 1 : 2;
}

// Returns whether the loss needs each answer's log-probability under a reference model.
constexpr bool has_reference(LossKind loss) {
  return loss == LossKind::kDpo || loss == LossKind::kDpoRobust || loss == LossKind::kIpo;
}

// The defaults are TRL's, and those of the run file's section "preference".
struct PreferenceOptions {
  LossKind loss = LossKind::kDpo;  // not kSft
  double beta = 0.1;
  double label_smoothing = 0.0;
  double gamma = 0.5;  // SimPO's margin, not divided by beta
  bool operator==(const PreferenceOptions&) const = default;
};

}  // namespace longshore
