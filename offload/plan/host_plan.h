// HostPlan: every byte of the host's memory that one rank takes. Plain values.
#pragma once

#include <cstdint>

#include "offload/plan/device_plan.h"
#include "offload/plan/machine.h"
#include "offload/plan/plan_account.h"
#include "offload/plan/plan_sizes.h"
#include "offload/plan/step_plan.h"

namespace longshore {

struct HostPlan : PlanAccount {
  Bytes arena = 0;            // the store of parameters and state, exact
  Bytes gradients = 0;        // HostGradients, exact
  int32_t gradient_ring = 0;  // > 0: gradients in host memory take turns in so many places
  Bytes inputs = 0;           // activation checkpoints, or what stages them for the drives; exact
  Bytes machine = 0;          // the rank's part of what the machine or its cgroup has; 0: not known

  // A limit that the machine does not have would be no limit.
  bool limit_is_there() const { return limit_auto || machine == 0 || limit <= machine; }
};

HostPlan plan_host(const PlanSizes& sizes, const DevicePlan& device, const StepPlan& step,
                   const Machine& machine);

}  // namespace longshore
