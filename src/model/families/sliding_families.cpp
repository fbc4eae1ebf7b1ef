#include <string>
#include <string_view>
#include <vector>

#include "model/families/config_decoder.h"
#include "model/families/family_rows.h"

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

// Reads which layers of Muse Glimmer rotate. Its list holds an angle for each layer, of which
// transformers reads only whether it is 0.
void read_rope_thetas(ConfigReader& config, ArchSpec& arch) {
  const std::vector<double> thetas = config.reals({"layer_rope_theta"}, 0.0, kMostReal);
  if (!thetas.empty() && thetas.size() != arch.layers.size()) {
    config.problem("layer_rope_theta", "has " + std::to_string(thetas.size()) + " entries for " +
                                           std::to_string(arch.layers.size()) + " layers");
    return;
  }
  const size_t last = arch.layers.size() - 1;
  for (size_t i = 0; i < arch.layers.size(); ++i) {
    arch.layers[i].rotates = thetas.empty() ? (last - i) % 4 != 0 : thetas[i] != 0.0;
    if (thetas.empty() || thetas[i] == 0.0 || thetas[i] == arch.rope.theta) continue;
    config.problem("layer_rope_theta",
                   "differs from rope_theta, which transformers uses in every layer that rotates");
    return;
  }
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

// Cohere rotates neighbours, and has attention and MLP side by side behind one norm, which takes
// the mean off. Norms of heads, which some of its models have, are refused.
void read_cohere(ConfigReader& config, ArchSpec& arch) {
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
}

void read_cohere2(ConfigReader& config, ArchSpec& arch) {
  read_cohere(config, arch);
  const int64_t pattern = config.size_or({"sliding_window_pattern"}, 4);
  read_sliding_rope(config, read_window_or_null(config, 4096), pattern, arch);
}

// Muse Glimmer normalises the embedding's rows, queries and keys without weights, and gates
// attention by its own matrix.
void read_muse_glimmer_text(ConfigReader& config, ArchSpec& arch) {
  read_llama_like(config,
                  {.positions = 131072,
                   .sizes = {.vocabulary = 202048, .heads = 32, .kv_heads = 2, .head_dim = 128},
                   .norm_eps = 1e-5,
                   .intermediate = 19968},
                  arch);
  read_activation(config, {"hidden_activation"}, "silu", arch);
  read_rope(config, {}, arch);
  arch.norm = NormKind::kRmsOffset;
  arch.norm_placement = NormPlacement::kBoth;
  arch.post_norm_eps = config.real({"post_norm_eps"}, 0.0, 1.0).value_or(1e-8);
  arch.final_norm = NormKind::kRmsWide;
  arch.embedding_norm = true;
  arch.qk_norm = QueryKeyNorm::kHeadPlain;
  arch.output_gate = arch.own_gate_matrix = true;
  if (config.boolean({"attention_bias"}).value_or(false)) {
    config.problem("attention_bias", "= true is not supported");
  }
  // The factor of the queries joins that of the scores.
  const double factor = config.real({"qk_scale_factor"}, 1e-6, kMostReal).value_or(3.87);
  for (LayerSpec& layer : arch.layers) layer.attention_scale *= factor;
  arch.logit_divisor =
      1.0 / config.real({"output_multiplier"}, 1e-6, 1e6).value_or(0.19611613513818404);
  arch.logit_cap = config.real({"final_logit_softcapping"}, 1e-6, kMostReal).value_or(20.0);
  const int64_t last = arch.layer_count() - 1;
  read_windows(config, read_window_or_null(config, 2048), arch,
               [&](int64_t layer) { return (last - layer) % 4 != 0; });
  read_rope_thetas(config, arch);
}

}  // namespace longshore
