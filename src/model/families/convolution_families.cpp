#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/causal_convolution.h"
#include "model/families/config_decoder.h"
#include "model/families/family_rows.h"

namespace longshore {
namespace {

using kernels::kMostTaps;

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

// The kinds of layers of Nemotron-H, by their letter, name and older name.
struct LayerName {
  char letter;
  std::string_view name, older;
};
constexpr std::array<LayerName, 4> kNemotronLayers = {{{'M', "linear_attention", "mamba"},
                                                       {'*', "full_attention", "attention"},
                                                       {'-', "mlp", "mlp"},
                                                       {'E', "moe", "moe"}}};

// Returns a letter for each layer; empty after a problem.
std::string nemotron_letters(ConfigReader& config) {
  const std::vector<std::string> names = config.texts({"layers_block_type", "layer_types"});
  const std::string pattern = config.text({"hybrid_override_pattern"}).value_or("");
  std::string letters;
  for (const std::string& name : names) {
    const auto found = std::ranges::find_if(kNemotronLayers, [&](const LayerName& layer) {
      return layer.name == name || layer.older == name;
    });
    if (found == kNemotronLayers.end()) {
      config.problem("layers_block_type",
                     "holds '" + name + "'; supported: linear_attention, full_attention, mlp, moe");
      return {};
    }
    letters += found->letter;
  }
  if (names.empty()) letters = pattern;
  for (const char letter : letters) {
    if (std::ranges::find(kNemotronLayers, letter, &LayerName::letter) != kNemotronLayers.end()) {
      continue;
    }
    config.problem("hybrid_override_pattern", "may hold M, *, - and E, not '" + letters + "'");
    return {};
  }
  if (letters.empty()) {
    config.problem("hybrid_override_pattern", "(or 'layers_block_type') is missing");
  }
  return letters;
}

void read_mamba(ConfigReader& config, MambaSpec& mamba) {
  constexpr int64_t kMostSize = 65536;
  const auto size = [&config](ConfigReader::Keys keys, int64_t otherwise) {
    return config.integer(keys, 1, kMostSize).value_or(otherwise);
  };
  mamba.heads = size({"mamba_num_heads"}, 128);
  mamba.head_dim = size({"mamba_head_dim"}, 64);
  mamba.groups = size({"mamba_n_groups", "n_groups"}, 8);
  mamba.state = size({"ssm_state_size"}, 128);
  mamba.taps = config.integer({"mamba_d_conv", "conv_kernel"}, 1, kMostTaps).value_or(4);
  mamba.convolution_bias = config.boolean({"mamba_conv_bias", "use_conv_bias"}).value_or(true);
  mamba.bias = config.boolean({"use_bias"}).value_or(false);
  mamba.least_step = config.real({"mamba_dt_min", "time_step_min"}, 0.0, kMostReal).value_or(0.001);
  if (mamba.heads % mamba.groups != 0) {
    config.problem("mamba_num_heads",
                   "= " + std::to_string(mamba.heads) +
                       " is not a multiple of n_groups = " + std::to_string(mamba.groups));
  }
  if (mamba.inner_width() > kMostToken / 4 || mamba.groups * mamba.state > kMostToken / 4) {
    config.problem("mamba_head_dim", "or ssm_state_size is too large");
  }
  const std::string activation = config.text({"mamba_hidden_act"}).value_or("silu");
  if (activation != "silu" && activation != "swish") {
    config.problem("mamba_hidden_act", "= '" + activation + "' is not supported; supported: silu");
  }
}

// Reads the experts of the layers with an E. They have no gates, and may work in a width of their
// own between two matrices.
void read_nemotron_experts(ConfigReader& config, ArchSpec& arch) {
  read_corrected_experts(config, {.experts = 8, .top_k = 2, .width = 7688}, arch);
  MoeSpec& moe = arch.moe;
  moe.shared_width = config.size_or({"moe_shared_expert_intermediate_size"}, 7688);
  moe.latent = config.integer({"moe_latent_size"}, 1, kMostToken).value_or(0);
  if (arch.mlp_bias) config.problem("mlp_bias", "= true is not supported with experts");
}

}  // namespace

NameTable lfm2_names(std::string_view block_class) {
  return named_as_llama(block_class, {{Module::kAttentionNorm, "layers.{i}.operator_norm"},
                                      {Module::kConvolutionIn, "layers.{i}.conv.in_proj"},
                                      {Module::kConvolutionTaps, "layers.{i}.conv.conv"},
                                      {Module::kConvolutionOut, "layers.{i}.conv.out_proj"},
                                      {Module::kQueryNorm, "layers.{i}.self_attn.q_layernorm"},
                                      {Module::kKeyNorm, "layers.{i}.self_attn.k_layernorm"},
                                      {Module::kOutput, "layers.{i}.self_attn.out_proj"},
                                      {Module::kMlpNorm, "layers.{i}.ffn_norm"},
                                      {Module::kGate, "layers.{i}.feed_forward.w1"},
                                      {Module::kUp, "layers.{i}.feed_forward.w3"},
                                      {Module::kDown, "layers.{i}.feed_forward.w2"},
                                      {Module::kFinalNorm, "embedding_norm"}});
}

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

// A layer is Mamba-2, attention without positions, an MLP, or experts.
void read_nemotron_h(ConfigReader& config, ArchSpec& arch) {
  const std::string letters = nemotron_letters(config);
  const auto count = std::max<int64_t>(1, std::ssize(letters));
  read_llama_like(
      config,
      {.positions = 4096,
       .sizes =
           {.vocabulary = 131072, .heads = 32, .kv_heads = 8, .head_dim = 128, .layers = count},
       .intermediate = 21504},
      arch);
  if (arch.tied_by_config) {
    config.problem("tie_word_embeddings",
                   "is not supported in nemotron_h: transformers gives it a head of its own");
  }
  arch.norm = NormKind::kRmsWide;
  arch.norm_eps = config.real({"layer_norm_epsilon"}, 0.0, 1.0).value_or(1e-5);
  arch.gated = false;
  read_activation(config, {"mlp_hidden_act"}, "relu2", arch);
  arch.mlp_bias = config.boolean({"mlp_bias"}).value_or(false);
  if (config.boolean({"attention_bias"}).value_or(false)) {
    config.problem("attention_bias", "= true is not supported");
  }
  read_mamba(config, arch.mamba);
  // Files without experts have these keys too.
  config.find({"n_routed_experts", "num_local_experts", "num_experts_per_tok", "n_shared_experts"});
  config.find({"moe_intermediate_size", "moe_shared_expert_intermediate_size", "moe_latent_size",
               "moe_shared_expert_overlap"});
  if (letters.empty()) return;
  if (arch.layer_count() != count) {
    config.problem("num_hidden_layers", "= " + std::to_string(arch.layer_count()) + ", but " +
                                            std::to_string(count) + " layers are listed");
    return;
  }
  if (letters.find('E') != std::string::npos) read_nemotron_experts(config, arch);
  for (size_t i = 0; i < arch.layers.size(); ++i) {
    LayerSpec& layer = arch.layers[i];
    layer.rotates = false;
    layer.has_mlp = letters[i] == '-' || letters[i] == 'E';
    layer.has_mixer = !layer.has_mlp;
    layer.sparse = letters[i] == 'E';
    if (letters[i] == 'M') layer.mixer = MixerKind::kMamba;
  }
}

}  // namespace longshore
