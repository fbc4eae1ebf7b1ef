// HostPlan: every byte of host memory that one rank uses. Plain values.
#pragma once

#include <cstdint>

#include "offload/plan/device_plan.h"
#include "offload/plan/machine.h"
#include "offload/plan/plan_account.h"
#include "offload/plan/plan_sizes.h"
#include "offload/plan/step_plan.h"

namespace longshore {

struct HostPlan : PlanAccount {
  Bytes arena = 0;            // store of parameters and state, exact
  Bytes gradients = 0;        // HostGradients, exact
  int32_t gradient_ring = 0;  // > 0: units reuse N host gradient slots in rotation
  Bytes inputs = 0;           // activation checkpoints or their staging slots; exact
  Bytes resident = 0;         // frozen parameters that stay, in `arena`; exact
  Bytes machine = 0;          // the rank's share of the machine's or cgroup's memory; 0: unknown

  // Returns false for a limit that exceeds the machine's memory.
  bool limit_is_there() const { return limit_auto || machine == 0 || limit <= machine; }
};

HostPlan plan_host(const PlanSizes& sizes, const DevicePlan& device, const StepPlan& step,
                   const Machine& machine);

}  // namespace longshore
