// The rules by which train.micro_batch = "auto" becomes a number. Pure functions
// of plain values, and a reader of the run's record; MeasuredRun applies them. Main thread.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "config/run_config.h"
#include "device/device_kind.h"

namespace longshore {

// Larger micro-batches than this many positions are not chosen. On an H200, one row of 4,096 tokens
// computed at 520 to 802 TFLOP/s in the products and 207 in attention, four rows at 578 to 776 and
// 320 (docs/measurements/gpu): larger sizes were not measured, and products no longer gain.
inline constexpr int64_t kMostPositions = 16384;

// Returns the sizes among which "auto" chooses, ascending, with 1 as the first: powers of two, and
// divisors of a rank's sequences, with which no rank computes more sequences of a step than with 1.
std::vector<int64_t> micro_batch_sizes(int64_t sequences_per_step, int64_t ranks,
                                       int64_t max_tokens);

// Returns the one of `sizes` (ascending, not empty) to train with. `seconds` are the forecasts of a
// step with each size: the smallest size that is as fast as the fastest. Without forecasts: the
// largest size on a GPU, whose kernels are faster on more rows, and the smallest on a CPU, whose
// few cores one sequence keeps busy.
int64_t preferred_micro_batch(const std::vector<int64_t>& sizes, const std::vector<double>& seconds,
                              DeviceKind device);

// Returns the micro-batch of the run that a start with this run file continues, which is recorded
// in run.dir, or in the checkpoint that checkpoint.resume names. Empty if there is none.
std::optional<int64_t> begun_micro_batch(const RunConfig& config);

}  // namespace longshore
