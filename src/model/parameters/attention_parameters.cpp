#include "model/parameters/mixer_parameters.h"

#include <array>

namespace longshore {
namespace {

constexpr std::array kMatrices = {Module::kQuery, Module::kKey,           Module::kValue,
                                  Module::kQkv,   Module::kAttentionGate, Module::kOutput};
constexpr std::array kBare = {Module::kSinks};

void add(UnitBuilder& builder, const ArchSpec& family, const LayerSpec& layer) {
  const ArchSpec arch = family.of_layer(layer);
  const int64_t q = arch.query_width(), kv = arch.key_width();
  if (arch.fused_qkv) {
    builder.matrix(Module::kQkv, q + 2 * kv, arch.hidden, arch.qkv_bias);
    builder.holds(Module::kQkv, {q, kv, kv});
  } else {
    const bool both = arch.output_gate && !arch.own_gate_matrix;
    builder.matrix(Module::kQuery, both ? 2 * q : q, arch.hidden, arch.qkv_bias);
    if (both) builder.holds(Module::kQuery, {arch.head_dim, arch.head_dim});
    if (layer.keys_of < 0) builder.matrix(Module::kKey, kv, arch.hidden, arch.qkv_bias);
    if (layer.keys_of < 0 && !layer.values_are_keys) {
      builder.matrix(Module::kValue, kv, arch.hidden, arch.qkv_bias);
    }
  }
  if (arch.own_gate_matrix) builder.matrix(Module::kAttentionGate, q, arch.hidden, false);
  if (arch.qk_norm == QueryKeyNorm::kHead || arch.qk_norm == QueryKeyNorm::kWidth) {
    const bool head = arch.qk_norm == QueryKeyNorm::kHead;
    builder.norm(Module::kQueryNorm, head ? arch.head_dim : q, arch.norm);
    if (layer.keys_of < 0) {
      builder.norm(Module::kKeyNorm, head ? arch.head_dim : kv, arch.norm);
    }
  }
  if (arch.sinks) builder.vector(Module::kSinks, false, arch.heads);
  builder.matrix(Module::kOutput, arch.hidden, q, arch.output_bias, arch.residual_init_scale);
}

}  // namespace

MixerParameters attention_parameters() {
  return {.add = add, .matrices = kMatrices, .bare = kBare, .attends = true};
}

}  // namespace longshore
