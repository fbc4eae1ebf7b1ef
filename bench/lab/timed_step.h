// TimedStep: a schedule of which every operation is a timer: Longshore's own schedule, and those of
// FSDP2 and DeepSpeed written in the same operations. For `longshore_lab overlap`. Values, pure
// functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "offload/schedule/step_schedule.h"

namespace longshore {

// Seconds of each operation on one unit; all units are alike. The last unit has no forward.
struct UnitTimes {
  double update = 0.0;
  double fetch = 0.0;
  double gather = 0.0;  // 0 on one rank
  double forward = 0.0;
  double backward = 0.0;
  double reduce = 0.0;  // 0 on one rank
  double drain = 0.0;
  double read_state = 0.0;  // where the state is on drives
  double write_state = 0.0;
  double commit = 0.0;           // of the whole step
  double read_parameters = 0.0;  // where parameters are on drives
};

double seconds_of(OpKind kind, const UnitTimes& times);

// Units like blocks: parameters, no borrowing, nothing frozen.
ModelSpec make_equal_units(int32_t units);

struct TimedStep {
  StepSchedule schedule;
  std::vector<double> seconds;  // by operation
  // A pass behind it, where updates are one.
  StepSchedule updates;
  std::vector<double> update_seconds;
  int32_t slots = 0;
  bool gathers = false;
};

struct TimedStepOptions {
  int32_t units = 24;
  bool several_ranks = false;  // units are gathered, gradients reduced
  int64_t prefetch = 1;        // slots and gradient buffers follow, as in the plan
  UnitTimes times;
  UpdateOverlap overlap = UpdateOverlap::kForward;
  int32_t gradient_ring = 0;    // kBackward: host gradient slots; 0: one for each unit
  int32_t state_slots = 0;      // > 0: the state is on drives
  int32_t parameter_slots = 0;  // > 0: the parameters too
};

// What the plan gives a run with so many units ahead.
int32_t gradient_buffers_for(const TimedStepOptions& options);

// Longshore's. `model` must have the options' units; it is not kept.
TimedStep longshore_step(const TimedStepOptions& options, const ModelSpec& model);

// FSDP2 with its CPU offload. A unit is copied while the one before it is gathered and the one
// before that computes; in backward its copy waits for the copy-out, just before its compute, of
// the unit before it. Every unit but the last is gathered anew in backward. Copies down follow the
// reductions on their stream. All updates come after the last copy down. On one rank the copy
// blocks compute.
TimedStep fsdp2_step(const TimedStepOptions& options, const ModelSpec& model);

// DeepSpeed ZeRO-3 with offload and clipping. The host waits for the copy of the next unit's shard
// before it launches a unit; copies and gathers share a stream; the rest as above.
TimedStep deepspeed_step(const TimedStepOptions& options, const ModelSpec& model);

}  // namespace longshore
