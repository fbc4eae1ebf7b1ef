// From the run file to the plan's inputs. Pure function.
#pragma once

#include "config/run_config.h"
#include "offload/optimizer/adamw.h"
#include "offload/plan/machine.h"
#include "offload/plan/tier_plan.h"

namespace longshore {

StateOptions state_options(const RunConfig& config);
AdamWOptions adamw_options(const RunConfig& config);

// LibTorch's compute threads: the run file's, or the machine's physical cores.
int compute_threads(const RunConfig& config, const Machine& machine);

// `model` must outlive the inputs. Threads that the run file leaves to us are the physical cores;
// compute threads of a CPU device and optimizer threads take turns, so both may have all.
// A GPU that is not here can be planned for. The costs are the caller's to fill in, once they are
// measured.
PlanInputs plan_inputs(const RunConfig& config, const ModelSpec& model, const Machine& machine);

// `auto` is settled before a plan is made (trainer/device/device_choice.h); until then it is the
// CPU.
DeviceKind device_kind(const RunConfig& config);

}  // namespace longshore
