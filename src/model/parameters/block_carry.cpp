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

std::vector<CarryTensorSpec> mixer_results(const ArchSpec& arch, const LayerSpec& layer) {
  if (!layer.has_mixer || !mixer_parameters(layer.mixer).attends) return {};
  const ArchSpec own = arch.of_layer(layer);
  return {{.elements_per_position = own.heads * own.head_dim},
          {.elements_per_position = own.heads, .wide = true}};
}

}  // namespace longshore
