#include "offload/plan/plan_inputs.h"

#include <algorithm>

#include "base/errors.h"
#include "offload/plan/plan_sizes.h"
#include "offload/plan/tier_plan.h"

namespace longshore {
namespace {

// other_units: drafts the plan again with each other split into units, and records the differences.

Bytes moved(const StepTraffic& step) {
  return step.h2d + step.d2h + step.nvme_read + step.nvme_written + step.files_read;
}

}  // namespace

std::string_view name_of(CostSource source) {
  switch (source) {
    case CostSource::kMeasured:
      return "measured";
    case CostSource::kFitted:
      return "fitted to smaller runs";
    case CostSource::kEstimated:
      return "estimated";
    case CostSource::kTooLarge:
      return "more than the device has";
  }
  return "";
}

std::string recompute_value(KeptResults kept) {
  switch (kept) {
    case KeptResults::kNone:
      return "\"unit\"";
    case KeptResults::kAttention:
      return "\"except-attention\"";
    case KeptResults::kHeads:
      return "\"except-heads\"";
    case KeptResults::kMiddle:
      return "\"except-middle\"";
    case KeptResults::kMlp:
      return "\"except-mlp\"";
  }
  return "";
}

Bytes DecodeUse::state_bytes() const {
  return sequences == 0 ? 0 : plan_product({sequences, sequence_bytes(longest)});
}

Workspace workspace_of(const ModelSpec& model, const std::vector<UnitCost>& costs,
                       int32_t kept_graphs) {
  LONGSHORE_CHECK(costs.size() == model.units.size()) << costs.size();
  Workspace workspace;
  const size_t before_loss = costs.size() - 1;
  for (size_t i = 0; i < costs.size(); ++i) {
    if (i < before_loss && before_loss - i <= static_cast<size_t>(kept_graphs)) {
      workspace.saved += costs[i].saved;
    }
    workspace.source = std::max(workspace.source, costs[i].source);
    const bool backward = costs[i].backward >= costs[i].forward;
    const Bytes bytes = backward ? costs[i].backward : costs[i].forward;
    if (i > 0 && bytes <= workspace.worst) continue;
    workspace.worst = bytes;
    workspace.unit = model.units[i].name + (backward ? " backward" : " forward");
  }
  return workspace;
}

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
