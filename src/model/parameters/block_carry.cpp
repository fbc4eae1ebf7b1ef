#include "model/parameters/block_carry.h"

#include <algorithm>
#include <optional>

#include "base/errors.h"
#include "model/parameters/mixer_parameters.h"

namespace longshore {

std::vector<CarryTensorSpec> input_table_carry(const ArchSpec& arch) {
  return {{.elements_per_position = arch.hidden, .passes = 0},
          {.elements_per_position = arch.layer_inputs_width(), .running = true}};
}

std::vector<CarryTensorSpec> inputs_carry(const ArchSpec& arch) {
  return {{.elements_per_position = arch.hidden, .passes = 0},
          {.elements_per_position = arch.layer_inputs_width(), .resident = true}};
}

std::vector<CarryTensorSpec> block_carry(const ArchSpec& arch, int64_t layer, BlockPart part) {
  std::vector<CarryTensorSpec> carry = {{.elements_per_position = arch.hidden}};
  if (part == BlockPart::kAttention && arch.norm_placement == NormPlacement::kShared) {
    carry.push_back({.elements_per_position = arch.hidden});
  }
  const bool last = layer + 1 == arch.layer_count();
  if (arch.layer_input > 0 && (!last || part == BlockPart::kAttention)) {
    carry.push_back({.elements_per_position = arch.layer_inputs_width(),
                     .passes = kLayerInputs,
                     .resident = true});
  }
  for (const int64_t source : arch.keys_behind(layer)) {
    const ArchSpec own = arch.of_layer(arch.layers.at(static_cast<size_t>(source)));
    // The MLP gets what its attention handed on, in the same places.
    const bool passes = part == BlockPart::kMlp || source < layer;
    const size_t place = part == BlockPart::kMlp ? carry.size()
                         : passes                ? place_of_keys(arch, layer, source)
                                                 : 0;
    for (const size_t value : {0, 1}) {
      carry.push_back(
          {.elements_per_position = own.key_width(),
           .wide_gradient = true,
           .passes = passes ? std::optional(static_cast<int32_t>(place + value)) : std::nullopt,
           .resident = true});
    }
  }
  return carry;
}

size_t place_of_keys(const ArchSpec& arch, int64_t layer, int64_t source) {
  const std::vector<int64_t> sources = arch.keys_behind(layer - 1);
  const auto found = std::ranges::find(sources, source);
  LONGSHORE_CHECK(found != sources.end()) << "layer " << layer << " gets no keys of " << source;
  const size_t first = arch.layer_input > 0 ? kLayerInputs + 1 : 1;
  return first + 2 * static_cast<size_t>(found - sources.begin());
}

bool keeps_rotated_heads(const ArchSpec& arch) {
  return arch.qk_norm == QueryKeyNorm::kNone && !arch.value_norm && !arch.output_gate &&
         arch.qkv_clip == 0.0 && arch.query_growth_beta == 0.0;
}

namespace {

// Returns the widths of what a layer with attention keeps of its heads.
std::vector<int64_t> head_widths(const ArchSpec& own, const LayerSpec& layer) {
  const int64_t query = own.query_width(), key = own.key_width();
  const bool gate_in_query = own.output_gate && !own.own_gate_matrix;
  const int64_t product = gate_in_query ? 2 * query : query;
  if (layer.keys_of >= 0) return {keeps_rotated_heads(own) ? query : product};
  if (keeps_rotated_heads(own)) return {query, key, key};
  if (own.fused_qkv) return {query + 2 * key};
  std::vector<int64_t> widths = {product, key};
  if (!layer.values_are_keys) widths.push_back(key);
  if (own.own_gate_matrix) widths.push_back(query);
  return widths;
}

}  // namespace

std::vector<CarryTensorSpec> block_results(const ArchSpec& arch, int64_t layer, BlockPart part) {
  const LayerSpec& of = arch.layers.at(static_cast<size_t>(layer));
  const ArchSpec own = arch.of_layer(of);
  std::vector<CarryTensorSpec> results;
  const auto add = [&results](KeptResults from, int64_t elements) {
    results.push_back({.elements_per_position = elements, .kept_from = from});
  };
  const bool mixes = of.has_mixer && part != BlockPart::kMlp;
  if (mixes && mixer_parameters(of.mixer).attends) {
    add(KeptResults::kAttention, own.query_width());
    add(KeptResults::kAttention, own.heads);
    results.back().wide = true;
    if (of.mixer == MixerKind::kAttention) {
      for (const int64_t width : head_widths(own, of)) add(KeptResults::kHeads, width);
    }
  }
  if (!of.has_mlp || part == BlockPart::kAttention) return results;
  if (mixes && arch.norm_placement != NormPlacement::kShared)
    add(KeptResults::kMiddle, arch.hidden);
  if (of.sparse) return results;
  if (own.fused_gate_up) {
    add(KeptResults::kMlp, 2 * own.intermediate);
  } else {
    if (own.gated) add(KeptResults::kMlp, own.intermediate);
    add(KeptResults::kMlp, own.intermediate);
  }
  return results;
}

}  // namespace longshore
