#include "model/families.h"

#include <algorithm>
#include <cmath>

#include "base/errors.h"
#include "model/config_reader.h"

namespace longshore {
namespace {

constexpr int64_t kMostLayers = 4096;
constexpr int64_t kMostHeadDim = 65536;
constexpr int64_t kMostToken = (int64_t{1} << 31) - 1;
constexpr double kMostReal = 1e15;

// ---- readers that several families share ----

std::optional<Activation> parse_activation(std::string_view name) {
  if (name == "silu" || name == "swish") return Activation::kSilu;
  if (name == "gelu_new" || name == "gelu_pytorch_tanh" || name == "gelu_fast") {
    return Activation::kGeluTanh;
  }
  if (name == "gelu" || name == "gelu_python") return Activation::kGeluErf;
  if (name == "relu") return Activation::kRelu;
  return std::nullopt;
}

void read_activation(ConfigReader& config, std::string_view otherwise, ArchSpec& arch) {
  const std::string name = config.text({"hidden_act", "hidden_activation", "activation_function"})
                               .value_or(std::string(otherwise));
  const auto activation = parse_activation(name);
  if (activation) {
    arch.activation = *activation;
  } else {
    config.problem("hidden_act", "= '" + name +
                                     "' is not supported; supported: silu, gelu, gelu_new, "
                                     "gelu_pytorch_tanh, relu");
  }
}

void read_data_type(ConfigReader& config, ArchSpec& arch) {
  const auto name = config.text({"dtype", "torch_dtype"});
  if (name == "float32") arch.dtype = DType::kF32;
  if (name == "bfloat16") arch.dtype = DType::kBF16;
  if (name == "float16") arch.dtype = DType::kF16;
}

void read_tokens(ConfigReader& config, ArchSpec& arch) {
  arch.eos_tokens = config.integers({"eos_token_id"}, 0, kMostToken);
  arch.bos_token = config.integer({"bos_token_id"}, 0, kMostToken);
  // Some files say -1 for "none".
  const auto pad = config.integer({"pad_token_id"}, -1, kMostToken);
  if (pad && *pad >= 0) arch.pad_token = pad;
}

// Keys that every family has: sizes, heads, tokens. `head_dim` = 0: hidden / heads.
void read_sizes(ConfigReader& config, int64_t default_head_dim, ArchSpec& arch) {
  arch.vocabulary = config.size({"vocab_size"});
  arch.hidden = config.size({"hidden_size", "n_embd"});
  arch.heads = config.size({"num_attention_heads", "n_head"});
  arch.kv_heads = config.size_or({"num_key_value_heads"}, arch.heads);
  const int64_t layers = config.size({"num_hidden_layers", "n_layer"});
  if (layers > kMostLayers) {
    config.problem("num_hidden_layers", "must be at most " + std::to_string(kMostLayers));
  }
  arch.layers.resize(static_cast<size_t>(std::min(layers, kMostLayers)));
  const auto head_dim = config.integer({"head_dim"}, 1, kMostHeadDim);
  arch.head_dim = head_dim.value_or(default_head_dim);
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
  arch.initializer_range = config.real({"initializer_range"}, 0.0, 1.0).value_or(0.02);
  read_data_type(config, arch);
  read_tokens(config, arch);
}

void read_rope_scaling(ConfigReader& outer, ConfigReader& rope, ArchSpec& arch) {
  RopeSpec& spec = arch.rope;
  const std::string kind = rope.text({"rope_type", "type"}).value_or("default");
  if (kind == "default") return;
  spec.factor = rope.real({"factor"}, 1e-3, 1e6).value_or(0.0);
  if (spec.factor == 0.0) rope.problem("factor", "is needed for rope type '" + kind + "'");
  if (kind == "linear") {
    spec.scaling = RopeSpec::Scaling::kLinear;
  } else if (kind == "llama3") {
    spec.scaling = RopeSpec::Scaling::kLlama3;
    spec.low_freq_factor = rope.real({"low_freq_factor"}, 1e-3, 1e6).value_or(1.0);
    spec.high_freq_factor = rope.real({"high_freq_factor"}, 1e-3, 1e6).value_or(4.0);
    if (spec.high_freq_factor <= spec.low_freq_factor) {
      rope.problem("high_freq_factor", "must be greater than low_freq_factor");
    }
    // A value beside the scaling's own one wins, as in transformers.
    const int64_t inside = rope.size_or({"original_max_position_embeddings"}, arch.max_positions);
    spec.original_max_positions = outer.size_or({"original_max_position_embeddings"}, inside);
  } else {
    rope.problem("rope_type",
                 "= '" + kind + "' is not supported; supported: default, linear, llama3");
  }
}

// transformers 5 has `rope_parameters`; 4 has `rope_theta` and `rope_scaling`.
void read_rope(ConfigReader& config, ArchSpec& arch) {
  arch.position = PositionKind::kRope;
  if (arch.head_dim % 2 != 0) {
    config.problem("head_dim", "= " + std::to_string(arch.head_dim) + " must be even");
  }
  const auto theta = config.real({"rope_theta"}, 1.0, kMostReal);
  const auto partial = config.real({"partial_rotary_factor"}, 0.0, 1.0);
  arch.rope.theta = theta.value_or(10000.0);
  bool whole = partial.value_or(1.0) == 1.0;
  const Json* scaling = config.find({"rope_scaling", "rope_parameters"});
  if (scaling != nullptr && !scaling->is_object()) {
    config.problem("rope_parameters", "must be an object");
  } else if (scaling != nullptr) {
    ConfigReader rope(*scaling, config.path() + ": rope_parameters");
    for (const auto& [key, value] : scaling->items()) {
      if (value.is_object()) rope.problem(key, "per layer type is not supported");
    }
    arch.rope.theta = rope.real({"rope_theta"}, 1.0, kMostReal).value_or(arch.rope.theta);
    whole = whole && rope.real({"partial_rotary_factor"}, 0.0, 1.0).value_or(1.0) == 1.0;
    read_rope_scaling(config, rope, arch);
    config.take_problems(rope);
  }
  if (!whole) config.problem("partial_rotary_factor", "other than 1 is not supported");
}

// `windowed(i)` says which layers slide where `layer_types` does not say it.
template <typename Windowed>
void read_windows(ConfigReader& config, int64_t window, ArchSpec& arch, Windowed windowed) {
  const std::vector<std::string> types = config.texts({"layer_types"});
  if (!types.empty() && types.size() != arch.layers.size()) {
    config.problem("layer_types", "has " + std::to_string(types.size()) + " entries for " +
                                      std::to_string(arch.layers.size()) + " layers");
    return;
  }
  for (size_t i = 0; i < arch.layers.size(); ++i) {
    bool slides = windowed(static_cast<int64_t>(i));
    if (!types.empty()) {
      slides = types[i] == "sliding_attention";
      if (!slides && types[i] != "full_attention") {
        config.problem("layer_types",
                       "holds '" + types[i] + "'; supported: full_attention, sliding_attention");
        return;
      }
    }
    if (slides && window == 0) {
      config.problem("layer_types", "has sliding layers but there is no sliding window");
      return;
    }
    arch.layers[i].window = slides ? window : 0;
  }
}

void set_attention_scale(ArchSpec& arch) {
  for (LayerSpec& layer : arch.layers) {
    layer.attention_scale = 1.0 / std::sqrt(static_cast<double>(arch.head_dim));
  }
}

// What llama, mistral, qwen2 and qwen3 have in common.
void read_llama_like(ConfigReader& config, int64_t default_head_dim, int64_t default_positions,
                     ArchSpec& arch) {
  read_sizes(config, default_head_dim, arch);
  arch.intermediate = config.size({"intermediate_size"});
  arch.max_positions = config.size_or({"max_position_embeddings"}, default_positions);
  arch.norm = NormKind::kRms;
  arch.norm_eps = config.real({"rms_norm_eps"}, 0.0, 1.0).value_or(1e-6);
  arch.gated = true;
  read_activation(config, "silu", arch);
  read_rope(config, arch);
  set_attention_scale(arch);
  arch.tied_by_config = config.boolean({"tie_word_embeddings"}).value_or(false);
}

void read_qwen_windows(ConfigReader& config, ArchSpec& arch) {
  const bool use = config.boolean({"use_sliding_window"}).value_or(false);
  const int64_t given = config.size_or({"sliding_window"}, 4096);
  const int64_t full_layers = config.integer({"max_window_layers"}, 0, kMostToken).value_or(28);
  read_windows(config, use ? given : 0, arch,
               [&](int64_t layer) { return use && layer >= full_layers; });
}

// ---- the families ----

void read_llama(ConfigReader& config, ArchSpec& arch) {
  read_llama_like(config, 0, 2048, arch);
  arch.qkv_bias = config.boolean({"attention_bias"}).value_or(false);
  arch.output_bias = arch.qkv_bias;
  arch.mlp_bias = config.boolean({"mlp_bias"}).value_or(false);
}

void read_mistral(ConfigReader& config, ArchSpec& arch) {
  read_llama_like(config, 0, 131072, arch);
  // Absent means 4096, null means no window.
  const bool absent = !config.has("sliding_window");
  const int64_t window = config.size_or({"sliding_window"}, absent ? 4096 : 0);
  read_windows(config, window, arch, [&](int64_t) { return window > 0; });
}

void read_qwen2(ConfigReader& config, ArchSpec& arch) {
  read_llama_like(config, 0, 32768, arch);
  arch.qkv_bias = true;
  read_qwen_windows(config, arch);
}

void read_qwen3(ConfigReader& config, ArchSpec& arch) {
  read_llama_like(config, 128, 32768, arch);
  arch.qk_norm = true;
  arch.qkv_bias = config.boolean({"attention_bias"}).value_or(false);
  arch.output_bias = arch.qkv_bias;
  read_qwen_windows(config, arch);
}

void read_gpt2(ConfigReader& config, ArchSpec& arch) {
  read_sizes(config, 0, arch);
  arch.intermediate = config.size_or({"n_inner"}, 4 * arch.hidden);
  arch.max_positions = config.size_or({"n_positions", "max_position_embeddings", "n_ctx"}, 1024);
  arch.norm = NormKind::kLayer;
  arch.norm_eps = config.real({"layer_norm_epsilon"}, 0.0, 1.0).value_or(1e-5);
  arch.fused_qkv = arch.transposed_weights = true;
  arch.qkv_bias = arch.output_bias = arch.mlp_bias = true;
  arch.gated = false;
  read_activation(config, "gelu_new", arch);
  arch.position = PositionKind::kLearned;
  arch.tied_by_config = config.boolean({"tie_word_embeddings"}).value_or(true);
  arch.residual_init_scale = 1.0 / std::sqrt(2.0 * static_cast<double>(arch.layers.size()));
  if (arch.kv_heads != arch.heads || arch.head_dim * arch.heads != arch.hidden) {
    config.problem("n_head", "must divide n_embd; grouped heads are not part of gpt2");
  }
  if (config.boolean({"add_cross_attention"}).value_or(false)) {
    config.problem("add_cross_attention", "is not supported");
  }
  if (config.boolean({"scale_attn_weights"}).value_or(true)) set_attention_scale(arch);
  if (config.boolean({"scale_attn_by_inverse_layer_idx"}).value_or(false)) {
    for (size_t i = 0; i < arch.layers.size(); ++i) {
      arch.layers[i].attention_scale /= static_cast<double>(i + 1);
    }
  }
}

struct Family {
  std::string_view model_type;
  void (*read)(ConfigReader&, ArchSpec&);
  NameTable names;
};

// In the order of Module.
constexpr std::array<std::string_view, kModuleCount> kLlamaModules = {
    "embed_tokens",
    "",
    "layers.{i}.input_layernorm",
    "layers.{i}.self_attn.q_proj",
    "layers.{i}.self_attn.k_proj",
    "layers.{i}.self_attn.v_proj",
    "",
    "layers.{i}.self_attn.q_norm",
    "layers.{i}.self_attn.k_norm",
    "layers.{i}.self_attn.o_proj",
    "layers.{i}.post_attention_layernorm",
    "layers.{i}.mlp.gate_proj",
    "layers.{i}.mlp.up_proj",
    "layers.{i}.mlp.down_proj",
    "norm",
    "lm_head",
};

constexpr std::array<std::string_view, kModuleCount> kGpt2Modules = {
    "wte",
    "wpe",
    "h.{i}.ln_1",
    "",
    "",
    "",
    "h.{i}.attn.c_attn",
    "",
    "",
    "h.{i}.attn.c_proj",
    "h.{i}.ln_2",
    "",
    "h.{i}.mlp.c_fc",
    "h.{i}.mlp.c_proj",
    "ln_f",
    "lm_head",
};

const std::vector<Family>& families() {
  static const NameTable llama_names{
      kLlamaModules, {"model."}, {"layers.*.self_attn.rotary_emb.inv_freq"}};
  static const NameTable gpt2_names{
      kGpt2Modules, {"transformer.", ""}, {"h.*.attn.bias", "h.*.attn.masked_bias"}};
  static const std::vector<Family> table = {
      {"llama", read_llama, llama_names}, {"mistral", read_mistral, llama_names},
      {"qwen2", read_qwen2, llama_names}, {"qwen3", read_qwen3, llama_names},
      {"gpt2", read_gpt2, gpt2_names},
  };
  return table;
}

const Family* find_family(std::string_view model_type) {
  for (const Family& family : families()) {
    if (family.model_type == model_type) return &family;
  }
  return nullptr;
}

}  // namespace

std::string supported_families() {
  std::string list;
  for (const Family& family : families()) {
    if (!list.empty()) list += ", ";
    list += family.model_type;
  }
  return list;
}

const NameTable& name_table(std::string_view family) {
  const Family* row = find_family(family);
  LONGSHORE_CHECK(row != nullptr) << "no family '" << family << "'";
  return row->names;
}

ArchSpec read_arch_spec(const Json& config, const std::string& path) {
  ConfigReader reader(config, path);
  const auto model_type = reader.text({"model_type"});
  if (!model_type && !reader.has_problems()) reader.problem("model_type", "is missing");
  reader.finish();
  const Family* family = find_family(*model_type);
  if (family == nullptr) {
    throw ConfigError(path + ": model_type '" + *model_type +
                      "' is not supported; supported: " + supported_families());
  }
  ArchSpec arch;
  arch.family = *model_type;
  arch.origin = path;
  family->read(reader, arch);
  reader.refuse_unknown_numeric_keys();
  reader.finish();
  return arch;
}

}  // namespace longshore
