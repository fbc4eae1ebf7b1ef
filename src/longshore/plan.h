// The inputs of a plan, the plan, and the measurement of a model's units for it.
#pragma once

#include "offload/engine/probe/measured_workspace.h"
#include "offload/plan/machine.h"
#include "offload/plan/tier_plan.h"
