#include "model/units/module_index.h"

namespace longshore {
namespace {

// Returns whether a matrix is stored as [in, out]. The embedding is: its inputs are tokens.
bool is_transposed(Module module, const ArchSpec& arch) {
  if (module == Module::kTokens) return true;
  if (module == Module::kExpertsGateUp || module == Module::kExpertsDown) {
    return arch.moe.transposed;
  }
  return module != Module::kHead && arch.transposed_weights;
}

}  // namespace

ModuleIndex::ModuleIndex(const std::vector<ModuleParameter>& parameters, const ArchSpec& arch) {
  for (size_t i = 0; i < kModuleCount; ++i) {
    modules_[i].transposed = is_transposed(static_cast<Module>(i), arch);
  }
  for (size_t i = 0; i < parameters.size(); ++i) {
    const ModuleParameter& one = parameters[i];
    const auto number = static_cast<int32_t>(i);
    if (one.expert >= 0) {
      of_experts_[{one.module, one.expert}] = number;
      continue;
    }
    Linear& linear = modules_[static_cast<size_t>(one.module)];
    linear.place(one.role).index = number;
    if (one.role != ParameterRole::kLoraA) continue;
    linear.lora.scaling = one.scaling;
    linear.lora.dropout = {.share = one.spec.dropout,
                           .stream = InputDropout::stream_of(one.spec.name)};
  }
}

at::Tensor ModuleIndex::tensor(UnitParameters parameters, Module module, ParameterRole role) const {
  const int32_t place = index(module, role);
  return place < 0 ? at::Tensor() : parameters[static_cast<size_t>(place)];
}

Linear ModuleIndex::linear(UnitParameters parameters, Module module,
                           const MicroBatch& batch) const {
  Linear one = modules_[static_cast<size_t>(module)];
  const int32_t place = weight_index(module);
  if (place >= 0) one.weight = parameters.at(static_cast<size_t>(place));
  one.bias = bias(parameters, module);
  one.lora.a = tensor(parameters, module, ParameterRole::kLoraA);
  // The embedding's A has a row for each token.
  if (module == Module::kTokens && one.lora.a.defined()) one.lora.a = one.lora.a.t();
  one.lora.b = tensor(parameters, module, ParameterRole::kLoraB);
  one.lora.magnitude = tensor(parameters, module, ParameterRole::kLoraMagnitude);
  one.lora.dropout.keys = batch.dropout_keys;
  if (batch.continued != nullptr) one.continue_rows(batch, parameters.stored().front());
  return one;
}

Linear ModuleIndex::undropped(UnitParameters parameters, Module module,
                              const MicroBatch& batch) const {
  Linear one = linear(parameters, module, batch);
  one.lora.dropout.keys = at::Tensor();
  return one;
}

void ModuleIndex::set_own(Linear& linear, UnitParameters parameters, Module module,
                          int64_t expert) const {
  const auto found = of_experts_.find({module, expert});
  if (found == of_experts_.end()) return;
  linear.weight = parameters.at(static_cast<size_t>(found->second));
  linear.place(ParameterRole::kWeight) = {.index = found->second};
  linear.transposed = false;
}

}  // namespace longshore
