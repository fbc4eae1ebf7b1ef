// decode_plan: chooses how decoding with states uses the device: the number of sequences at the
// same time, and whether weights stay in their slots from one token to the next. Pure functions,
// which draft plans; any thread.
#pragma once

#include <cstdint>
#include <optional>

#include "offload/plan/machine.h"
#include "offload/plan/tier_plan.h"

namespace longshore {

// More sequences at the same time gain little: a matrix that is read once for 64 rows is no longer
// the bottleneck.
inline constexpr int64_t kMostSequences = 64;

// Returns the plan of a process that decodes alone, for the run's model and caps and at most
// `asked.sequences` sequences: as many as fit. Empty if not even one fits.
//
// Weights stay in their slots if all units and at least an eighth of the sequences that fit
// otherwise fit the device: a token then reads the weights from the device's memory, which is about
// an order of magnitude faster than the link over which they would pass.
std::optional<TierPlan> draft_decoding_plan(const PlanInputs& run, const Machine& machine,
                                            const DecodeUse& asked);

// Returns the same plan; throws DoesNotFitError, which says the longest sequence that fits and the
// keys to change.
TierPlan make_decoding_plan(const PlanInputs& run, const Machine& machine, const DecodeUse& asked);

// Returns `asked` for a run that trains and decodes samples between steps, with as many sequences
// as fit beside training. At least one, whether it fits or not.
DecodeUse decoding_beside_training(const PlanInputs& run, const Machine& machine,
                                   const DecodeUse& asked);

}  // namespace longshore
