#include "model/sparse_groups.h"

#include <utility>

namespace longshore {

std::vector<ModuleParameter> group_parameters(const std::vector<ModuleParameter>& all,
                                              const TableRows& experts) {
  std::vector<ModuleParameter> group;
  for (ModuleParameter parameter : all) {
    const bool of_all =
        parameter.module == Module::kExpertsGateUp || parameter.module == Module::kExpertsDown;
    const bool of_one = parameter.expert >= 0;
    const bool mine = of_all || (of_one ? parameter.expert >= experts.first &&
                                              parameter.expert < experts.first + experts.count
                                        : experts.begins());
    if (!mine) continue;
    if (of_all && experts.count < experts.all) parameter.spec = piece_of(parameter.spec, experts);
    group.push_back(std::move(parameter));
  }
  return group;
}

}  // namespace longshore
