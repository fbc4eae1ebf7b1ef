#include "model/decoder_units.h"

#include "base/errors.h"

namespace longshore {

ModuleIndex::ModuleIndex(const std::vector<ModuleParameter>& parameters) {
  weights_.fill(-1);
  biases_.fill(-1);
  for (size_t i = 0; i < parameters.size(); ++i) {
    auto& table = parameters[i].bias ? biases_ : weights_;
    table[static_cast<size_t>(parameters[i].module)] = static_cast<int32_t>(i);
  }
}

at::Tensor ModuleIndex::weight(UnitParameters parameters, Module module) const {
  const int32_t index = weight_index(module);
  return index < 0 ? at::Tensor() : parameters[static_cast<size_t>(index)];
}

at::Tensor ModuleIndex::bias(UnitParameters parameters, Module module) const {
  const int32_t index = bias_index(module);
  return index < 0 ? at::Tensor() : parameters[static_cast<size_t>(index)];
}

EmbeddingUnit::EmbeddingUnit(const ArchSpec& arch) : index_(embedding_parameters(arch, "")) {}

Carry EmbeddingUnit::forward(UnitParameters parameters, const Carry&,
                             const MicroBatch& batch) const {
  const at::NoGradGuard no_grad;  // has_own_backward
  at::Tensor x = at::index_select(index_.weight(parameters, Module::kTokens), 0, batch.tokens);
  const at::Tensor positions = index_.weight(parameters, Module::kPositions);
  if (positions.defined()) x.add_(at::index_select(positions, 0, batch.positions));
  return {x};
}

Carry EmbeddingUnit::backward(UnitParameters, const Carry&, const MicroBatch& batch,
                              const Carry& grad_out, GradSink& sink) const {
  const int32_t tokens = index_.weight_index(Module::kTokens);
  const int32_t positions = index_.weight_index(Module::kPositions);
  if (sink.wants(tokens)) sink.add_rows(tokens, batch.tokens, grad_out.at(0));
  if (positions >= 0 && sink.wants(positions)) {
    sink.add_rows(positions, batch.positions, grad_out.at(0));
  }
  return {};
}

DecoderBlock::DecoderBlock(const ArchSpec& arch, int64_t layer)
    : arch_(arch),
      layer_(arch.layers.at(static_cast<size_t>(layer))),
      index_(block_parameters(arch, "", layer)) {
  if (arch_.position == PositionKind::kRope) {
    frequencies_ = rope_frequencies(arch_.rope, arch_.head_dim);
  }
}

std::string DecoderBlock::signature() const {
  std::string text = "block";
  for (const int64_t value :
       {arch_.hidden, arch_.intermediate, arch_.heads, arch_.kv_heads, arch_.head_dim,
        layer_.window, static_cast<int64_t>(arch_.norm), static_cast<int64_t>(arch_.qk_norm),
        static_cast<int64_t>(arch_.fused_qkv), static_cast<int64_t>(arch_.transposed_weights),
        static_cast<int64_t>(arch_.gated), static_cast<int64_t>(arch_.activation),
        static_cast<int64_t>(arch_.position)}) {
    text += " " + std::to_string(value);
  }
  return text;
}

std::vector<int64_t> DecoderBlock::worst_documents(int64_t longest) const {
  std::vector<int64_t> lengths = {longest};
  if (layer_.window > 1 && layer_.window < longest) lengths.push_back(layer_.window);
  lengths.push_back(1);
  return lengths;
}

AttentionHeads DecoderBlock::attention_heads() const {
  return {.heads = arch_.heads, .head_dim = arch_.head_dim};
}

Carry DecoderBlock::forward(UnitParameters parameters, const Carry& in,
                            const MicroBatch& batch) const {
  const at::Tensor& x = in.at(0);
  at::Tensor h = attention(parameters, norm(parameters, Module::kAttentionNorm, x), batch).add_(x);
  return {mlp(parameters, norm(parameters, Module::kMlpNorm, h)).add_(h)};
}

at::Tensor DecoderBlock::norm(UnitParameters parameters, Module module, const at::Tensor& x) const {
  return normalise(x, index_.weight(parameters, module), index_.bias(parameters, module),
                   arch_.norm, arch_.norm_eps);
}

std::vector<at::Tensor> DecoderBlock::query_key_value(UnitParameters parameters,
                                                      const at::Tensor& x) const {
  if (!arch_.fused_qkv) {
    const std::array weights{index_.linear(parameters, Module::kQuery),
                             index_.linear(parameters, Module::kKey),
                             index_.linear(parameters, Module::kValue)};
    return linear_group(x, weights, arch_.transposed_weights);
  }
  const std::array weights{index_.linear(parameters, Module::kQkv)};
  const at::Tensor fused = linear_group(x, weights, arch_.transposed_weights)[0];
  return fused.split_with_sizes({arch_.query_width(), arch_.key_width(), arch_.key_width()}, 1);
}

at::Tensor DecoderBlock::position_head(UnitParameters parameters, Module norm, at::Tensor x,
                                       const MicroBatch& batch) const {
  const at::Tensor weight = index_.weight(parameters, norm);
  if (weight.defined()) x = normalise(x, weight, {}, NormKind::kRms, arch_.norm_eps);
  if (!frequencies_.defined()) return x;
  // A few hundred bytes; on a GPU the driver takes them along without a wait.
  const at::Tensor frequencies = frequencies_.to(x.device(), /*non_blocking=*/true);
  return rotate_heads(x, batch.positions, frequencies, arch_.head_dim);
}

at::Tensor DecoderBlock::attention(UnitParameters parameters, const at::Tensor& x,
                                   const MicroBatch& batch) const {
  std::vector<at::Tensor> qkv = query_key_value(parameters, x);
  qkv[0] = position_head(parameters, Module::kQueryNorm, std::move(qkv[0]), batch);
  qkv[1] = position_head(parameters, Module::kKeyNorm, std::move(qkv[1]), batch);
  const AttentionShape shape{.heads = arch_.heads,
                             .kv_heads = arch_.kv_heads,
                             .head_dim = arch_.head_dim,
                             .window = layer_.window,
                             .scale = layer_.attention_scale};
  const at::Tensor mixed = attend(qkv[0], qkv[1], qkv[2], shape, batch.document_starts);
  qkv.clear();
  const std::array output{index_.linear(parameters, Module::kOutput)};
  return linear_group(mixed, output, arch_.transposed_weights)[0];
}

at::Tensor DecoderBlock::mlp(UnitParameters parameters, const at::Tensor& x) const {
  std::vector<LinearWeights> weights;
  if (arch_.gated) weights.push_back(index_.linear(parameters, Module::kGate));
  weights.push_back(index_.linear(parameters, Module::kUp));
  const std::vector<at::Tensor> inner = linear_group(x, weights, arch_.transposed_weights);
  return activate_and_project(arch_.gated ? inner[0] : at::Tensor(), inner.back(),
                              index_.linear(parameters, Module::kDown), arch_.activation,
                              arch_.transposed_weights);
}

}  // namespace longshore
