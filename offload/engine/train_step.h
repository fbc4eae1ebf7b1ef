// One optimizer step of a rank, top-down. The rest of the trainer is around it. The engine's
// thread.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "offload/engine/engine.h"
#include "offload/engine/step_totals.h"
#include "offload/staging/gradient_drain.h"

namespace longshore {

struct StepRequest {
  std::span<const MicroBatch> batches;  // the rank's own; there may be none
  int64_t trained_tokens = 0;           // over all ranks' batches; > 0
  double lr = 0.0;
  double max_grad_norm = 0.0;  // 0: no clipping
  // What this rank was asked for; all ranks do it after the step.
  bool stop = false;
  bool save = false;
  // What a tier that commits keeps of the step beside the state; empty: nothing is committed.
  std::function<DurableStep(bool skipped)> record = {};
};

// How a step ended; equal on all ranks.
struct StepOutcome {
  double loss = 0.0;  // mean over trained tokens
  GradNorm norm;      // before clipping
  double clip_scale = 1.0;
  bool skipped = false;  // non-finite: no state changed
  bool stop = false;
  bool save = false;
  std::vector<RankTimes> times;  // by rank
  std::vector<double> routers;   // for router_statistics; empty where nobody asks
};

// Its two halves. After the first all updates of earlier steps are applied, and gradients wait at
// home; the second decides what becomes of them.
StepTotals forward_backward(Engine& engine, const StepRequest& request);
StepOutcome settle_step(Engine& engine, const StepRequest& request, const StepTotals& totals);

StepOutcome train_step(Engine& engine, const StepRequest& request);

}  // namespace longshore
