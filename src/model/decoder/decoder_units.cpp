#include "model/decoder/decoder_units.h"

#include <array>
#include <utility>

#include "base/errors.h"
#include "model/ops/fused_ops.h"
#include "model/parameters/block_carry.h"

namespace longshore {

EmbeddingUnit::EmbeddingUnit(const ArchSpec& arch)
    : index_(embedding_parameters(arch, {}), arch),
      scale_(arch.embedding_scale),
      scale_rounded_(arch.embedding_scale_rounded),
      norm_eps_(embedding_norm_eps(arch)) {}

UnitTraits EmbeddingUnit::traits(const UnitUse& use) const {
  const bool adapted = index_.index(Module::kTokens, ParameterRole::kLoraA) >= 0;
  const bool dora = index_.index(Module::kTokens, ParameterRole::kLoraMagnitude) >= 0;
  return {.signature = dora        ? "embedding dora"
                       : adapted   ? "embedding lora"
                       : norm_eps_ ? "embedding normed"
                                   : "embedding",
          .documents = {use.longest_document}};
}

Linear EmbeddingUnit::table(UnitParameters parameters, const MicroBatch& batch) const {
  Linear table = index_.undropped(parameters, Module::kTokens, batch);
  table.set_norms();
  return table;
}

double embedding_scale_for(double scale, bool rounded, const at::Tensor& like) {
  if (!rounded) return scale;
  return at::scalar_tensor(scale, at::TensorOptions(like.scalar_type())).item<double>();
}

std::optional<double> embedding_norm_eps(const ArchSpec& arch) {
  return arch.embedding_norm ? std::optional(arch.norm_eps) : std::nullopt;
}

at::Tensor normed_rows(const at::Tensor& rows, double eps) {
  return normalise(rows, at::ones({rows.size(1)}, rows.options()), {}, NormKind::kRms, eps);
}

at::Tensor normed_rows_backward(const at::Tensor& grad, const at::Tensor& rows, double eps) {
  const at::Tensor ones = at::ones({rows.size(1)}, rows.options().requires_grad(false));
  return fused::norm_backward(grad, rows, ones, NormKind::kRms, eps, {}, {});
}

Carry EmbeddingUnit::forward(UnitParameters parameters, const Carry&,
                             const MicroBatch& batch) const {
  const at::NoGradGuard no_grad;  // has_own_backward
  at::Tensor x = table(parameters, batch).rows(batch.tokens);
  if (scale_ != 1.0) x.mul_(embedding_scale_for(scale_, scale_rounded_, x));
  if (norm_eps_) x = normed_rows(x, *norm_eps_);
  const at::Tensor positions = index_.weight(parameters, Module::kPositions);
  if (positions.defined()) x.add_(at::index_select(positions, 0, batch.positions));
  return {x};
}

Carry EmbeddingUnit::backward(UnitParameters parameters, const Carry&, const MicroBatch& batch,
                              const Carry& grad_out, GradientSink& sink) const {
  const at::NoGradGuard no_grad;
  const int32_t tokens = index_.weight_index(Module::kTokens);
  const int32_t positions = index_.weight_index(Module::kPositions);
  const bool adapted = index_.index(Module::kTokens, ParameterRole::kLoraB) >= 0;
  if (sink.wants(tokens) || adapted) {
    at::Tensor grad = grad_out.at(0);
    const Linear own = table(parameters, batch);
    if (norm_eps_) grad = normed_rows_backward(grad, own.rows(batch.tokens), *norm_eps_);
    if (scale_ != 1.0) grad = grad * embedding_scale_for(scale_, scale_rounded_, grad);
    own.add_row_gradients(sink, std::move(grad), batch.tokens);
  }
  if (positions >= 0 && sink.wants(positions)) {
    sink.add_rows(positions, batch.positions, grad_out.at(0));
  }
  return {};
}

namespace {

// Returns the part of the layer that `part` means: the whole of a layer of one part is that part.
BlockPart part_of(const LayerSpec& layer, BlockPart part) {
  if (part == BlockPart::kWhole && !layer.has_mlp) return BlockPart::kAttention;
  return part == BlockPart::kWhole && !layer.has_mixer ? BlockPart::kMlp : part;
}

}  // namespace

DecoderBlock::DecoderBlock(const ArchSpec& arch, int64_t layer, BlockPart part)
    : arch_(arch.of_layer(arch.layers.at(static_cast<size_t>(layer)))),
      number_(layer),
      layer_(arch.layers.at(static_cast<size_t>(layer))),
      part_(part_of(layer_, part)),
      carry_out_(block_carry(arch, layer, part)),
      index_(block_parameters(arch, {}, layer, part), arch) {
  if (part_ == BlockPart::kMlp) return;
  const bool parallel = arch_.norm_placement == NormPlacement::kShared;
  middle_result_ = block_results(arch, layer, BlockPart::kAttention).size();
  mlp_result_ = middle_result_ + (parallel ? 0 : 1);
  mixer_ = make_mixer(arch_, layer, index_);
  const bool reads = layer_.keys_of >= 0;
  if (reads) keys_place_ = place_of_keys(arch, layer, layer_.keys_of);
  shares_keys_ = reads || arch.gives_keys(layer);
  LONGSHORE_CHECK(!shares_keys_ || layer_.mixer == MixerKind::kAttention)
      << "a mixer without keys shares them";
}

UnitTraits DecoderBlock::traits(const UnitUse& use) const {
  // The MLP does not depend on documents.
  UnitTraits traits =
      mixer_ ? mixer_->traits(use) : UnitTraits{.documents = {use.longest_document}};
  std::string text = signature_text(
      part_ == BlockPart::kWhole       ? "block"
      : part_ == BlockPart::kAttention ? "attention"
                                       : "mlp",
      arch_.hidden, arch_.intermediate, arch_.norm, arch_.norm_placement, arch_.fused_gate_up,
      arch_.transposed_weights, arch_.gated, arch_.activation, arch_.norm_bias,
      arch_.residual_scale != 1.0, arch_.layer_scale, arch_.layer_input);
  text += traits.signature;
  for (size_t module = 0; module < kModuleCount; ++module) {
    if (!arch_.adapter.adapts(number_, static_cast<Module>(module))) continue;
    text += (arch_.adapter.magnitudes ? " dora " : " lora ") + std::to_string(module);
    if (arch_.adapter.dropout > 0.0) text += " dropout";
  }
  traits.signature = std::move(text);
  return traits;
}

std::vector<LayerState> DecoderBlock::layer_states(const StateUse& use) const {
  if (!mixer_) return {};
  return {{.layer = number_, .tensors = mixer_->states(use)}};
}

Carry DecoderBlock::forward(UnitParameters parameters, const Carry& in,
                            const MicroBatch& batch) const {
  const Values output = batch.graph_only ? Values::kUnread : Values::kComputed;
  const bool shares = arch_.norm_placement == NormPlacement::kShared;
  at::Tensor x = in.at(0), shared;
  KeysValues keys;
  if (shares) {
    shared = part_ == BlockPart::kMlp ? in.at(1) : norm(parameters, Module::kAttentionNorm, x);
  }
  if (part_ != BlockPart::kMlp) {
    if (layer_.keys_of >= 0) keys = {in.at(keys_place_), in.at(keys_place_ + 1)};
    // The MLP of parallel branches does not read the sum.
    const bool unread = part_ == BlockPart::kAttention || (shares && arch_.layer_input == 0);
    x = add_mixed(x, shares ? shared : x, parameters, batch, unread ? output : Values::kComputed,
                  keys);
  }
  if (part_ == BlockPart::kAttention) {
    return shares ? Carry{x, shared} : handed_on(x, in, keys);
  }
  const at::Tensor scale = index_.weight(parameters, Module::kLayerScale);
  const bool more = arch_.layer_input > 0;
  const Values sum = more ? Values::kComputed : output;
  x = add_to(x, parameters, Module::kMlpPostNorm,
             mlp(parameters, shares ? shared : x, batch, branch_values(Module::kMlpPostNorm, sum)),
             sum, more ? at::Tensor() : scale);
  if (more) {
    const Values product = branch_values(Module::kInputPostNorm, output);
    x = add_to(x, parameters, Module::kInputPostNorm,
               gated_input(parameters, x, in.at(kLayerInputs), batch, product), output, scale);
  }
  return handed_on(x, in, keys);
}

Carry DecoderBlock::handed_on(at::Tensor x, const Carry& in, const KeysValues& own) const {
  Carry carry = {std::move(x)};
  bool values = false;  // keys come first
  for (size_t i = 1; i < carry_out_.size(); ++i) {
    if (carry_out_[i].passes) {
      carry.push_back(in.at(static_cast<size_t>(*carry_out_[i].passes)));
    } else {
      carry.push_back(std::exchange(values, true) ? own.values : own.keys);
    }
  }
  return carry;
}

at::Tensor DecoderBlock::add_mixed(const at::Tensor& x, const at::Tensor& input,
                                   UnitParameters parameters, const MicroBatch& batch,
                                   Values values, KeysValues& keys) const {
  const bool shares = arch_.norm_placement == NormPlacement::kShared;
  const NormWeights norm =
      shares ? NormWeights{} : norm_weights(parameters, Module::kAttentionNorm);
  KeysValues* const own = shares_keys_ ? &keys : nullptr;
  const UnitResults& results = batch.results;
  const at::Tensor place = shares ? at::Tensor() : place_of(results, middle_result_);
  if (!place.defined()) {
    const Values product = branch_values(Module::kAttentionPostNorm, values);
    return add_to(x, parameters, Module::kAttentionPostNorm,
                  mixer_->forward(parameters, input, norm, batch, product, own), values);
  }
  const Values product = values_beside(results, middle_result_);
  at::Tensor branch = mixer_->forward(parameters, input, norm, batch, product, own);
  if (index_.weight_index(Module::kAttentionPostNorm) >= 0) {
    branch = kept_result(branch, place, results.filled);
    return add_to(x, parameters, Module::kAttentionPostNorm, branch, values);
  }
  return kept_result(add_to(x, parameters, Module::kAttentionPostNorm, branch, product), place,
                     results.filled);
}

Values DecoderBlock::branch_values(Module post_norm, Values sum) const {
  return index_.weight_index(post_norm) < 0 ? sum : Values::kComputed;
}

at::Tensor DecoderBlock::add_to(const at::Tensor& x, UnitParameters parameters, Module post_norm,
                                at::Tensor branch, Values values, at::Tensor factor) const {
  if (factor.defined()) factor = factor.detach();
  branch = norm(parameters, post_norm, branch);
  if (values == Values::kUnread) return residual_graph(x, branch, arch_.residual_scale, factor);
  if (arch_.residual_scale != 1.0) branch.mul_(arch_.residual_scale);
  branch.add_(x);
  return factor.defined() ? branch.mul_(factor) : branch;
}

NormWeights DecoderBlock::norm_weights(UnitParameters parameters, Module module) const {
  const bool post = module == Module::kAttentionPostNorm || module == Module::kMlpPostNorm;
  const double eps = post ? arch_.post_norm_eps.value_or(arch_.norm_eps) : arch_.norm_eps;
  return index_.norm(parameters, module, arch_.norm, eps);
}

at::Tensor DecoderBlock::norm(UnitParameters parameters, Module module, const at::Tensor& x) const {
  const NormWeights norm = norm_weights(parameters, module);
  return norm.weight.defined() ? normalise(x, norm.weight, norm.bias, norm.kind, norm.eps) : x;
}

at::Tensor DecoderBlock::mlp(UnitParameters parameters, const at::Tensor& x,
                             const MicroBatch& batch, Values values) const {
  std::vector<Linear> linears;
  if (arch_.fused_gate_up) {
    linears.push_back(index_.linear(parameters, Module::kGateUp, batch));
  } else {
    if (arch_.gated) linears.push_back(index_.linear(parameters, Module::kGate, batch));
    linears.push_back(index_.linear(parameters, Module::kUp, batch));
  }
  std::vector<at::Tensor> inner = linear_group(x, norm_weights(parameters, Module::kMlpNorm),
                                               linears, values_beside(batch.results, mlp_result_));
  keep(inner, inner.size(), batch.results, mlp_result_);
  if (arch_.fused_gate_up) inner = inner[0].chunk(2, 1);
  return activate_and_project(arch_.gated ? inner[0] : at::Tensor(), inner.back(),
                              index_.linear(parameters, Module::kDown, batch), arch_.activation,
                              values);
}

at::Tensor DecoderBlock::gated_input(UnitParameters parameters, const at::Tensor& x,
                                     const at::Tensor& inputs, const MicroBatch& batch,
                                     Values values) const {
  const std::array gate{index_.linear(parameters, Module::kInputGate, batch)};
  // The product's backward overwrites its factors, so it gets a copy.
  const at::Tensor own = inputs.narrow(1, number_ * arch_.layer_input, arch_.layer_input).clone();
  return activate_and_project(linear_group(x, {}, gate)[0], own,
                              index_.linear(parameters, Module::kInputOut, batch), arch_.activation,
                              values);
}

}  // namespace longshore
