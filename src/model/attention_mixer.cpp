#include "model/attention_mixer.h"

#include <array>
#include <utility>

#include "model/gpu_attention.h"

namespace longshore {

AttentionMixer::AttentionMixer(const ArchSpec& arch, const LayerSpec& layer,
                               const ModuleIndex& index)
    : arch_(arch.of_layer(layer)), layer_(layer), index_(index) {
  if (arch_.position == PositionKind::kRope && layer_.rotates) {
    rope_.emplace(rope_spec(), arch_.head_dim);
  }
}

std::string AttentionMixer::signature() const {
  std::string text = " attention";
  const RopeSpec& rope = rope_spec();
  for (const int64_t value : {arch_.heads,
                              arch_.kv_heads,
                              arch_.head_dim,
                              layer_.window,
                              static_cast<int64_t>(arch_.qk_norm),
                              static_cast<int64_t>(arch_.fused_qkv),
                              static_cast<int64_t>(arch_.position),
                              static_cast<int64_t>(layer_.rotates),
                              static_cast<int64_t>(arch_.query_growth_beta != 0.0),
                              static_cast<int64_t>(arch_.qk_norm_after_rope),
                              static_cast<int64_t>(arch_.qkv_clip != 0.0),
                              static_cast<int64_t>(arch_.score_cap != 0.0),
                              static_cast<int64_t>(arch_.sinks),
                              static_cast<int64_t>(arch_.output_gate),
                              static_cast<int64_t>(arch_.own_gate_matrix),
                              static_cast<int64_t>(arch_.value_norm),
                              static_cast<int64_t>(layer_.values_are_keys),
                              static_cast<int64_t>(layer_.keys_of >= 0),
                              rope.rotary_dim(arch_.head_dim),
                              static_cast<int64_t>(rope.pairs),
                              static_cast<int64_t>(rope.attention_factor != 1.0),
                              static_cast<int64_t>(rope.scaling == RopeSpec::Scaling::kLong)}) {
    text += " " + std::to_string(value);
  }
  return text;
}

std::vector<int64_t> AttentionMixer::worst_documents(int64_t longest, DeviceKind device) const {
  std::vector<int64_t> lengths = {longest};
  if (layer_.window > 1 && layer_.window < longest) lengths.push_back(layer_.window);
  // Documents above the original length need one row of frequencies per position.
  const RopeSpec& rope = rope_spec();
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

AttentionHeads AttentionMixer::attention_heads() const {
  if (arch_.score_cap != 0.0)
    return {};  // capped attention uses no kernel of a GPU
  return {.heads = arch_.heads, .kv_heads = arch_.kv_heads, .head_dim = arch_.head_dim};
}

std::vector<at::Tensor> AttentionMixer::query_key_value(UnitParameters parameters,
                                                        const at::Tensor& x,
                                                        const NormWeights& norm,
                                                        const MicroBatch& batch) const {
  if (!arch_.fused_qkv) {
    std::vector<LinearWeights> weights{index_.linear(parameters, Module::kQuery, batch)};
    if (layer_.keys_of >= 0) return linear_group(x, norm, weights, arch_.transposed_weights);
    weights.push_back(index_.linear(parameters, Module::kKey, batch));
    if (!layer_.values_are_keys) {
      weights.push_back(index_.linear(parameters, Module::kValue, batch));
    }
    if (arch_.own_gate_matrix) {
      weights.push_back(index_.linear(parameters, Module::kAttentionGate, batch));
    }
    std::vector<at::Tensor> qkv = linear_group(x, norm, weights, arch_.transposed_weights);
    if (layer_.values_are_keys) qkv.insert(qkv.begin() + 2, qkv[1]);
    if (arch_.output_gate && !arch_.own_gate_matrix) {
      const std::vector<at::Tensor> both =
          qkv[0].view({x.size(0), arch_.heads, 2, arch_.head_dim}).unbind(2);
      qkv[0] = both[0].reshape({x.size(0), arch_.query_width()});
      qkv.push_back(both[1].reshape({x.size(0), arch_.query_width()}));
    }
    return qkv;
  }
  const std::array weights{index_.linear(parameters, Module::kQkv, batch)};
  const at::Tensor fused = linear_group(x, norm, weights, arch_.transposed_weights)[0];
  return fused.split_with_sizes({arch_.query_width(), arch_.key_width(), arch_.key_width()}, 1);
}

at::Tensor AttentionMixer::position_head(UnitParameters parameters, Module head_norm,
                                         const at::Tensor& x, const MicroBatch& batch) const {
  at::Tensor heads = clipped(arch_.qk_norm_after_rope ? x : head_normed(parameters, head_norm, x));
  if (rope_) {
    heads = rotate_heads(heads, batch.positions, rope_->rotation(batch.document_starts, x.device()),
                         arch_.head_dim);
  }
  return arch_.qk_norm_after_rope ? head_normed(parameters, head_norm, heads) : heads;
}

at::Tensor AttentionMixer::clipped(const at::Tensor& x) const {
  return arch_.qkv_clip == 0.0 ? x : at::clamp(x, -arch_.qkv_clip, arch_.qkv_clip);
}

at::Tensor AttentionMixer::query_growth(const at::Tensor& positions, const at::Tensor& like) const {
  const at::Tensor turns =
      at::floor(positions.to(at::kFloat) / static_cast<double>(arch_.query_growth_positions));
  const at::Tensor growth = turns.add(1.0).log_().mul_(arch_.query_growth_beta).add_(1.0);
  return growth.to(like.scalar_type()).unsqueeze(1);
}

at::Tensor AttentionMixer::head_normed(UnitParameters parameters, Module module,
                                       const at::Tensor& x) const {
  if (arch_.qk_norm == QueryKeyNorm::kHeadPlain) {
    return plain_normed(x, NormKind::kRms);
  }
  const NormWeights norm = index_.norm(parameters, module, arch_.norm, arch_.norm_eps);
  return norm.weight.defined() ? normalise(x, norm.weight, norm.bias, norm.kind, norm.eps) : x;
}

at::Tensor AttentionMixer::plain_normed(const at::Tensor& x, NormKind kind) const {
  const at::Tensor ones = at::ones({arch_.head_dim}, x.options().requires_grad(false));
  return normalise(x, ones, {}, kind, arch_.norm_eps);
}

at::Tensor AttentionMixer::forward(UnitParameters parameters, const at::Tensor& x,
                                   const NormWeights& norm, const MicroBatch& batch,
                                   Values values) const {
  return mix(parameters, x, norm, batch, values, nullptr);
}

at::Tensor AttentionMixer::forward_sharing(UnitParameters parameters, const at::Tensor& x,
                                           const NormWeights& norm, const MicroBatch& batch,
                                           Values values, KeysValues& shared) const {
  return mix(parameters, x, norm, batch, values, &shared);
}

at::Tensor AttentionMixer::mix(UnitParameters parameters, const at::Tensor& x,
                               const NormWeights& norm, const MicroBatch& batch, Values values,
                               KeysValues* shared) const {
  std::vector<at::Tensor> qkv = query_key_value(parameters, x, norm, batch);
  qkv[0] = position_head(parameters, Module::kQueryNorm, qkv[0], batch);
  if (layer_.keys_of >= 0) {
    qkv.insert(qkv.end(), {shared->keys, shared->values});
  } else {
    if (arch_.value_norm) qkv[2] = plain_normed(qkv[2], NormKind::kRmsWide);
    qkv[1] = position_head(parameters, Module::kKeyNorm, qkv[1], batch);
    qkv[2] = clipped(qkv[2]);
    if (shared != nullptr) *shared = {qkv[1], qkv[2]};
  }
  if (arch_.query_growth_beta != 0.0) qkv[0] = qkv[0] * query_growth(batch.positions, qkv[0]);
  const AttentionShape shape{.heads = arch_.heads,
                             .kv_heads = arch_.kv_heads,
                             .head_dim = arch_.head_dim,
                             .window = layer_.window,
                             .scale = layer_.attention_scale,
                             .cap = arch_.score_cap};
  at::Tensor mixed =
      attend(qkv[0], qkv[1], qkv[2], shape, batch.document_starts,
             index_.weight(parameters, Module::kSinks), attention_place(batch.results));
  if (arch_.output_gate) mixed = mixed * at::sigmoid(qkv[3]);
  qkv.clear();
  const std::array output{index_.linear(parameters, Module::kOutput, batch)};
  return linear_group(mixed, {}, output, arch_.transposed_weights, values)[0];
}

}  // namespace longshore
