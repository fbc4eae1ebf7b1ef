#include "model/decoder_units.h"

#include <utility>

#include "base/errors.h"
#include "model/gpu_attention.h"

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
  return {.weight = weight(parameters, module),
          .bias = bias(parameters, module),
          .lora_a = tensor(parameters, module, ParameterRole::kLoraA),
          .lora_b = tensor(parameters, module, ParameterRole::kLoraB),
          .lora_magnitude = tensor(parameters, module, ParameterRole::kLoraMagnitude),
          .lora_scaling = lora_scaling_,
          .lora_dropout = std::move(dropout)};
}

EmbeddingUnit::EmbeddingUnit(const ArchSpec& arch)
    : index_(embedding_parameters(arch, {})),
      scale_(arch.embedding_scale),
      scale_rounded_(arch.embedding_scale_rounded) {}

double embedding_scale_for(double scale, bool rounded, const at::Tensor& like) {
  if (!rounded) return scale;
  return at::scalar_tensor(scale, at::TensorOptions(like.scalar_type())).item<double>();
}

Carry EmbeddingUnit::forward(UnitParameters parameters, const Carry&,
                             const MicroBatch& batch) const {
  const at::NoGradGuard no_grad;  // has_own_backward
  at::Tensor x = at::index_select(index_.weight(parameters, Module::kTokens), 0, batch.tokens);
  if (scale_ != 1.0) x.mul_(embedding_scale_for(scale_, scale_rounded_, x));
  const at::Tensor positions = index_.weight(parameters, Module::kPositions);
  if (positions.defined()) x.add_(at::index_select(positions, 0, batch.positions));
  return {x};
}

Carry EmbeddingUnit::backward(UnitParameters, const Carry&, const MicroBatch& batch,
                              const Carry& grad_out, GradientSink& sink) const {
  const int32_t tokens = index_.weight_index(Module::kTokens);
  const int32_t positions = index_.weight_index(Module::kPositions);
  if (sink.wants(tokens)) {
    const at::Tensor& grad = grad_out.at(0);
    sink.add_rows(tokens, batch.tokens,
                  scale_ == 1.0 ? grad : grad * embedding_scale_for(scale_, scale_rounded_, grad));
  }
  if (positions >= 0 && sink.wants(positions)) {
    sink.add_rows(positions, batch.positions, grad_out.at(0));
  }
  return {};
}

DecoderBlock::DecoderBlock(const ArchSpec& arch, int64_t layer, BlockPart part)
    : arch_(arch),
      number_(layer),
      layer_(arch.layers.at(static_cast<size_t>(layer))),
      part_(part),
      index_(block_parameters(arch, {}, layer, part), arch.adapter.scaling) {
  if (part_ != BlockPart::kMlp && arch_.position == PositionKind::kRope && layer_.rotates) {
    rope_.emplace(layer_.local_rope ? arch_.local_rope : arch_.rope, arch_.head_dim);
  }
}

std::string DecoderBlock::signature() const {
  std::string text = part_ == BlockPart::kWhole       ? "block"
                     : part_ == BlockPart::kAttention ? "attention"
                                                      : "mlp";
  const RopeSpec& rope = layer_.local_rope ? arch_.local_rope : arch_.rope;
  for (const int64_t value : {arch_.hidden,
                              arch_.intermediate,
                              arch_.heads,
                              arch_.kv_heads,
                              arch_.head_dim,
                              layer_.window,
                              static_cast<int64_t>(arch_.norm),
                              static_cast<int64_t>(arch_.norm_placement),
                              static_cast<int64_t>(arch_.qk_norm),
                              static_cast<int64_t>(arch_.fused_qkv),
                              static_cast<int64_t>(arch_.fused_gate_up),
                              static_cast<int64_t>(arch_.transposed_weights),
                              static_cast<int64_t>(arch_.gated),
                              static_cast<int64_t>(arch_.activation),
                              static_cast<int64_t>(arch_.position),
                              static_cast<int64_t>(layer_.rotates),
                              static_cast<int64_t>(arch_.residual_scale != 1.0),
                              static_cast<int64_t>(arch_.query_growth_beta != 0.0),
                              static_cast<int64_t>(arch_.qk_norm_after_rope),
                              static_cast<int64_t>(arch_.qkv_clip != 0.0),
                              static_cast<int64_t>(arch_.score_cap != 0.0),
                              static_cast<int64_t>(arch_.sinks),
                              rope.rotary_dim(arch_.head_dim),
                              static_cast<int64_t>(rope.pairs),
                              static_cast<int64_t>(rope.attention_factor != 1.0),
                              static_cast<int64_t>(rope.scaling == RopeSpec::Scaling::kLong)}) {
    text += " " + std::to_string(value);
  }
  for (size_t module = 0; module < kModuleCount; ++module) {
    if (!arch_.adapter.adapts(number_, static_cast<Module>(module))) continue;
    text += (arch_.adapter.magnitudes ? " dora " : " lora ") + std::to_string(module);
    if (arch_.adapter.dropout > 0.0) text += " dropout";
  }
  return text;
}

std::vector<int64_t> DecoderBlock::worst_documents(int64_t longest, DeviceKind device) const {
  std::vector<int64_t> lengths = {longest};
  if (part_ == BlockPart::kMlp) return lengths;  // the MLP does not depend on documents
  if (layer_.window > 1 && layer_.window < longest) lengths.push_back(layer_.window);
  // Documents above the original length need one row of frequencies per position.
  const RopeSpec& rope = layer_.local_rope ? arch_.local_rope : arch_.rope;
  const int64_t first_long = rope.original_max_positions + 1;
  if (rope.scaling == RopeSpec::Scaling::kLong && first_long < longest) {
    lengths.push_back(first_long);
  }
  // This length slightly overfills the calls of FlashAttention's backward, so one more runs.
  const int64_t padded = kFlashPadding - 1;
  if (device == DeviceKind::kCuda && padded < longest) lengths.push_back(padded);
  lengths.push_back(1);
  return lengths;
}

AttentionHeads DecoderBlock::attention_heads() const {
  if (part_ == BlockPart::kMlp || arch_.score_cap != 0.0)
    return {};  // capped attention runs the same operations on every device
  return {.heads = arch_.heads, .kv_heads = arch_.kv_heads, .head_dim = arch_.head_dim};
}

Carry DecoderBlock::forward(UnitParameters parameters, const Carry& in,
                            const MicroBatch& batch) const {
  const Values output = batch.graph_only ? Values::kUnread : Values::kComputed;
  at::Tensor x = in.at(0);
  if (part_ != BlockPart::kMlp) {
    const Values sum = part_ == BlockPart::kAttention ? output : Values::kComputed;
    const Values product = branch_values(Module::kAttentionPostNorm, sum);
    x = add_to(x, parameters, Module::kAttentionPostNorm, attention(parameters, x, batch, product),
               sum);
  }
  if (part_ == BlockPart::kAttention) return {x};
  const Values product = branch_values(Module::kMlpPostNorm, output);
  return {add_to(x, parameters, Module::kMlpPostNorm, mlp(parameters, x, batch, product), output)};
}

Values DecoderBlock::branch_values(Module post_norm, Values sum) const {
  return index_.weight_index(post_norm) < 0 ? sum : Values::kComputed;
}

at::Tensor DecoderBlock::add_to(const at::Tensor& x, UnitParameters parameters, Module post_norm,
                                at::Tensor branch, Values values) const {
  branch = norm(parameters, post_norm, branch);
  if (values == Values::kUnread) return residual_graph(x, branch, arch_.residual_scale);
  if (arch_.residual_scale != 1.0) branch.mul_(arch_.residual_scale);
  return branch.add_(x);
}

NormWeights DecoderBlock::norm_weights(UnitParameters parameters, Module module) const {
  return {index_.weight(parameters, module), index_.bias(parameters, module), arch_.norm,
          arch_.norm_eps};
}

at::Tensor DecoderBlock::norm(UnitParameters parameters, Module module, const at::Tensor& x) const {
  const NormWeights norm = norm_weights(parameters, module);
  return norm.weight.defined() ? normalise(x, norm.weight, norm.bias, norm.kind, norm.eps) : x;
}

std::vector<at::Tensor> DecoderBlock::query_key_value(UnitParameters parameters,
                                                      const at::Tensor& x,
                                                      const MicroBatch& batch) const {
  const NormWeights norm = norm_weights(parameters, Module::kAttentionNorm);
  if (!arch_.fused_qkv) {
    const std::array weights{index_.linear(parameters, Module::kQuery, batch),
                             index_.linear(parameters, Module::kKey, batch),
                             index_.linear(parameters, Module::kValue, batch)};
    return linear_group(x, norm, weights, arch_.transposed_weights);
  }
  const std::array weights{index_.linear(parameters, Module::kQkv, batch)};
  const at::Tensor fused = linear_group(x, norm, weights, arch_.transposed_weights)[0];
  return fused.split_with_sizes({arch_.query_width(), arch_.key_width(), arch_.key_width()}, 1);
}

at::Tensor DecoderBlock::position_head(UnitParameters parameters, Module head_norm,
                                       const at::Tensor& x, const MicroBatch& batch) const {
  at::Tensor heads = clipped(arch_.qk_norm_after_rope ? x : norm(parameters, head_norm, x));
  if (rope_) {
    heads = rotate_heads(heads, batch.positions, rope_->rotation(batch.document_starts, x.device()),
                         arch_.head_dim);
  }
  return arch_.qk_norm_after_rope ? norm(parameters, head_norm, heads) : heads;
}

at::Tensor DecoderBlock::clipped(const at::Tensor& x) const {
  return arch_.qkv_clip == 0.0 ? x : at::clamp(x, -arch_.qkv_clip, arch_.qkv_clip);
}

at::Tensor DecoderBlock::query_growth(const at::Tensor& positions, const at::Tensor& like) const {
  const at::Tensor turns =
      at::floor(positions.to(at::kFloat) / static_cast<double>(arch_.query_growth_positions));
  const at::Tensor growth = turns.add(1.0).log_().mul_(arch_.query_growth_beta).add_(1.0);
  return growth.to(like.scalar_type()).unsqueeze(1);
}

at::Tensor DecoderBlock::attention(UnitParameters parameters, const at::Tensor& x,
                                   const MicroBatch& batch, Values values) const {
  std::vector<at::Tensor> qkv = query_key_value(parameters, x, batch);
  qkv[0] = position_head(parameters, Module::kQueryNorm, qkv[0], batch);
  qkv[1] = position_head(parameters, Module::kKeyNorm, qkv[1], batch);
  qkv[2] = clipped(qkv[2]);
  if (arch_.query_growth_beta != 0.0) qkv[0] = qkv[0] * query_growth(batch.positions, qkv[0]);
  const AttentionShape shape{.heads = arch_.heads,
                             .kv_heads = arch_.kv_heads,
                             .head_dim = arch_.head_dim,
                             .window = layer_.window,
                             .scale = layer_.attention_scale,
                             .cap = arch_.score_cap};
  const at::Tensor mixed = attend(qkv[0], qkv[1], qkv[2], shape, batch.document_starts,
                                  index_.weight(parameters, Module::kSinks));
  qkv.clear();
  const std::array output{index_.linear(parameters, Module::kOutput, batch)};
  return linear_group(mixed, {}, output, arch_.transposed_weights, values)[0];
}

at::Tensor DecoderBlock::mlp(UnitParameters parameters, const at::Tensor& x,
                             const MicroBatch& batch, Values values) const {
  std::vector<LinearWeights> weights;
  if (arch_.fused_gate_up) {
    weights.push_back(index_.linear(parameters, Module::kGateUp, batch));
  } else {
    if (arch_.gated) weights.push_back(index_.linear(parameters, Module::kGate, batch));
    weights.push_back(index_.linear(parameters, Module::kUp, batch));
  }
  std::vector<at::Tensor> inner = linear_group(x, norm_weights(parameters, Module::kMlpNorm),
                                               weights, arch_.transposed_weights);
  if (arch_.fused_gate_up) inner = inner[0].chunk(2, 1);
  return activate_and_project(arch_.gated ? inner[0] : at::Tensor(), inner.back(),
                              index_.linear(parameters, Module::kDown, batch), arch_.activation,
                              arch_.transposed_weights, values);
}

}  // namespace longshore
