#include "model/router_corrections.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "base/errors.h"
#include "model/model_spec.h"

namespace longshore {

std::map<std::string, int64_t> correction_places(const ArchSpec& arch, const ModelSpec& whole) {
  std::map<std::string, int64_t> places;
  for (int64_t layer = 0; layer < arch.layer_count(); ++layer) {
    const std::vector<ModuleParameter> modules = block_parameters(arch, {}, layer);
    const auto found =
        std::ranges::find(modules, Module::kRouterCorrection, &ModuleParameter::module);
    if (found == modules.end()) continue;
    const UnitSpec& block = whole.units.at(static_cast<size_t>(layer) + 1);
    const auto index = static_cast<size_t>(found - modules.begin());
    places.emplace(block.parameters.at(index).name, layer * arch.moe.experts);
  }
  return places;
}

void move_corrections(const RouterShape& shape, std::span<const double> sums,
                      std::span<float> corrections) {
  LONGSHORE_CHECK(std::ssize(corrections) == shape.layers * shape.experts &&
                  sums.size() >= corrections.size())
      << corrections.size();
  const auto experts = static_cast<size_t>(shape.experts);
  const auto rate = static_cast<float>(shape.correction_rate);
  for (size_t first = 0; first < corrections.size(); first += experts) {
    const std::span<const double> loads = sums.subspan(first, experts);
    const double all = std::accumulate(loads.begin(), loads.end(), 0.0);
    for (size_t expert = 0; expert < experts; ++expert) {
      const double load = loads[expert] * static_cast<double>(shape.experts);
      if (load < all) corrections[first + expert] += rate;
      if (load > all) corrections[first + expert] -= rate;
    }
  }
}

}  // namespace longshore
