// ModuleIndex: finds the parameters of a unit's modules. Units own one; it is immutable. Compute
// thread only.
#pragma once

#include <ATen/ATen.h>

#include <array>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "model/families/arch_spec.h"
#include "model/parameters/model_spec.h"
#include "model/units/differentiable_ops.h"
#include "model/units/linear.h"
#include "model/units/unit.h"

namespace longshore {

// Maps each module to the indices of its parameters in a unit's parameters; -1 for what it lacks.
class ModuleIndex {
 public:
  ModuleIndex(const std::vector<ModuleParameter>& parameters, const ArchSpec& arch);
  // Undefined if the unit has none; new memory if it is packed.
  at::Tensor weight(UnitParameters parameters, Module module) const {
    return tensor(parameters, module, ParameterRole::kWeight);
  }
  at::Tensor bias(UnitParameters parameters, Module module) const {
    return tensor(parameters, module, ParameterRole::kBias);
  }
  // Returns a module's matrix, bias and adapter. `batch` has the keys of the adapter's dropout, and
  // says whether the product is by row.
  Linear linear(UnitParameters parameters, Module module, const MicroBatch& batch = {}) const;
  // Likewise, for modules in whose adapters nothing is dropped.
  Linear undropped(UnitParameters parameters, Module module, const MicroBatch& batch) const;
  // Sets the matrix of a single expert if it is a parameter of its own.
  void set_own(Linear& linear, UnitParameters parameters, Module module, int64_t expert) const;
  NormWeights norm(UnitParameters parameters, Module module, NormKind kind, double eps) const {
    return {weight(parameters, module), bias(parameters, module), kind, eps};
  }
  NormGradients norm_gradients(UnitParameters parameters, Module module, NormKind kind, double eps,
                               const GradientSink& sink) const {
    return {norm(parameters, module, kind, eps), weight_index(module), bias_index(module), sink};
  }
  int32_t weight_index(Module module) const { return index(module, ParameterRole::kWeight); }
  int32_t bias_index(Module module) const { return index(module, ParameterRole::kBias); }

  int32_t index(Module module, ParameterRole role) const {
    return modules_[static_cast<size_t>(module)].place(role).index;
  }

 private:
  at::Tensor tensor(UnitParameters parameters, Module module, ParameterRole role) const;

  std::array<Linear, kModuleCount> modules_;                  // without tensors
  std::map<std::pair<Module, int64_t>, int32_t> of_experts_;  // parameters of single experts
};

}  // namespace longshore
