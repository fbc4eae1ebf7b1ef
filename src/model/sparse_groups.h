// Sparse groups: which parameters a group of a layer's experts has. Pure functions, no LibTorch.
#pragma once

#include <vector>

#include "model/model_spec.h"
#include "model/unit_cut.h"

namespace longshore {

// The parameters of a group of a sparse layer's experts, from those of router and experts.
std::vector<ModuleParameter> group_parameters(const std::vector<ModuleParameter>& all,
                                              const TableRows& experts);

}  // namespace longshore
