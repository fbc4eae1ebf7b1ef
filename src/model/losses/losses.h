// losses: every loss of train.loss, and the numbers that they report. Pure functions; any thread.
#pragma once

#include <array>
#include <memory>

#include "model/losses/distill_loss.h"
#include "model/losses/loss.h"
#include "model/losses/policy_loss.h"
#include "model/losses/preference_loss.h"

namespace longshore {

// Returns the arrays one after the other.
template <typename Value, size_t... kSizes>
constexpr auto joined_arrays(const std::array<Value, kSizes>&... arrays) {
  std::array<Value, (kSizes + ...)> all = {};
  size_t next = 0;
  const auto append = [&](const auto& values) {
    for (const Value& value : values) all[next++] = value;
  };
  (append(arrays), ...);
  return all;
}

// The figures of all losses, in the order of a record's rows; a record has those of its run's loss.
inline constexpr auto kTokenFigures = joined_arrays(kPolicyFigures, kDistillFigures);
inline constexpr auto kAnswerFigures = kPreferenceFigures;

// Returns the loss of `options.loss`, with the settings that it has.
inline std::shared_ptr<const Loss> make_loss(const PreferenceOptions& options) {
  if (traits_of(options.loss).judged) return std::make_shared<PreferenceLoss>(options);
  if (options.loss == LossKind::kPolicy) return std::make_shared<PolicyLoss>(options);
  if (options.loss == LossKind::kDistill) return std::make_shared<DistillLoss>();
  return std::make_shared<Loss>();
}

}  // namespace longshore
