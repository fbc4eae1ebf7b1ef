#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "model/config_decoder.h"
#include "model/families.h"

namespace longshore {
namespace {

constexpr int64_t kMostTaps = 1024;

// Returns the width of LFM2's MLP, which need not be the one that the file gives.
int64_t lfm2_width(ConfigReader& config) {
  const int64_t given = config.size_or({"block_ff_dim", "intermediate_size"}, 12288);
  const bool adjusted = config.boolean({"block_auto_adjust_ff_dim"}).value_or(true);
  const int64_t multiple = config.size_or({"block_multiple_of"}, 256);
  const double factor = config.real({"block_ffn_dim_multiplier"}, 1e-6, 1e6)
                            .value_or(config.has("block_ffn_dim_multiplier") ? 0.0 : 1.0);
  if (!adjusted) return given;
  const int64_t share = 2 * given / 3;
  if (factor == 0.0) return std::max<int64_t>(1, share);  // null: no factor and no rounding
  const double scaled = std::trunc(factor * static_cast<double>(share));
  const auto steps = std::ceil(scaled / static_cast<double>(multiple));
  const double width = steps * static_cast<double>(multiple);
  if (width >= 1.0 && width <= static_cast<double>(kMostToken)) return static_cast<int64_t>(width);
  config.problem("block_ffn_dim_multiplier", "gives no width of the MLP");
  return 1;
}

}  // namespace

// Layers are gated convolutions or attention.
void read_lfm2(ConfigReader& config, ArchSpec& arch) {
  const int64_t width = lfm2_width(config);
  read_llama_like(config,
                  {.positions = 128000,
                   .sizes = {.vocabulary = 65536, .heads = 32, .kv_heads = 8},
                   .intermediate = width},
                  arch);
  arch.intermediate = width;
  arch.norm_eps = config.real({"norm_eps"}, 0.0, 1.0).value_or(1e-5);
  arch.tied_by_config = config.boolean({"tie_embedding", "tie_word_embeddings"}).value_or(true);
  arch.activation = Activation::kSilu;  // whatever the file says
  read_rope(config, {.theta = 1e6}, arch);
  arch.qk_norm = QueryKeyNorm::kHead;
  arch.convolution.taps = config.integer({"conv_L_cache"}, 1, kMostTaps).value_or(3);
  arch.convolution.bias = config.boolean({"conv_bias"}).value_or(false);
  const bool listed = config.find({"full_attn_idxs"}) != nullptr;
  const std::vector<int64_t> full = config.integers({"full_attn_idxs"}, 0, kMostToken);
  const auto convolves = read_layer_types(config, arch, "conv", [&](int64_t layer) {
    return listed && std::ranges::find(full, layer) == full.end();
  });
  if (!convolves) return;
  for (size_t i = 0; i < arch.layers.size(); ++i) {
    if ((*convolves)[i]) arch.layers[i].mixer = MixerKind::kConvolution;
  }
}

}  // namespace longshore
