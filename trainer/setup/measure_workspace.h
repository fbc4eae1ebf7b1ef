// MeasureWorkspace: how a run learns what its units take beyond the plan's own buffers: by running
// them, or from what an earlier run of this program on this device kept. Free function.
#pragma once

#include <memory>

#include "trainer/setup/run_setup.h"

namespace longshore {

// Fills in setup.inputs.costs. All ranks of the run call it, and have the largest of their figures
// then. Kept in the directory "workspace" of the run's cache.
void measure_workspace(RunSetup& setup);
// Of another model: measured at the first call, by this rank alone, for what is only told.
UnitCosts costs_when_asked(const RunSetup& setup, std::shared_ptr<const Model> model);

}  // namespace longshore
