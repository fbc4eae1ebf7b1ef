// How a run stripes its state over drives: as its state files are already, or as their probe says.
// Main thread.
#pragma once

#include "trainer/setup/run_setup.h"

namespace longshore {

// Fills in geometry and depth of setup.inputs.nvme from what the directories hold, measures
// nothing. For whoever plans only.
void read_drive_geometry(RunSetup& setup);

// For a rank of a run: the geometry of its state files counts where there are some; drives
// that nobody has measured are probed by one rank of the node where the state is worth it.
// Collective.
void settle_drive_geometry(RunSetup& setup);

}  // namespace longshore
