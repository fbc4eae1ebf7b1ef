// TimedStep: a schedule whose operations are timers: Longshore's own, and FSDP2's and DeepSpeed's
// expressed in the same operations. For `longshore_lab overlap`. Values and pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "offload/schedule/step_schedule.h"

namespace longshore {

// Seconds of each operation on one unit; all units are equal. The last unit has no forward.
struct UnitTimes {
  double update = 0.0;
  double fetch = 0.0;
  double gather = 0.0;  // 0 on one rank
  double forward = 0.0;
  double backward = 0.0;
  double reduce = 0.0;  // 0 on one rank
  double drain = 0.0;
  double read_state = 0.0;  // with state on drives
  double write_state = 0.0;
  double commit = 0.0;           // of the whole step
  double read_parameters = 0.0;  // with parameters on drives
};

double seconds_of(OpKind kind, const UnitTimes& times);

// Makes equal units like blocks: no tied and no frozen parameters.
ModelSpec make_equal_units(int32_t units);

struct TimedStep {
  StepSchedule schedule;
  std::vector<double> seconds;  // by operation
  // A pass after `schedule`, if updates are separate.
  StepSchedule updates;
  std::vector<double> update_seconds;
  int32_t slots = 0;
  bool gathers = false;
};

struct TimedStepOptions {
  int32_t units = 24;
  bool several_ranks = false;  // units are gathered and gradients reduced
  int64_t prefetch = 1;        // determines slots and gradient buffers, as in the plan
  UnitTimes times;
  UpdateOverlap overlap = UpdateOverlap::kForward;
  int32_t gradient_ring = 0;    // kBackward: host gradient slots; 0: one for each unit
  int32_t state_slots = 0;      // > 0: the state is on drives
  int32_t parameter_slots = 0;  // > 0: parameters are on drives too
};

// Returns the gradient buffers that the plan makes for the options' prefetch.
int32_t gradient_buffers_for(const TimedStepOptions& options);

// Makes Longshore's step. `model` must have the options' units; it is not kept.
TimedStep longshore_step(const TimedStepOptions& options, const ModelSpec& model);

// Makes the step of FSDP2 with CPU offload. A unit is copied while the previous one is gathered and
// the one before computes; in backward its copy waits for the previous unit's copy-out, just before
// that unit's compute. Every unit but the last is gathered again in backward. Copies to the host
// follow reductions on one stream, and all updates follow the last copy. On one rank the copy
// blocks compute.
TimedStep fsdp2_step(const TimedStepOptions& options, const ModelSpec& model);

// Makes the step of DeepSpeed ZeRO-3 with offload and clipping. The host waits for the copy of the
// next unit's shard before it launches a unit; copies and gathers share a stream. Else like FSDP2.
TimedStep deepspeed_step(const TimedStepOptions& options, const ModelSpec& model);

}  // namespace longshore
