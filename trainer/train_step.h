// One optimizer step on one rank, top-down. The rest of the trainer is around it.
// Compute thread.
#pragma once

#include <span>

#include "fsdp/engine.h"
#include "offload/grad_drain.h"

namespace longshore {

struct StepRequest {
  std::span<const MicroBatch> batches;
  int64_t trained_tokens = 0;  // over all batches; > 0
  double lr = 0.0;
  double max_grad_norm = 0.0;  // 0: no clipping
};

struct StepOutcome {
  double loss = 0.0;  // mean over trained tokens
  GradNorm norm;      // before clipping
  double clip_scale = 1.0;
  bool skipped = false;  // non-finite: no state changed
};

StepOutcome train_step(Engine& engine, const StepRequest& request);

}  // namespace longshore
