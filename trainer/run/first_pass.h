// What a run's first pass took against what its plan says, before anything is updated. Free
// function.
#pragma once

#include <span>

#include "device/device_memory.h"
#include "offload/engine/batch_stage.h"
#include "offload/plan/tier_plan.h"

namespace longshore {

// Where the plan's workspace is not measured at the run's own shape: `usage` is that of a pass over
// `batches`, counted since before it. OutOfMemoryError, with the key to change, when a pass over
// full micro-batches will not fit, judged by this one; a warning when it only takes more than
// planned. Runs with updates in backward have measured plans (setup/measured_run.cpp).
void check_first_pass(const PlanInputs& inputs, const TierPlan& plan,
                      const DeviceMemory::Usage& usage, std::span<const HostBatch> batches);

}  // namespace longshore
