// ModuleIndex: finds the parameters of a unit's modules. Units own one; it is immutable. Compute
// thread only.
#pragma once

#include <ATen/ATen.h>

#include <array>
#include <cstdint>
#include <vector>

#include "model/families/arch_spec.h"
#include "model/parameters/model_spec.h"
#include "model/units/differentiable_ops.h"
#include "model/units/unit.h"

namespace longshore {

// Maps each module to the indices of its parameters in a unit's parameters; -1 for what it lacks.
// It leaves out parameters of single experts.
class ModuleIndex {
 public:
  // `lora_scaling` is AdapterSpec::scaling.
  explicit ModuleIndex(const std::vector<ModuleParameter>& parameters, double lora_scaling = 1.0);
  // Undefined if the unit has none; new memory if it is packed.
  at::Tensor weight(UnitParameters parameters, Module module) const {
    return tensor(parameters, module, ParameterRole::kWeight);
  }
  at::Tensor bias(UnitParameters parameters, Module module) const {
    return tensor(parameters, module, ParameterRole::kBias);
  }
  // `batch` has the keys of the adapter's dropout.
  LinearWeights linear(UnitParameters parameters, Module module, const MicroBatch& batch) const;
  NormWeights norm(UnitParameters parameters, Module module, NormKind kind, double eps) const {
    return {weight(parameters, module), bias(parameters, module), kind, eps};
  }
  int32_t weight_index(Module module) const { return index(module, ParameterRole::kWeight); }
  int32_t bias_index(Module module) const { return index(module, ParameterRole::kBias); }

  int32_t index(Module module, ParameterRole role) const {
    return indices_[static_cast<size_t>(role)][static_cast<size_t>(module)];
  }
  at::Tensor tensor(UnitParameters parameters, Module module, ParameterRole role) const;

 private:
  std::array<std::array<int32_t, kModuleCount>, kRoleCount> indices_;
  std::array<InputDropout, kModuleCount> dropouts_;  // without keys
  double lora_scaling_;
};

}  // namespace longshore
