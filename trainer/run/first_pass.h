// first_pass: compares the memory of a run's first pass with its plan before the first update. Free
// function.
#pragma once

#include <span>

#include "device/device_memory.h"
#include "offload/engine/batch_stage.h"
#include "offload/plan/tier_plan.h"

namespace longshore {

// Checks a plan whose workspace was not measured at the run's own shape; `usage` is the memory of a
// pass over `batches`. Throws OutOfMemoryError, with the key to change, if by its measure a pass
// over full micro-batches will not fit; warns if it only takes more than planned. Runs with updates
// in backward have measured plans (setup/measured_run.cpp).
void check_first_pass(const PlanInputs& inputs, const TierPlan& plan,
                      const DeviceMemory::Usage& usage, std::span<const HostBatch> batches);

}  // namespace longshore
