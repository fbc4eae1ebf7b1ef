#include "model/families/config_decoder.h"

#include <algorithm>
#include <cmath>

namespace longshore {
namespace {

constexpr int64_t kMostLayers = 4096;
constexpr int64_t kMostHeadDim = 65536;

std::optional<Activation> parse_activation(std::string_view name) {
  if (name == "silu" || name == "swish") return Activation::kSilu;
  if (name == "gelu_new" || name == "gelu_pytorch_tanh" || name == "gelu_fast") {
    return Activation::kGeluTanh;
  }
  if (name == "gelu" || name == "gelu_python") return Activation::kGeluErf;
  if (name == "relu") return Activation::kRelu;
  if (name == "relu2") return Activation::kReluSquared;
  return std::nullopt;
}

}  // namespace

void read_activation(ConfigReader& config, ConfigReader::Keys keys, std::string_view otherwise,
                     ArchSpec& arch) {
  const std::string name = config.text(keys).value_or(std::string(otherwise));
  const auto activation = parse_activation(name);
  if (activation) {
    arch.activation = *activation;
  } else {
    config.problem(config.has("hidden_activation") ? "hidden_activation" : "hidden_act",
                   "= '" + name +
                       "' is not supported; supported: silu, gelu, gelu_new, gelu_pytorch_tanh, "
                       "relu, relu2");
  }
}

void read_data_type(ConfigReader& config, ArchSpec& arch) {
  const auto name = config.text({"dtype", "torch_dtype"});
  if (name == "float32") arch.dtype = DType::kF32;
  if (name == "bfloat16") arch.dtype = DType::kBF16;
  if (name == "float16") arch.dtype = DType::kF16;
}

void read_tokens(ConfigReader& config, ArchSpec& arch) {
  // Some files use -1 for "none".
  arch.eos_tokens = config.integers({"eos_token_id"}, -1, kMostToken);
  std::erase(arch.eos_tokens, -1);
  const auto token = [&config](std::string_view key) {
    const auto id = config.integer({key}, -1, kMostToken);
    return id && *id >= 0 ? id : std::nullopt;
  };
  arch.bos_token = token("bos_token_id");
  arch.pad_token = token("pad_token_id");
}

void read_sizes(ConfigReader& config, const SizeDefaults& defaults, ArchSpec& arch) {
  const auto size = [&config](ConfigReader::Keys keys, int64_t otherwise) {
    return otherwise == 0 ? config.size(keys) : config.size_or(keys, otherwise);
  };
  arch.vocabulary = size({"vocab_size"}, defaults.vocabulary);
  arch.hidden = config.size({"hidden_size", "n_embd"});
  arch.heads = size({"num_attention_heads", "n_head"}, defaults.heads);
  // null means as many as heads; the default is that of an absent key.
  const bool null =
      config.has("num_key_value_heads") && config.find({"num_key_value_heads"}) == nullptr;
  arch.kv_heads = config.size_or({"num_key_value_heads"},
                                 defaults.kv_heads == 0 || null ? arch.heads : defaults.kv_heads);
  const int64_t layers = size({"num_hidden_layers", "n_layer"}, defaults.layers);
  if (layers > kMostLayers) {
    config.problem("num_hidden_layers", "must be at most " + std::to_string(kMostLayers));
  }
  arch.layers.resize(static_cast<size_t>(std::min(layers, kMostLayers)));
  const auto head_dim = config.integer({"head_dim"}, 1, kMostHeadDim);
  arch.head_dim = head_dim.value_or(defaults.head_dim);
  if (arch.head_dim == 0) {
    if (arch.hidden % arch.heads != 0) {
      config.problem("hidden_size", "= " + std::to_string(arch.hidden) +
                                        " is not a multiple of num_attention_heads = " +
                                        std::to_string(arch.heads) + "; set head_dim");
    }
    arch.head_dim = std::max<int64_t>(1, arch.hidden / arch.heads);
  }
  if (arch.heads % arch.kv_heads != 0) {
    config.problem("num_attention_heads", "= " + std::to_string(arch.heads) +
                                              " is not a multiple of num_key_value_heads = " +
                                              std::to_string(arch.kv_heads));
  }
  if (arch.heads * arch.head_dim > kMostToken) {
    config.problem("head_dim", "is too large for " + std::to_string(arch.heads) + " heads");
  }
  arch.initializer_range = config.real({"initializer_range"}, 0.0, kMostReal).value_or(0.02);
  read_data_type(config, arch);
  read_tokens(config, arch);
}

std::optional<std::vector<bool>> read_layer_types(ConfigReader& config, const ArchSpec& arch,
                                                  const std::string& special,
                                                  const std::function<bool(int64_t)>& otherwise) {
  const std::vector<std::string> types = config.texts({"layer_types"});
  if (!types.empty() && types.size() != arch.layers.size()) {
    config.problem("layer_types", "has " + std::to_string(types.size()) + " entries for " +
                                      std::to_string(arch.layers.size()) + " layers");
    return std::nullopt;
  }
  std::vector<bool> are_special;
  for (size_t i = 0; i < arch.layers.size(); ++i) {
    are_special.push_back(types.empty() ? otherwise(static_cast<int64_t>(i)) : types[i] == special);
    if (types.empty() || are_special.back() || types[i] == "full_attention") continue;
    config.problem("layer_types",
                   "holds '" + types[i] + "'; supported: full_attention, " + special);
    return std::nullopt;
  }
  return are_special;
}

void read_windows(ConfigReader& config, int64_t window, ArchSpec& arch,
                  const std::function<bool(int64_t)>& windowed) {
  const auto slides = read_layer_types(config, arch, "sliding_attention", windowed);
  if (!slides) return;
  for (size_t i = 0; i < arch.layers.size(); ++i) {
    if ((*slides)[i] && window == 0) {
      config.problem("layer_types",
                     "has sliding layers but there is no sliding window; set sliding_window");
      return;
    }
    arch.layers[i].window = (*slides)[i] ? window : 0;
  }
}

void set_attention_scale(ArchSpec& arch) {
  for (LayerSpec& layer : arch.layers) {
    layer.attention_scale = 1.0 / std::sqrt(static_cast<double>(arch.head_dim));
  }
}

void read_llama_like(ConfigReader& config, const LlamaDefaults& defaults, ArchSpec& arch) {
  read_sizes(config, defaults.sizes, arch);
  arch.intermediate = defaults.intermediate == 0
                          ? config.size({"intermediate_size"})
                          : config.size_or({"intermediate_size"}, defaults.intermediate);
  arch.max_positions = config.size_or({"max_position_embeddings"}, defaults.positions);
  arch.norm = NormKind::kRms;
  arch.norm_eps = config.real({"rms_norm_eps"}, 0.0, 1.0).value_or(defaults.norm_eps);
  arch.gated = true;
  read_activation(config, {"hidden_activation", "hidden_act", "activation_function"}, "silu", arch);
  set_attention_scale(arch);
  arch.tied_by_config = config.boolean({"tie_word_embeddings"}).value_or(defaults.tied);
}

void read_qwen_windows(ConfigReader& config, ArchSpec& arch) {
  const bool use = config.boolean({"use_sliding_window"}).value_or(false);
  // transformers writes a window of 0 or null where the switch is off, and reads no window then.
  const int64_t window = use ? read_window(config, 4096) : 0;
  const int64_t full_layers = config.integer({"max_window_layers"}, 0, kMostToken).value_or(28);
  read_windows(config, window, arch,
               [&](int64_t layer) { return window > 0 && layer >= full_layers; });
}

void read_biases(ConfigReader& config, bool attention, ArchSpec& arch) {
  arch.qkv_bias = config.boolean({"attention_bias"}).value_or(attention);
  arch.output_bias = arch.qkv_bias;
  arch.mlp_bias = config.boolean({"mlp_bias"}).value_or(false);
}

int64_t read_window(ConfigReader& config, int64_t absent) {
  return config.integer({"sliding_window"}, 0, kMostToken)
      .value_or(config.has("sliding_window") ? 0 : absent);
}

void read_window_of_all(ConfigReader& config, int64_t absent, ArchSpec& arch) {
  const int64_t window = read_window(config, absent);
  read_windows(config, window, arch, [&](int64_t) { return window > 0; });
}

}  // namespace longshore
