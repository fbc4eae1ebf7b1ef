// train_step: one optimizer step of a rank. Free functions; called by the engine's thread.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "offload/engine/engine.h"
#include "offload/engine/step_totals.h"
#include "offload/staging/gradient_drain.h"

namespace longshore {

struct StepRequest {
  std::span<const MicroBatch> batches;  // the rank's own; may be empty
  // The divisor of loss and gradients: the trained tokens of all ranks' batches, or the sum of
  // their weights, or their pairs with a loss over pairs; > 0.
  double loss_terms = 0.0;
  double lr = 0.0;
  double max_grad_norm = 0.0;  // 0: no clipping
  // Requests to this rank; after the step all ranks know them.
  bool stop = false;
  bool save = false;
  // Returns the payload of the step's commit. Empty: the step is not committed.
  std::function<DurableStep(bool skipped)> record = {};
};

// How a step ended; equal on all ranks.
struct StepOutcome {
  double loss = 0.0;  // mean over trained tokens or pairs
  GradNorm norm;      // before clipping
  double clip_scale = 1.0;
  bool skipped = false;  // non-finite: no state changed
  bool stop = false;
  bool save = false;
  std::vector<RankTimes> times;  // by rank
  std::vector<double> routers;   // input of router_statistics; empty if not collected
  LossSum sums;                  // Loss::figures makes the run's numbers of them
};

// The two halves of train_step. The first applies all updates of earlier steps and leaves gradients
// in host memory; the second stages the step's update or skips it.
StepTotals forward_backward(Engine& engine, const StepRequest& request);
StepOutcome finish_step(Engine& engine, const StepRequest& request, const StepTotals& totals);

StepOutcome train_step(Engine& engine, const StepRequest& request);

}  // namespace longshore
