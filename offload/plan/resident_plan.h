// Resident units: frozen parameters that are read from the model's files once and stay in host
// memory, where the rest is read in every pass (offload.parameters = "files"). Pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "offload/plan/host_plan.h"
#include "offload/plan/plan_sizes.h"
#include "offload/plan/step_plan.h"

namespace longshore {

// A unit that could be resident.
struct ResidentUnit {
  Bytes bytes = 0;    // host memory that it takes; 0: it needs nothing from files
  int32_t reads = 0;  // in a step, if it is not resident
};

// Returns by unit whether it is resident; together they take at most `room`. Units that a step
// reads more often come first. Among equals, resident units and those that are read alternate as
// evenly as the room allows.
std::vector<bool> spread_resident(const std::vector<ResidentUnit>& units, Bytes room);

// Chooses the resident units of a plan: `step` and `host` are its parts without any. Returns an
// empty list if none is resident.
std::vector<bool> choose_resident(const PlanSizes& sizes, const StepPlan& step,
                                  const HostPlan& host);

}  // namespace longshore
