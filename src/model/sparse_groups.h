// sparse_groups: the parameters of a group of a layer's experts. Pure functions, no LibTorch.
#pragma once

#include <vector>

#include "model/model_spec.h"
#include "model/unit_cut.h"

namespace longshore {

// Returns a group's parameters, given `all` parameters of the layer's norm, router and experts.
std::vector<ModuleParameter> group_parameters(const std::vector<ModuleParameter>& all,
                                              const TableRows& experts);

}  // namespace longshore
