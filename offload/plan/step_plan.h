// StepPlan: what one step does, operation by operation, and the bytes that it moves. Plain values.
#pragma once

#include <cstdint>
#include <vector>

#include "offload/plan/plan_sizes.h"
#include "offload/schedule/step_schedule.h"

namespace longshore {

// What one step moves, on one rank. Payloads are what the rank hands to collectives.
struct StepTraffic {
  Bytes h2d = 0;
  Bytes d2h = 0;
  Bytes all_gather = 0;      // whole gathered units
  Bytes reduce_scatter = 0;  // whole gradients, in the reduce dtype
  Bytes all_reduce = 0;      // own parts of gradients, over replicas
  Bytes update_dram = 0;     // read and written by the update
  Bytes nvme_read = 0;       // of state, activation checkpoints, and parameters
  Bytes nvme_written = 0;    // of state and activation checkpoints: the commit adds a few blocks
  double flops_per_token = 0.0;  // estimate: 6 per parameter, 8 with recompute
};

struct StepPlan {
  PassSchedules schedules;
  UpdateOverlap overlap = UpdateOverlap::kForward;
  int64_t micro_batches = 0;  // of a step, on one rank at most
  int64_t positions = 0;      // of a micro-batch, at most
  int32_t kept_graphs = 0;    // of so many units before the loss; the others are recomputed
  // By unit: the run of activation checkpoints that is named after it, of all micro-batches, where
  // it is offloaded; 0: it stays.
  std::vector<Bytes> offloaded_inputs;
  StepTraffic traffic;

  Bytes offloaded_inputs_total() const;
  // What a step moves by operations of a kind, its updates included.
  Bytes moved(OpKind kind) const;
};

StepPlan plan_step(const PlanSizes& sizes);

}  // namespace longshore
