// TierPlan: every byte on every tier, fixed before anything is allocated. A pure function of the
// model, the run file and the machine; plain values afterwards. Each tier's part is computed in the
// file of its name.
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

// The differences of a plan with other units from this one.
struct UnitsDifference {
  std::string name;
  bool fits = false;
  Bytes device = 0, host = 0;
  Bytes moved = 0;  // by a step, between host, device and drives
};

struct TierPlan {
  DevicePlan device;
  HostPlan host;
  DrivePlan drives;
  StepPlan step;

  int64_t parameters = 0;  // elements
  int64_t trainable = 0;
  DecodeUse decode;  // without sequence_bytes: device.states has the bytes
  StateOptions state;
  ShardTopology topology;
  int32_t ranks_per_node = 1;  // ranks that share a machine's memory
  DType reduce = DType::kF32;
  GatherMode gather = GatherMode::kCollective;
  bool frozen_in_files = false;  // frozen parameters are read from the model's files
  int compute_threads = 1;
  int optimizer_threads = 1;
  int64_t steps = 0;  // of the run; 0: unknown
  Bytes checkpoint_bytes = 0;
  Bytes export_bytes = 0;                    // without merging adapters
  std::vector<UnitsDifference> other_units;  // filled in by compare_units

  int32_t machines() const { return (topology.ranks + ranks_per_node - 1) / ranks_per_node; }
  bool fits() const {
    return device.within_limit() && device.limit_is_there() && host.within_limit() &&
           host.limit_is_there() && drives.missing == 0;
  }
};

// Returns the bytes of a checkpoint, written by all ranks together, without headers.
Bytes checkpoint_bytes(const ModelSpec& model, const StateOptions& state);

// Returns the plan, whether it fits or not. Throws DoesNotFitError only on overflow.
TierPlan draft_tier_plan(const PlanInputs& inputs, const Machine& machine);

// Returns the plan; throws DoesNotFitError, with arithmetic and keys to change, if it does not fit.
TierPlan make_tier_plan(const PlanInputs& inputs, const Machine& machine);

// Fills in plan.other_units, one entry for each of inputs.other_units.
void compare_units(TierPlan& plan, const PlanInputs& inputs, const Machine& machine);

// Returns why the plan does not fit and what each key would gain; empty if it fits.
std::string explain_misfit(const PlanInputs& inputs, const Machine& machine);

}  // namespace longshore
