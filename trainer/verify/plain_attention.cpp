#include <cmath>
#include <vector>

#include "base/errors.h"
#include "trainer/verify/plain_layer.h"
#include "trainer/verify/plain_mixers.h"

namespace longshore {
namespace {

// Returns y, [T, heads * head_dim], normed and rotated, as [heads, T, head_dim].
at::Tensor placed(const PlainDecoder::Layer& layer, const at::Tensor& y, Module head_norm) {
  const ArchSpec arch = layer.arch().of_layer(layer.spec());
  const bool wide = arch.qk_norm == QueryKeyNorm::kWidth;
  LONGSHORE_CHECK(!wide || !arch.qk_norm_after_rope) << "a norm over all heads behind the rope";
  at::Tensor z =
      (wide ? layer.norm(head_norm, y) : y).reshape({y.size(0), -1, arch.head_dim}).transpose(0, 1);
  const bool each = arch.qk_norm == QueryKeyNorm::kHead;
  if (each && !arch.qk_norm_after_rope) z = layer.norm(head_norm, z);
  if (arch.qk_norm == QueryKeyNorm::kHeadPlain) z = plain_scaled(z, arch.norm_eps);
  if (arch.qkv_clip != 0.0) z = z.clamp(-arch.qkv_clip, arch.qkv_clip);
  const bool turns = arch.position == PositionKind::kRope && layer.spec().rotates;
  if (turns)
    z = plain_rotated(z, layer.spec().local_rope ? arch.local_rope : arch.rope, arch.head_dim);
  return each && arch.qk_norm_after_rope ? layer.norm(head_norm, z) : z;
}

}  // namespace

at::Tensor plain_attention(const PlainDecoder::Layer& layer, const at::Tensor& x,
                           PlainDecoder::Shared& text) {
  const ArchSpec arch = layer.arch().of_layer(layer.spec());
  const bool reads = layer.spec().keys_of >= 0;
  const int64_t positions = x.size(0);
  std::vector<at::Tensor> qkv;
  if (arch.fused_qkv) {
    qkv = layer.linear(Module::kQkv, x)
              .split_with_sizes({arch.query_width(), arch.key_width(), arch.key_width()}, 1);
  } else {
    const Module values = layer.spec().values_are_keys ? Module::kKey : Module::kValue;
    for (const Module module : {Module::kQuery, Module::kKey, values}) {
      if (!reads || module == Module::kQuery) qkv.push_back(layer.linear(module, x));
    }
  }
  at::Tensor gate;
  if (arch.own_gate_matrix) {
    gate = layer.linear(Module::kAttentionGate, x);
  } else if (arch.output_gate) {
    const at::Tensor both = qkv[0].reshape({positions, arch.heads, 2 * arch.head_dim});
    gate = both.narrow(2, arch.head_dim, arch.head_dim).flatten(1);
    qkv[0] = both.narrow(2, 0, arch.head_dim).flatten(1);
  }
  const auto heads = [&](const at::Tensor& y) {
    return y.reshape({positions, arch.kv_heads, arch.head_dim}).transpose(0, 1);
  };
  at::Tensor q = placed(layer, qkv[0], Module::kQueryNorm), k, v;
  if (reads) {
    k = heads(text.keys.at(layer.spec().keys_of)[0]);
    v = heads(text.keys.at(layer.spec().keys_of)[1]);
  } else {
    k = placed(layer, qkv[1], Module::kKeyNorm);
    v = heads(qkv[2]);
    if (arch.qkv_clip != 0.0) v = v.clamp(-arch.qkv_clip, arch.qkv_clip);
    if (arch.value_norm) v = plain_scaled(v, arch.norm_eps);
    if (layer.arch().gives_keys(layer.number())) {
      text.keys[layer.number()] = {k.transpose(0, 1).flatten(1), v.transpose(0, 1).flatten(1)};
    }
  }
  const int64_t shared = arch.heads / arch.kv_heads;
  k = k.repeat_interleave(shared, 0);
  v = v.repeat_interleave(shared, 0);
  if (arch.query_growth_beta != 0.0) {
    const at::Tensor turns = at::floor(at::arange(positions, at::kDouble) /
                                       static_cast<double>(arch.query_growth_positions));
    q = q * (1.0 + arch.query_growth_beta * at::log(1.0 + turns)).unsqueeze(1);
  }
  at::Tensor scores = at::matmul(q, k.transpose(1, 2)) * layer.spec().attention_scale;
  if (arch.score_cap != 0.0) scores = arch.score_cap * at::tanh(scores / arch.score_cap);
  scores = scores.masked_fill(hidden_keys(positions, layer.spec().window), -HUGE_VAL);
  if (arch.sinks) {
    const at::Tensor sinks = layer.get(Module::kSinks).reshape({arch.heads, 1, 1});
    scores = at::cat({scores, sinks.expand({-1, positions, 1})}, -1);
  }
  const at::Tensor shares = at::softmax(scores, -1).narrow(2, 0, positions);
  at::Tensor mixed = at::matmul(shares, v).transpose(0, 1).reshape({positions, arch.query_width()});
  if (gate.defined()) mixed = mixed * at::sigmoid(gate);
  return layer.linear(Module::kOutput, mixed);
}

}  // namespace longshore
