#include "offload/plan/unit_costs.h"

#include <algorithm>

#include "base/errors.h"

namespace longshore {

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

}  // namespace longshore
