#include "model/parameters/unit_builder.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/errors.h"
#include "model/parameters/adapter.h"

namespace longshore {

void UnitBuilder::matrix(Module module, int64_t out, int64_t in, bool bias, double scale) {
  std::vector<int64_t> shape{out, in};
  if (arch_.transposed_weights) std::swap(shape[0], shape[1]);
  add(module, false, std::move(shape), normal_init(arch_.initializer_range * scale));
  parameters_.back().spec.matrices.transposed = arch_.transposed_weights;
  if (arch_.adapter.adapts(layer_, module)) {
    parameters_.back().adapted = {.module = adapter_module(module),
                                  .scaling = arch_.adapter.size_of(layer_, module).scaling,
                                  .transposed = arch_.transposed_weights};
  }
  if (bias) add(module, true, {out}, {.kind = InitSpec::Kind::kZeros});
  if (arch_.adapter.adapts(layer_, module)) add_adapter(module, out, in);
}

void UnitBuilder::holds(Module module, const std::vector<int64_t>& outputs) {
  bool found = false;
  for (ModuleParameter& parameter : parameters_) {
    const bool has_outputs =
        parameter.role == ParameterRole::kWeight || parameter.role == ParameterRole::kLoraB;
    if (parameter.module != module || !has_outputs) continue;
    parameter.spec.matrices.outputs = outputs;
    found = true;
  }
  LONGSHORE_CHECK(found) << "layer " << layer_ << " has no module " << static_cast<int>(module);
}

bool UnitBuilder::has(Module module) const {
  return std::ranges::any_of(parameters_, [module](const ModuleParameter& parameter) {
    return parameter.module == module;
  });
}

void UnitBuilder::router(int64_t experts, int64_t in) {
  const size_t place = parameters_.size();
  matrix(Module::kRouter, experts, in, false);
  parameters_[place].spec.routes = true;
}

void UnitBuilder::table(Module module, int64_t rows) {
  const bool lookup = module != Module::kHead;
  add(module, false, {rows, arch_.hidden}, normal_init(arch_.initializer_range));
  parameters_.back().spec.looked_up = lookup;
  if (module != Module::kPositions) parameters_.back().spec.added_rows = arch_.added_tokens;
  parameters_.back().spec.matrices.none = true;
  if (!arch_.adapter.adapts(layer_, module)) return;
  parameters_.back().adapted = {.module = adapter_module(module),
                                .scaling = arch_.adapter.size_of(layer_, module).scaling,
                                .transposed = lookup,
                                .lookup = lookup};
  if (lookup) {
    add_lookup_adapter(module, rows);
  } else {
    add_adapter(module, rows, arch_.hidden);
  }
}

void UnitBuilder::expert_matrix(Module module, int64_t expert, int64_t out, int64_t in,
                                double scale) {
  add(module, false, {out, in}, normal_init(arch_.initializer_range * scale), expert);
  const Module of_all =
      module == Module::kExpertDown ? Module::kExpertsDown : Module::kExpertsGateUp;
  if (!arch_.adapter.adapts(layer_, of_all)) return;
  parameters_.back().adapted = {
      .module = adapter_module(of_all),
      .scaling = arch_.adapter.size_of(layer_, of_all).scaling,
      .expert = expert,
      // Without gates up is all of the first matrix.
      .first_output = module == Module::kExpertUp && arch_.gated ? out : 0};
}

void UnitBuilder::expert_matrices(Module module, int64_t out, int64_t in, double scale) {
  const MoeSpec& moe = arch_.moe;
  std::vector<int64_t> shape{moe.experts, out, in};
  if (moe.transposed) std::swap(shape[1], shape[2]);
  add(module, false, std::move(shape), normal_init(arch_.initializer_range * scale));
  parameters_.back().spec.stacked = true;
  parameters_.back().spec.matrices.transposed = moe.transposed;
  if (arch_.adapter.adapts(layer_, module)) {
    parameters_.back().adapted = {.module = adapter_module(module),
                                  .scaling = arch_.adapter.size_of(layer_, module).scaling,
                                  .transposed = moe.transposed};
  }
  if (!moe.expert_bias) return;
  add(module, true, {moe.experts, out}, {.kind = InitSpec::Kind::kZeros});
  parameters_.back().spec.stacked = true;
}

void UnitBuilder::buffer(Module module, int64_t width, InitSpec::Kind init, bool stays_fp32) {
  add(module, false, {width}, {.kind = init});
  parameters_.back().spec.frozen = true;
  parameters_.back().spec.stays_fp32 = stays_fp32;
}

void UnitBuilder::norm(Module module, int64_t width, NormKind kind) {
  const bool offset = kind == NormKind::kRmsOffset;
  add(module, false, {width}, {.kind = offset ? InitSpec::Kind::kZeros : InitSpec::Kind::kOnes});
  if (kind == NormKind::kLayer && arch_.norm_bias) {
    add(module, true, {width}, {.kind = InitSpec::Kind::kZeros});
  }
}

void UnitBuilder::add(Module module, bool bias, std::vector<int64_t> shape, InitSpec init,
                      int64_t expert) {
  ParamSpec spec{
      .name = parameter_name(arch_, arch_.moe.fused, prefix_, module, bias, layer_, expert),
      .shape = std::move(shape),
      .init = init};
  parameters_.push_back({.module = module,
                         .role = bias ? ParameterRole::kBias : ParameterRole::kWeight,
                         .spec = std::move(spec),
                         .expert = expert});
}

std::string UnitBuilder::adapter_module(Module module) const {
  const std::string name =
      module_of(parameter_name(arch_, /*fused=*/true, prefix_, module, false, layer_, -1));
  const std::string experts = name.substr(0, name.rfind('.'));
  if (module == Module::kExpertsGateUp) return experts + ".base_layer";
  return module == Module::kExpertsDown ? experts : name;
}

void UnitBuilder::add_adapter(Module module, int64_t out, int64_t in, int64_t experts) {
  const auto [a, b, magnitude] = adapter_names(adapter_module(module));
  const double bound = 1.0 / std::sqrt(static_cast<double>(in));
  const AdapterSpec::Size& size = arch_.adapter.size_of(layer_, module);
  const auto push = [&](ParameterRole role, std::string name, std::vector<int64_t> shape,
                        InitSpec init) {
    if (experts > 0) shape.insert(shape.begin(), experts);
    parameters_.push_back({.module = module,
                           .role = role,
                           .spec = {.name = std::move(name),
                                    .shape = std::move(shape),
                                    .stacked = experts > 0,
                                    .adapter = true,
                                    .init = init}});
  };
  push(ParameterRole::kLoraA, a, {size.rank, in},
       {.kind = InitSpec::Kind::kUniform, .bound = bound});
  parameters_.back().spec.dropout = arch_.adapter.dropout;
  parameters_.back().scaling = size.scaling;
  push(ParameterRole::kLoraB, b, {out, size.rank}, {.kind = InitSpec::Kind::kZeros});
  parameters_.back().spec.matrices.none = module == Module::kHead;  // its rows belong to tokens
  if (!arch_.adapter.magnitudes) return;
  push(ParameterRole::kLoraMagnitude, magnitude, {out}, {.kind = InitSpec::Kind::kOnes});
}

void UnitBuilder::add_lookup_adapter(Module module, int64_t rows) {
  const AdapterNames names = adapter_names(adapter_module(module), /*lookup=*/true);
  const AdapterSpec::Size& size = arch_.adapter.size_of(layer_, module);
  const auto push = [&](ParameterRole role, const std::string& name, std::vector<int64_t> shape,
                        InitSpec init) {
    parameters_.push_back(
        {.module = module,
         .role = role,
         .spec = {.name = name, .shape = std::move(shape), .adapter = true, .init = init}});
  };
  push(ParameterRole::kLoraA, names.a, {rows, size.rank}, {.kind = InitSpec::Kind::kZeros});
  parameters_.back().scaling = size.scaling;
  parameters_.back().spec.matrices.none = true;
  push(ParameterRole::kLoraB, names.b, {arch_.hidden, size.rank}, normal_init(1.0));
  if (!arch_.adapter.magnitudes) return;
  push(ParameterRole::kLoraMagnitude, names.magnitude, {arch_.hidden},
       {.kind = InitSpec::Kind::kOnes});
}

}  // namespace longshore
