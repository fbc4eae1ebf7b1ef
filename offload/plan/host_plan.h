// HostPlan: every byte of host memory that one rank uses. Plain values.
#pragma once

#include <cstdint>
#include <vector>

#include "offload/plan/device_plan.h"
#include "offload/plan/machine.h"
#include "offload/plan/pinned_plan.h"
#include "offload/plan/plan_sizes.h"
#include "offload/plan/step_plan.h"

namespace longshore {

struct HostPlan : PlanAccount {
  Bytes arena = 0;            // store of parameters and state, exact
  Bytes gradients = 0;        // HostGradients, exact
  int32_t gradient_ring = 0;  // > 0: units reuse N host gradient slots in rotation
  Bytes matrix_scratch = 0;   // of updates of whole matrices, exact
  Bytes matrix_padding = 0;   // of state, in a tier, because matrices are kept whole
  Bytes inputs = 0;           // activation checkpoints or their staging slots; exact
  Bytes resident = 0;         // frozen parameters that stay, in `arena`; exact
  PinnedPlan pinned;          // what of it is registered with the GPU
  Bytes machine = 0;          // the rank's share of the machine's or cgroup's memory; 0: unknown

  // Returns false for a limit that exceeds the machine's memory.
  bool limit_is_there() const { return limit_auto || machine == 0 || limit <= machine; }
};

HostPlan plan_host(const PlanSizes& sizes, const DevicePlan& device, const StepPlan& step,
                   const Machine& machine);

// Resident units: frozen parameters that are read from the model's files once and stay in host
// memory, where the rest is read in every pass (offload.parameters = "files"). Pure functions.

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
