#include <string_view>

#include "model/config_decoder.h"
#include "model/families.h"

namespace longshore {
namespace {

// Gives every layer a window but each `pattern`-th, unless `layer_types` differs. Layers without a
// window have no positions.
void read_sliding_rope(ConfigReader& config, int64_t window, int64_t pattern, ArchSpec& arch) {
  read_windows(config, window, arch,
               [&](int64_t layer) { return window > 0 && (layer + 1) % pattern != 0; });
  for (LayerSpec& layer : arch.layers) layer.rotates = layer.window > 0;
}

// Returns the window of sliding layers, or 0 for none, which files write as null alone.
int64_t read_window_or_null(ConfigReader& config, int64_t absent) {
  return config.integer({"sliding_window"}, 1, kMostToken)
      .value_or(config.has("sliding_window") ? 0 : absent);
}

}  // namespace

// EXAONE 4 has OLMo 2's norms, and rotates where it slides; without a window it rotates everywhere.
void read_exaone4(ConfigReader& config, ArchSpec& arch) {
  read_llama_like(config,
                  {.sizes = {.vocabulary = 102400, .heads = 32, .kv_heads = 32},
                   .norm_eps = 1e-5,
                   .intermediate = 16384},
                  arch);
  read_rope(config, {}, arch);
  arch.norm_placement = NormPlacement::kAfter;
  arch.qk_norm = QueryKeyNorm::kHead;
  const int64_t window = read_window_or_null(config, 4096);
  // Published files write a text such as "LLLG" beside layer_types, which transformers reads.
  const bool listed = config.find({"layer_types"}) != nullptr;
  const int64_t pattern = listed || window == 0 ? 4 : config.size_or({"sliding_window_pattern"}, 4);
  read_sliding_rope(config, window, pattern, arch);
  if (window > 0) return;
  for (LayerSpec& layer : arch.layers) layer.rotates = true;
}

// Cohere 2 rotates neighbours, and has attention and MLP side by side behind one norm, which takes
// the mean off.
void read_cohere2(ConfigReader& config, ArchSpec& arch) {
  read_llama_like(config,
                  {.positions = 8192,
                   .sizes = {.vocabulary = 256000, .heads = 64},
                   .tied = true,
                   .intermediate = 22528},
                  arch);
  read_rope(config, {}, arch);
  arch.rope.pairs = true;
  arch.qkv_bias = config.boolean({"attention_bias"}).value_or(false);
  arch.output_bias = arch.qkv_bias;
  arch.norm = NormKind::kLayer;
  arch.norm_bias = false;
  arch.norm_placement = NormPlacement::kShared;
  arch.norm_eps = config.real({"layer_norm_eps"}, 0.0, 1.0).value_or(1e-5);
  arch.logit_divisor = 1.0 / config.real({"logit_scale"}, 1e-6, 1e6).value_or(0.0625);
  // Published files have these switches, which transformers does not read.
  for (const std::string_view key : {"use_parallel_block", "use_gated_activation"}) {
    if (!config.boolean({key}).value_or(true)) config.problem(key, "= false is not supported");
  }
  const int64_t pattern = config.size_or({"sliding_window_pattern"}, 4);
  read_sliding_rope(config, read_window_or_null(config, 4096), pattern, arch);
}

}  // namespace longshore
