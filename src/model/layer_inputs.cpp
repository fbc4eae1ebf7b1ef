#include "model/layer_inputs.h"

#include <ATen/core/grad_mode.h>

#include <array>
#include <cmath>
#include <numbers>
#include <utility>

#include "model/block_carry.h"
#include "model/decoder_units.h"
#include "model/differentiable_ops.h"
#include "model/table_pieces.h"

namespace longshore {

InputTableUnit::InputTableUnit(const ArchSpec& arch, const TableRows& rows)
    : rows_(rows), scale_(std::sqrt(static_cast<double>(arch.layer_input))) {}

std::string InputTableUnit::signature() const {
  const bool whole = rows_.begins() && rows_.ends();
  return std::string("input table") + (whole ? "" : rows_.begins() ? " first" : " piece");
}

Carry InputTableUnit::forward(UnitParameters parameters, const Carry& in,
                              const MicroBatch& batch) const {
  const at::NoGradGuard no_grad;  // has_own_backward
  const auto [inside, local] = find_rows(batch.tokens, rows_);
  at::Tensor part = at::index_select(parameters[0], 0, local);
  part.mul_(embedding_scale_for(scale_, /*rounded=*/true, part));
  return {in.at(0), joined_rows(std::move(part), inside, rows_, in, kLayerInputs)};
}

Carry InputTableUnit::backward(UnitParameters, const Carry&, const MicroBatch& batch,
                               const Carry& grad_out, GradientSink& sink) const {
  const at::Tensor& grad = grad_out.at(kLayerInputs);
  if (sink.wants(0)) {
    const auto [inside, local] = find_rows(batch.tokens, rows_);
    add_rows_inside(grad * embedding_scale_for(scale_, /*rounded=*/true, grad), inside, local,
                    sink);
  }
  if (rows_.begins()) return {grad_out.at(0)};
  return {grad_out.at(0), grad};
}

LayerInputsUnit::LayerInputsUnit(const ArchSpec& arch)
    : index_(input_parameters(arch, {}), arch.adapter.scaling),
      norm_(arch.norm),
      eps_(arch.norm_eps),
      scale_(1.0 / std::sqrt(static_cast<double>(arch.hidden))),
      transposed_(arch.transposed_weights),
      drops_(arch.adapter.dropout > 0.0) {}

std::string LayerInputsUnit::signature() const {
  const bool adapted = index_.index(Module::kInputProjection, ParameterRole::kLoraA) >= 0;
  return std::string("layer inputs ") + std::to_string(static_cast<int>(norm_)) +
         (adapted ? " lora" : "") + (adapted && drops_ ? " dropout" : "");
}

Carry LayerInputsUnit::forward(UnitParameters parameters, const Carry& in,
                               const MicroBatch& batch) const {
  const std::array projection{index_.linear(parameters, Module::kInputProjection, batch)};
  const at::Tensor projected = linear_group(in.at(0), {}, projection, transposed_)[0] * scale_;
  const NormWeights norm = index_.norm(parameters, Module::kInputNorm, norm_, eps_);
  const at::Tensor part = normalise(projected, norm.weight, norm.bias, norm.kind, norm.eps);
  return {in.at(0), (part + in.at(kLayerInputs)) * (1.0 / std::numbers::sqrt2)};
}

}  // namespace longshore
