// How a run's units are settled and measured. "auto" takes the coarsest cut that fits on every
// rank, or the one that the drives hold. Free functions; main thread.
#pragma once

#include "trainer/setup/run_setup.h"

namespace longshore {

// Fills in setup.inputs.model and costs, and the other cuts to compare with, which are measured
// when somebody asks. All ranks of the run call it, and have the same units and costs then.
void settle_units(RunSetup& setup);

}  // namespace longshore
