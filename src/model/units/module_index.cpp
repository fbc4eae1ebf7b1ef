#include "model/units/module_index.h"

#include <utility>

namespace longshore {

ModuleIndex::ModuleIndex(const std::vector<ModuleParameter>& parameters, double lora_scaling)
    : lora_scaling_(lora_scaling) {
  for (auto& table : indices_) table.fill(-1);
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (parameters[i].expert >= 0) continue;
    auto& table = indices_[static_cast<size_t>(parameters[i].role)];
    const auto module = static_cast<size_t>(parameters[i].module);
    table[module] = static_cast<int32_t>(i);
    if (parameters[i].role != ParameterRole::kLoraA) continue;
    const ParamSpec& a = parameters[i].spec;
    dropouts_[module] = {.share = a.dropout, .stream = InputDropout::stream_of(a.name)};
  }
}

at::Tensor ModuleIndex::tensor(UnitParameters parameters, Module module, ParameterRole role) const {
  const int32_t place = index(module, role);
  return place < 0 ? at::Tensor() : parameters[static_cast<size_t>(place)];
}

LinearWeights ModuleIndex::linear(UnitParameters parameters, Module module,
                                  const MicroBatch& batch) const {
  InputDropout dropout = dropouts_[static_cast<size_t>(module)];
  dropout.keys = batch.dropout_keys;
  const int32_t place = weight_index(module);
  return {.weight = place < 0 ? StoredMatrix() : parameters.at(static_cast<size_t>(place)),
          .bias = bias(parameters, module),
          .lora_a = tensor(parameters, module, ParameterRole::kLoraA),
          .lora_b = tensor(parameters, module, ParameterRole::kLoraB),
          .lora_magnitude = tensor(parameters, module, ParameterRole::kLoraMagnitude),
          .lora_scaling = lora_scaling_,
          .lora_dropout = std::move(dropout)};
}

}  // namespace longshore
