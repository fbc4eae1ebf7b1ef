// other_units: drafts the plan again with each other split into units, and records the differences.
#include "offload/plan/tier_plan.h"

namespace longshore {
namespace {

Bytes moved(const StepTraffic& step) {
  return step.h2d + step.d2h + step.nvme_read + step.nvme_written;
}

}  // namespace

void compare_units(TierPlan& plan, const PlanInputs& inputs, const Machine& machine) {
  for (const OtherUnits& other : inputs.other_units) {
    PlanInputs changed = inputs;
    changed.model = other.model.get();
    changed.costs = other.costs;
    const TierPlan there = draft_tier_plan(changed, machine);
    plan.other_units.push_back({.name = other.name,
                                .fits = there.fits(),
                                .device = there.device.total - plan.device.total,
                                .host = there.host.total - plan.host.total,
                                .moved = moved(there.step.traffic) - moved(plan.step.traffic)});
  }
}

}  // namespace longshore
