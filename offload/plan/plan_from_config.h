// plan_from_config: makes the plan's inputs from the run file. Pure functions.
#pragma once

#include <memory>

#include "config/run_config.h"
#include "offload/optimizer/adamw.h"
#include "offload/plan/machine.h"
#include "offload/plan/tier_plan.h"

namespace longshore {

StateOptions state_options(const RunConfig& config);
AdamWOptions adamw_options(const RunConfig& config);
// Returns the rule of optimizer.groups, whose regions state_options has; so far AdamW for all of
// them. One that needs whole matrices is a TwoRules with AdamW, which takes what its groups' globs
// match.
std::unique_ptr<UpdateRule> update_rule(const RunConfig& config);

// Returns LibTorch's compute threads: the run file's, or the machine's physical cores.
int compute_threads(const RunConfig& config, const Machine& machine);

// Makes the inputs; `model` must outlive them. Thread counts that the run file omits default to the
// physical cores: compute and optimizer threads of a CPU device both get all. The GPU need not be
// installed. The caller fills in the costs once they are measured.
PlanInputs plan_inputs(const RunConfig& config, const ModelSpec& model, const Machine& machine);

// Returns the device; `auto` counts as the CPU until trainer/device/device_choice.h resolves it.
DeviceKind device_kind(const RunConfig& config);

}  // namespace longshore
