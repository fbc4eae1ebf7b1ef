#include "trainer/setup/goal_search.h"

#include <algorithm>
#include <utility>

#include "base/errors.h"

namespace longshore {
namespace {

// Where no time is known, or none is wanted, plans differ in bytes alone.
StepForecast no_time(const PlanInputs&, const TierPlan&) {
  return {};
}

Bytes memory_of(const PlanPoint& point) {
  return point.device + point.host;
}

// Whatever takes least on the device, with every choice of where things live and what a unit is.
bool fits_somehow(PlanInputs inputs, const Machine& machine) {
  inputs.micro_batch = 1;
  inputs.prefetch = 0;
  inputs.recompute = true;
  inputs.keep_what_fits = false;
  std::vector<SearchAxis> axes = search_axes(inputs, {});
  // Where no length fits, other micro-batches and keys of speed do not help.
  std::erase_if(axes, [](const SearchAxis& axis) {
    return axis.size() < 2 || (axis[1].key != "fsdp.units" && !axis[1].key.starts_with("offload."));
  });
  PlanSearch search(std::move(inputs), machine, axes, no_time);
  std::vector<size_t> choice(axes.size(), 0);
  while (true) {
    if (search.at(choice) != nullptr) return true;
    size_t axis = 0;
    while (axis < axes.size() && ++choice[axis] == axes[axis].size()) choice[axis++] = 0;
    if (axis == axes.size()) return false;
  }
}

}  // namespace

std::optional<PlanPoint> best_point(DraftGoal goal, const RunSetup& setup,
                                    const std::optional<DescribedMachine>& described) {
  PlanForecast forecast(&setup, described);
  if (goal == DraftGoal::kFastest && !forecast.known()) {
    throw ConfigError(
        "init: the speed of this machine has not been measured, and the fastest plan depends on "
        "it; `longshore doctor --rates` measures it in a minute or two");
  }
  const bool timed = goal != DraftGoal::kSmallest && forecast.known();
  PlanSearch search =
      timed ? forecast.search({})
            : PlanSearch(setup.inputs, setup.machine, search_axes(setup.inputs, {}), no_time);
  const std::vector<PlanPoint> points = search.frontier();
  if (points.empty()) return std::nullopt;
  return timed ? points.front() : *std::ranges::min_element(points, {}, memory_of);
}

int64_t longest_sequences(const RunSetup& setup, int64_t most) {
  PlanInputs inputs = setup.inputs;
  while (inputs.max_tokens < most) {
    PlanInputs longer = inputs;
    longer.max_tokens = std::min(2 * longer.max_tokens, most);
    if (!fits_somehow(longer, setup.machine)) break;
    inputs.max_tokens = longer.max_tokens;
  }
  return inputs.max_tokens;
}

}  // namespace longshore
