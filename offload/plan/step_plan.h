// StepPlan: the schedules of a step and the bytes that it moves. Plain values.
#pragma once

#include <cstdint>
#include <vector>

#include "offload/plan/plan_sizes.h"
#include "offload/schedule/step_schedule.h"

namespace longshore {

// The bytes that one step moves on one rank; for collectives the rank's payload.
struct StepTraffic {
  Bytes h2d = 0;
  Bytes d2h = 0;
  Bytes all_gather = 0;      // whole gathered units
  Bytes reduce_scatter = 0;  // whole gradients, in the reduce dtype
  Bytes all_reduce = 0;      // the rank's parts of gradients, over replicas
  Bytes update_dram = 0;     // read and written by the update
  Bytes nvme_read = 0;       // state, activation checkpoints and parameters
  Bytes nvme_written = 0;    // state and activation checkpoints; without the commit's few blocks
  Bytes files_read = 0;      // frozen parameters, from the model's files
  // Estimate: 4 per parameter, 6 with recompute, and 2 per trained parameter.
  double flops_per_token = 0.0;
};

struct StepPlan {
  PassSchedules schedules;
  UpdateOverlap overlap = UpdateOverlap::kForward;
  LossTraits loss;
  int64_t micro_batches = 0;  // of a step, on one rank at most
  int64_t positions = 0;      // of a micro-batch, at most
  int32_t kept_graphs = 0;    // graphs kept before the loss; other units are recomputed
  KeptResults kept_results = KeptResults::kNone;  // of those, beside activation checkpoints
  // By unit: bytes of the run of activation checkpoints that starts at it, over all micro-batches,
  // if it is offloaded; else 0.
  std::vector<Bytes> offloaded_inputs;
  // By unit: the frozen parameters are read from the model's files once and stay in host memory.
  // Empty: those of no unit.
  std::vector<bool> resident;
  StepTraffic traffic;

  Bytes offloaded_inputs_total() const;
  bool trains() const { return !schedules.train.ops.empty(); }
  // Returns the passes of a step, including its update; of a plan that only decodes those of a call
  // after the first. A forward before the step's own needs the
  // updated weights, so that the update has its own pass.
  std::vector<const StepSchedule*> passes() const;
  // Returns the bytes that operations of a kind move in a step, including its updates.
  Bytes moved(OpKind kind) const;
  // Returns the forward pass that follows another one, as decoding runs one for each token.
  const StepSchedule& next_forward() const;
  // Returns the bytes of weights that it brings to the device.
  Bytes moved_by_forward() const;
};

StepPlan plan_step(const PlanSizes& sizes, const std::vector<bool>& resident);

}  // namespace longshore
