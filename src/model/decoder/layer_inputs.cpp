#include "model/decoder/decoder_units.h"

#include <ATen/core/grad_mode.h>

#include <array>
#include <cmath>
#include <numbers>
#include <utility>

#include "model/parameters/block_carry.h"
#include "model/units/differentiable_ops.h"

namespace longshore {
namespace {

// The units that make each layer's own input (Gemma 4 E2B, E4B) from the tokens and their embedding
// e, for all layers at once: (norm(projection(e) / sqrt(hidden)) + sqrt(width) * table[token]) /
// sqrt(2). Blocks read their part of it.
//
// [Note: two units for the layers' inputs] The table is larger than all other parameters of E2B
// together. Its unit looks up rows and needs no parameter in backward, so it is fetched once a
// step, like the embedding, and may be cut by rows. What it returns enters a sum, so the next
// unit's backward does not need its values, and no checkpoint keeps them.

// The table's part of the inputs, or that of the tokens whose rows are in a piece of the table.
// Carry in: the embedding, and behind the first piece the sum so far. Carry out: both.
class InputTableUnit : public Unit {
 public:
  InputTableUnit(const ArchSpec& arch, const TableRows& rows)
      : rows_(rows), scale_(std::sqrt(static_cast<double>(arch.layer_input))) {}
  UnitTraits traits(const UnitUse& use) const override {
    const bool whole = rows_.begins() && rows_.ends();
    return {.signature = std::string("input table") + (whole            ? ""
                                                       : rows_.begins() ? " first"
                                                                        : " piece"),
            .documents = {use.longest_document}};
  }
  Carry forward(UnitParameters parameters, const Carry& in,
                const MicroBatch& batch) const override {
    const at::NoGradGuard no_grad;  // has_own_backward
    const auto [inside, local] = find_rows(batch.tokens, rows_);
    at::Tensor part = at::index_select(parameters[0], 0, local);
    part.mul_(embedding_scale_for(scale_, /*rounded=*/true, part));
    return {in.at(0), joined_rows(std::move(part), inside, rows_, in, kLayerInputs)};
  }
  bool has_own_backward() const override { return true; }
  Carry backward(UnitParameters, const Carry&, const MicroBatch& batch, const Carry& grad_out,
                 GradientSink& sink) const override {
    const at::Tensor& grad = grad_out.at(kLayerInputs);
    if (sink.wants(0)) {
      const auto [inside, local] = find_rows(batch.tokens, rows_);
      add_rows_inside(grad * embedding_scale_for(scale_, /*rounded=*/true, grad), inside, local,
                      sink);
    }
    if (rows_.begins()) return {grad_out.at(0)};
    return {grad_out.at(0), grad};
  }

 private:
  TableRows rows_;
  double scale_;
};

// Adds the part that comes from the embedding.
class LayerInputsUnit : public Unit {
 public:
  explicit LayerInputsUnit(const ArchSpec& arch)
      : index_(input_parameters(arch, {}), arch),
        norm_(arch.norm),
        eps_(arch.norm_eps),
        scale_(1.0 / std::sqrt(static_cast<double>(arch.hidden))),
        drops_(arch.adapter.dropout > 0.0) {}
  UnitTraits traits(const UnitUse& use) const override {
    const bool adapted = index_.index(Module::kInputProjection, ParameterRole::kLoraA) >= 0;
    return {.signature = "layer inputs " + std::to_string(static_cast<int>(norm_)) +
                         (adapted ? " lora" : "") + (adapted && drops_ ? " dropout" : ""),
            .documents = {use.longest_document}};
  }
  Carry forward(UnitParameters parameters, const Carry& in,
                const MicroBatch& batch) const override {
    const std::array projection{index_.linear(parameters, Module::kInputProjection, batch)};
    const at::Tensor projected = linear_group(in.at(0), {}, projection)[0] * scale_;
    const NormWeights norm = index_.norm(parameters, Module::kInputNorm, norm_, eps_);
    const at::Tensor part = normalise(projected, norm.weight, norm.bias, norm.kind, norm.eps);
    return {in.at(0), (part + in.at(kLayerInputs)) * (1.0 / std::numbers::sqrt2)};
  }

 private:
  ModuleIndex index_;
  NormKind norm_;
  double eps_;
  double scale_;  // of the projection
  bool drops_;
};

}  // namespace

std::unique_ptr<Unit> make_input_table(const ArchSpec& arch, const TableRows& rows) {
  return std::make_unique<InputTableUnit>(arch, rows);
}

std::unique_ptr<Unit> make_layer_inputs(const ArchSpec& arch) {
  return std::make_unique<LayerInputsUnit>(arch);
}

}  // namespace longshore
