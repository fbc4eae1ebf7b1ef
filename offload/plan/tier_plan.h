// TierPlan: every byte on every tier, fixed before anything is allocated. A pure function of the
// model, the run file's choices and the machine; plain values afterwards. Each tier's part, and
// how it is counted, is in the file of its name.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "offload/plan/device_plan.h"
#include "offload/plan/drive_plan.h"
#include "offload/plan/host_plan.h"
#include "offload/plan/machine.h"
#include "offload/plan/plan_inputs.h"
#include "offload/plan/step_plan.h"

namespace longshore {

// What a plan in other units has more than this one.
struct UnitsDifference {
  std::string name;
  bool fits = false;
  Bytes device = 0, host = 0;
  Bytes moved = 0;  // by a step, between host and device, and to and from drives
};

struct TierPlan {
  DevicePlan device;
  HostPlan host;
  DrivePlan drives;
  StepPlan step;

  int64_t parameters = 0;  // elements
  int64_t trainable = 0;
  StateOptions state;
  ShardTopology topology;
  DType reduce = DType::kF32;
  GatherMode gather = GatherMode::kCollective;
  int compute_threads = 1;
  int optimizer_threads = 1;
  int64_t steps = 0;                         // of the run; 0: not known
  Bytes checkpoint_bytes = 0;                // what all ranks write to one together, headers aside
  std::vector<UnitsDifference> other_units;  // filled in by compare_units

  bool fits() const {
    return device.within_limit() && device.limit_is_there() && host.within_limit() &&
           host.limit_is_there() && drives.missing == 0;
  }
};

// The plan, whether it fits or not. Throws DoesNotFitError only for sizes beyond counting.
TierPlan draft_tier_plan(const PlanInputs& inputs, const Machine& machine);

// The plan; throws DoesNotFitError, with the arithmetic and the keys to change, when it does not
// fit.
TierPlan make_tier_plan(const PlanInputs& inputs, const Machine& machine);

// Fills in plan.other_units, where the inputs have any.
void compare_units(TierPlan& plan, const PlanInputs& inputs, const Machine& machine);

// Why the plan does not fit, and what each key would gain; empty when it does.
std::string explain_misfit(const PlanInputs& inputs, const Machine& machine);

}  // namespace longshore
