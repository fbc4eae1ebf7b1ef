#include "model/families/families.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "base/errors.h"
#include "model/families/config_decoder.h"
#include "model/families/config_reader.h"
#include "model/families/family_rows.h"

namespace longshore {
namespace {

void read_llama(ConfigReader& config, ArchSpec& arch) {
  read_llama_like(config, {}, arch);
  read_rope(config, {}, arch);
  read_biases(config, false, arch);
}

void read_mistral(ConfigReader& config, ArchSpec& arch) {
  read_llama_like(config, {.positions = 131072}, arch);
  read_rope(config, {}, arch);
  // An absent key means 4096; null means no window.
  read_window_of_all(config, 4096, arch);
}

void read_qwen2(ConfigReader& config, ArchSpec& arch) {
  read_llama_like(config, {.positions = 32768}, arch);
  read_rope(config, {}, arch);
  arch.qkv_bias = true;
  read_qwen_windows(config, arch);
}

void read_qwen3(ConfigReader& config, ArchSpec& arch) {
  read_llama_like(config, {.positions = 32768, .sizes = {.head_dim = 128}}, arch);
  read_rope(config, {}, arch);
  arch.qk_norm = QueryKeyNorm::kHead;
  arch.qkv_bias = config.boolean({"attention_bias"}).value_or(false);
  arch.output_bias = arch.qkv_bias;
  read_qwen_windows(config, arch);
}

// Granite has four multipliers.
void read_granite(ConfigReader& config, ArchSpec& arch) {
  read_llama_like(config, {}, arch);
  read_rope(config, {}, arch);
  read_biases(config, false, arch);
  constexpr double kMost = 1e6;
  arch.embedding_scale = config.real({"embedding_multiplier"}, -kMost, kMost).value_or(1.0);
  arch.residual_scale = config.real({"residual_multiplier"}, -kMost, kMost).value_or(1.0);
  arch.logit_divisor = config.real({"logits_scaling"}, 1e-6, kMost).value_or(1.0);
  const double scale = config.real({"attention_multiplier"}, 1e-6, kMost).value_or(1.0);
  for (LayerSpec& layer : arch.layers) layer.attention_scale = scale;
}

void read_seed_oss(ConfigReader& config, ArchSpec& arch) {
  read_llama_like(config, {.positions = 524288, .sizes = {.head_dim = 128}}, arch);
  read_rope(config, {}, arch);
  read_biases(config, true, arch);
  arch.output_bias = config.boolean({"attention_out_bias"}).value_or(false);
}

// SmolLM3 has layers without positions.
void read_smollm3(ConfigReader& config, ArchSpec& arch) {
  read_llama_like(config, {.positions = 32768, .tied = true}, arch);
  read_rope(config, {.theta = 2e6}, arch);
  read_biases(config, false, arch);
  const int64_t interval = config.size_or({"no_rope_layer_interval"}, 4);
  const std::vector<int64_t> given = config.integers({"no_rope_layers"}, 0, 1);
  if (!given.empty() && given.size() < arch.layers.size()) {
    config.problem("no_rope_layers", "has " + std::to_string(given.size()) + " entries for " +
                                         std::to_string(arch.layers.size()) + " layers");
    return;
  }
  for (size_t i = 0; i < arch.layers.size(); ++i) {
    arch.layers[i].rotates =
        given.empty() ? (static_cast<int64_t>(i) + 1) % interval != 0 : given[i] != 0;
  }
  const bool use = config.boolean({"use_sliding_window"}).value_or(false);
  const int64_t window = use ? read_window(config, 0) : 0;
  read_windows(config, window, arch, [&](int64_t layer) {
    return window > 0 && !arch.layers[static_cast<size_t>(layer)].rotates;
  });
}

void read_olmo_norms(ArchSpec& arch) {
  arch.norm = NormKind::kRmsWide;
  arch.norm_placement = NormPlacement::kAfter;
  arch.qk_norm = QueryKeyNorm::kWidth;
}

void read_olmo2(ConfigReader& config, ArchSpec& arch) {
  read_llama_like(config, {.norm_eps = 1e-5}, arch);
  read_rope(config, {}, arch);
  read_biases(config, false, arch);
  read_olmo_norms(arch);
}

// In OLMo 3 three of four layers have a window, and their rope is not scaled.
void read_olmo3(ConfigReader& config, ArchSpec& arch) {
  read_llama_like(config, {.norm_eps = 1e-5}, arch);
  read_rope_by_layer_type(config, 5e5, 5e5, "", arch);
  read_biases(config, false, arch);
  read_olmo_norms(arch);
  const int64_t window = read_window(config, 4096);
  read_windows(config, window, arch, [](int64_t layer) { return (layer + 1) % 4 != 0; });
  for (LayerSpec& layer : arch.layers) layer.local_rope = layer.window > 0;
}

// Phi-3 has fused matrices, a partial rotation and rope factors for long documents.
void read_phi3(ConfigReader& config, ArchSpec& arch) {
  read_llama_like(config, {.positions = 4096, .norm_eps = 1e-5}, arch);
  read_rope(config, {.partial = true, .longrope = true}, arch);
  arch.fused_qkv = arch.fused_gate_up = true;
  read_window_of_all(config, 0, arch);
}

// GLM-4 rotates pairs of half of each head and has norms on both sides of a branch.
void read_glm4(ConfigReader& config, ArchSpec& arch) {
  read_llama_like(config, {.positions = 131072, .sizes = {.head_dim = 128}, .norm_eps = 1.5625e-7},
                  arch);
  read_rope(config, {.share = 0.5, .partial = true}, arch);
  arch.rope.pairs = true;
  arch.qkv_bias = config.boolean({"attention_bias"}).value_or(true);
  arch.fused_gate_up = true;
  arch.norm_placement = NormPlacement::kBoth;
}

// HunYuan normalises queries and keys after the rotation.
void read_hunyuan_dense(ConfigReader& config, ArchSpec& arch) {
  read_llama_like(config, {.norm_eps = 1e-5}, arch);
  read_rope(config, {.alpha = true}, arch);
  arch.qkv_bias = config.boolean({"attention_bias"}).value_or(false);
  arch.output_bias = arch.qkv_bias;
  arch.qk_norm = QueryKeyNorm::kHead;
  arch.qk_norm_after_rope = true;
}

// In Ministral 3 queries grow with the position.
void read_ministral3(ConfigReader& config, ArchSpec& arch) {
  read_llama_like(config, {.positions = 262144, .sizes = {.head_dim = 128}, .norm_eps = 1e-5},
                  arch);
  read_rope(config, {.theta = 1e6}, arch);
  read_window_of_all(config, 0, arch);
  const Json* rope = config.find({"rope_parameters"});
  if (rope == nullptr || !rope->is_object()) {
    config.problem("rope_parameters", "is missing");
    return;
  }
  ConfigReader inner(*rope, config.path() + ": rope_parameters");
  arch.query_growth_beta = inner.real({"llama_4_scaling_beta"}, 0.0, 1e3).value_or(0.0);
  arch.query_growth_positions = inner.size_or({"original_max_position_embeddings"}, 16384);
  config.take_problems(inner);
}

// Ministral is Mistral with layers of both kinds.
void read_ministral(ConfigReader& config, ArchSpec& arch) {
  read_llama_like(config,
                  {.positions = 131072,
                   .sizes = {.vocabulary = 32000, .heads = 32, .kv_heads = 8},
                   .intermediate = 14336},
                  arch);
  read_rope(config, {}, arch);
  read_window_of_all(config, 4096, arch);
}

// StarCoder 2 has layer norms, biases everywhere and an MLP without a gate.
void read_starcoder2(ConfigReader& config, ArchSpec& arch) {
  read_llama_like(config,
                  {.positions = 4096,
                   .sizes = {.vocabulary = 49152, .heads = 24, .kv_heads = 2},
                   .tied = true,
                   .intermediate = 12288},
                  arch);
  read_activation(config, {"hidden_act"}, "gelu_pytorch_tanh", arch);
  read_rope(config, {}, arch);
  arch.norm = NormKind::kLayer;
  arch.norm_eps = config.real({"norm_epsilon"}, 0.0, 1.0).value_or(1e-5);
  arch.gated = false;
  arch.qkv_bias = arch.output_bias = arch.mlp_bias = config.boolean({"use_bias"}).value_or(true);
  read_window_of_all(config, 0, arch);
}

// ERNIE 4.5 rotates neighbours.
void read_ernie4_5(ConfigReader& config, ArchSpec& arch) {
  read_llama_like(config,
                  {.positions = 131072,
                   .sizes = {.vocabulary = 103424, .heads = 16, .kv_heads = 2, .head_dim = 128},
                   .norm_eps = 1e-5,
                   .tied = true,
                   .intermediate = 3072},
                  arch);
  read_rope(config, {.theta = 5e5}, arch);
  arch.rope.pairs = true;
  arch.qkv_bias = arch.output_bias = arch.mlp_bias = config.boolean({"use_bias"}).value_or(false);
}

// Reads what Gemma 2 and 3 share.
void read_gemma(ConfigReader& config, ArchSpec& arch) {
  // Files also have "hidden_act", which transformers ignores for Gemma.
  read_activation(config, {"hidden_activation"}, "gelu_pytorch_tanh", arch);
  arch.qkv_bias = config.boolean({"attention_bias"}).value_or(false);
  arch.output_bias = arch.qkv_bias;
  arch.norm = NormKind::kRmsOffset;
  arch.norm_placement = NormPlacement::kBoth;
  arch.embedding_scale = std::sqrt(static_cast<double>(arch.hidden));
  arch.embedding_scale_rounded = true;
  if (config.boolean({"use_bidirectional_attention"}).value_or(false)) {
    config.problem("use_bidirectional_attention", "is not supported");
  }
  const double scalar = config.real({"query_pre_attn_scalar"}, 1e-6, kMostReal).value_or(256.0);
  for (LayerSpec& layer : arch.layers) layer.attention_scale = 1.0 / std::sqrt(scalar);
}

// An absent key means the family's default; null means no cap.
double read_cap(ConfigReader& config, std::string_view key, double absent) {
  const double otherwise = config.has(key) ? 0.0 : absent;
  return config.real({key}, 1e-6, kMostReal).value_or(otherwise);
}

// Gemma 2 caps attention scores and logits; every second layer has a window.
void read_gemma2(ConfigReader& config, ArchSpec& arch) {
  read_llama_like(config,
                  {.positions = 8192,
                   .sizes = {.vocabulary = 256000, .heads = 8, .kv_heads = 4, .head_dim = 256},
                   .tied = true},
                  arch);
  read_rope(config, {}, arch);
  read_gemma(config, arch);
  arch.score_cap = read_cap(config, "attn_logit_softcapping", 50.0);
  arch.logit_cap = read_cap(config, "final_logit_softcapping", 30.0);
  const int64_t window = read_window(config, 4096);
  read_windows(config, window, arch, [](int64_t layer) { return layer % 2 == 0; });
}

// Reads the text model of Gemma 3.
void read_gemma3_text(ConfigReader& config, ArchSpec& arch) {
  read_llama_like(config,
                  {.positions = 131072,
                   .sizes = {.vocabulary = 262208, .heads = 8, .kv_heads = 4, .head_dim = 256},
                   .tied = true},
                  arch);
  read_rope_by_layer_type(config, 1e6, 1e4, "rope_local_base_freq", arch);
  read_gemma(config, arch);
  arch.qk_norm = QueryKeyNorm::kHead;
  arch.logit_cap = read_cap(config, "final_logit_softcapping", 0.0);
  if (config.find({"attn_logit_softcapping"}) != nullptr) {
    config.problem("attn_logit_softcapping",
                   "is not supported: transformers computes gemma3 without it");
  }
  const int64_t pattern = config.size_or({"sliding_window_pattern"}, 6);
  const int64_t window = read_window(config, 4096);
  read_windows(config, window, arch, [&](int64_t layer) { return (layer + 1) % pattern != 0; });
  for (LayerSpec& layer : arch.layers) layer.local_rope = layer.window > 0;
}

void read_gpt2(ConfigReader& config, ArchSpec& arch) {
  read_sizes(config, {}, arch);
  arch.intermediate = config.size_or({"n_inner"}, 4 * arch.hidden);
  arch.max_positions = config.size_or({"n_positions", "max_position_embeddings", "n_ctx"}, 1024);
  arch.norm = NormKind::kLayer;
  arch.norm_eps = config.real({"layer_norm_epsilon"}, 0.0, 1.0).value_or(1e-5);
  arch.fused_qkv = arch.transposed_weights = true;
  arch.qkv_bias = arch.output_bias = arch.mlp_bias = true;
  arch.gated = false;
  read_activation(config, {"hidden_activation", "hidden_act", "activation_function"}, "gelu_new",
                  arch);
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
  // Null for a wrapper, whose text_config names a family that has a reader.
  void (*read)(ConfigReader&, ArchSpec&);
  NameTable names;
  ExpertAdapters experts = ExpertAdapters::kNone;
  // False for a text model that exists inside its wrapper alone.
  bool alone = true;
  // The wrapper computes final_logit_softcapping, too.
  bool capped_inside = false;
  // Its files may hold experts in MXFP4.
  bool mxfp4 = false;
};

const std::vector<Family>& families() {
  static const std::vector<Family> table = {
      {"llama", read_llama, llama_names("LlamaDecoderLayer")},
      {"mistral", read_mistral, llama_names("MistralDecoderLayer")},
      {"qwen2", read_qwen2, llama_names("Qwen2DecoderLayer")},
      {"qwen3", read_qwen3, llama_names("Qwen3DecoderLayer")},
      {"gemma2", read_gemma2, gemma_names("Gemma2DecoderLayer")},
      {"gemma3_text", read_gemma3_text, gemma_names("Gemma3DecoderLayer")},
      {"gemma4_text", read_gemma4_text, gemma4_names("Gemma4TextDecoderLayer"),
       ExpertAdapters::kNone, /*alone=*/true,
       /*capped_inside=*/true},
      {"phi3", read_phi3, phi_names("Phi3DecoderLayer")},
      {"olmo2", read_olmo2, olmo_names("Olmo2DecoderLayer")},
      {"olmo3", read_olmo3, olmo_names("Olmo3DecoderLayer")},
      {"smollm3", read_smollm3, llama_names("SmolLM3DecoderLayer")},
      {"glm4", read_glm4, glm_names("Glm4DecoderLayer")},
      {"hunyuan_v1_dense", read_hunyuan_dense, hunyuan_names("HunYuanDenseV1DecoderLayer")},
      {"ministral3", read_ministral3, llama_names("Ministral3DecoderLayer")},
      {"ministral", read_ministral, llama_names("MinistralDecoderLayer")},
      {"starcoder2", read_starcoder2, starcoder_names("Starcoder2DecoderLayer")},
      {"ernie4_5", read_ernie4_5, llama_names("Ernie4_5DecoderLayer")},
      {"granite", read_granite, llama_names("GraniteDecoderLayer")},
      {"seed_oss", read_seed_oss, llama_names("SeedOssDecoderLayer")},
      {"exaone4", read_exaone4, olmo_names("Exaone4DecoderLayer")},
      {"cohere", read_cohere, cohere_names("CohereDecoderLayer")},
      {"cohere2", read_cohere2, cohere_names("Cohere2DecoderLayer")},
      {"qwen3_moe", read_qwen3_moe, with_qwen_experts(llama_names("Qwen3MoeDecoderLayer")),
       ExpertAdapters::kLinear},
      {"qwen2_moe", read_qwen2_moe, with_qwen_experts(llama_names("Qwen2MoeDecoderLayer")),
       ExpertAdapters::kNamed},
      {"mixtral", read_mixtral, mixtral_names("MixtralDecoderLayer"), ExpertAdapters::kLinear},
      {"olmoe", read_olmoe, with_qwen_experts(llama_names("OlmoeDecoderLayer")),
       ExpertAdapters::kLinear},
      {"gpt_oss", read_gpt_oss, gpt_oss_names("GptOssDecoderLayer"), ExpertAdapters::kNamed,
       /*alone=*/true, /*capped_inside=*/false, /*mxfp4=*/true},
      {"qwen3_5_text", read_qwen3_5_text, qwen3_5_names("Qwen3_5DecoderLayer")},
      {"qwen3_5_moe_text", read_qwen3_5_moe_text,
       with_qwen_experts(qwen3_5_names("Qwen3_5MoeDecoderLayer"))},
      {"qwen3_next", read_qwen3_next, qwen3_next_names("Qwen3NextDecoderLayer"),
       ExpertAdapters::kLinear},
      {"glm4_moe", read_glm4_moe, with_corrected_experts(llama_names("Glm4MoeDecoderLayer")),
       ExpertAdapters::kLinear},
      {"deepseek_v3", read_deepseek_v3, deepseek_names("DeepseekV3DecoderLayer"),
       ExpertAdapters::kLinear},
      {"lfm2", read_lfm2, lfm2_names("Lfm2DecoderLayer")},
      {"nemotron_h", read_nemotron_h, nemotron_h_names("NemotronHBlock"), ExpertAdapters::kNamed},
      {"qwen3_5", nullptr, in_qwen3_5_wrapper(qwen3_5_names("Qwen3_5DecoderLayer"))},
      {"qwen3_5_moe", nullptr,
       in_qwen3_5_wrapper(with_qwen_experts(qwen3_5_names("Qwen3_5MoeDecoderLayer")))},
      {"gemma3", nullptr, in_wrapper(gemma_names("Gemma3DecoderLayer"))},
      {"gemma4", nullptr, in_gemma4_wrapper(gemma4_names("Gemma4TextDecoderLayer"))},
      {"mistral3", nullptr, in_wrapper(llama_names("MistralDecoderLayer"))},
      {"muse_glimmer_text", read_muse_glimmer_text,
       muse_glimmer_names("MuseGlimmerTextDecoderLayer"), ExpertAdapters::kNone, /*alone=*/false,
       /*capped_inside=*/true},
      {"muse_glimmer", nullptr,
       in_muse_glimmer_wrapper(muse_glimmer_names("MuseGlimmerTextDecoderLayer"))},
      {"gpt2", read_gpt2, gpt2_names("GPT2Block")},
  };
  return table;
}

const Family* find_family(std::string_view model_type) {
  for (const Family& family : families()) {
    if (family.model_type == model_type) return &family;
  }
  return nullptr;
}

// Files of families that normalise queries and keys may say so, although no family reads that.
void know_qk_norm(const ArchSpec& arch, ConfigReader& reader) {
  if (arch.qk_norm != QueryKeyNorm::kNone) reader.find({"qk_norm", "use_qk_norm", "qk_layernorm"});
}

// Loading makes the model's matrices of those in block-scaled fp8 or bitsandbytes' NF4.
void know_packed(const Json& config, ConfigReader& reader) {
  const auto declared = config.find("quantization_config");
  if (declared == config.end() || !declared->is_object()) return;
  const auto method = declared->find("quant_method");
  if (method == declared->end() || (*method != "fp8" && *method != "bitsandbytes")) return;
  reader.find({"quantization_config"});
}

// The ids that stand for other inputs than text, with their defaults, in wrappers that put another
// token's row in their place; the other wrappers read the ids' own rows where a text holds them.
struct Placeholder {
  std::string_view wrapper, key;
  int64_t otherwise;
};
constexpr Placeholder kPlaceholders[] = {{"gemma4", "image_token_id", 258880},
                                         {"gemma4", "video_token_id", 258884},
                                         {"gemma4", "audio_token_id", 258881},
                                         {"muse_glimmer", "image_token_id", 200092},
                                         {"muse_glimmer", "video_token_id", 200091}};

// transformers reads them as padding in Gemma 4, and as token 0 in Muse Glimmer. `arch` has what
// text_config says.
void read_placeholders(ConfigReader& wrapper, std::string_view model_type, ArchSpec& arch) {
  const int64_t row = model_type == "gemma4" ? arch.pad_token.value_or(0) : 0;
  for (const Placeholder& one : kPlaceholders) {
    if (one.wrapper != model_type) continue;
    const int64_t absent = wrapper.has(one.key) ? -1 : one.otherwise;  // null means none
    const int64_t id = wrapper.integer({one.key}, -1, kMostToken).value_or(absent);
    if (id >= 0 && id < arch.vocabulary && id != row) arch.read_as[id] = row;
  }
}

// Reads the text tower of a wrapper. The wrapper supplies token ids and dtype that text_config
// lacks.
void read_text_tower(ConfigReader& wrapper, std::string_view wrapper_type, ArchSpec& arch) {
  arch.origin = wrapper.path();
  const Json* text = wrapper.find({"text_config"});
  if (text == nullptr || !text->is_object()) {
    wrapper.problem("text_config", "is missing");
    return;
  }
  ConfigReader reader(*text, wrapper.path() + ": text_config");
  const std::string model_type = reader.text({"model_type"}).value_or("");
  const Family* family = find_family(model_type);
  if (family == nullptr || family->read == nullptr) {
    reader.problem("model_type", "= '" + model_type + "' is not supported inside a wrapper");
  } else {
    family->read(reader, arch);
    know_qk_norm(arch, reader);
    reader.finish_keys(arch);
    if (arch.logit_cap != 0.0 && !family->capped_inside) {
      reader.problem("final_logit_softcapping",
                     "is not supported inside a wrapper: transformers computes that without it");
    }
  }
  wrapper.take_problems(reader);
  read_placeholders(wrapper, wrapper_type, arch);
  ArchSpec outer;
  read_data_type(wrapper, outer);
  read_tokens(wrapper, outer);
  if (!arch.dtype) arch.dtype = outer.dtype;
  if (arch.eos_tokens.empty()) arch.eos_tokens = outer.eos_tokens;
  if (!arch.bos_token) arch.bos_token = outer.bos_token;
  if (!arch.pad_token) arch.pad_token = outer.pad_token;
  const auto tied = wrapper.boolean({"tie_word_embeddings"});
  arch.tied_by_config = tied.value_or(false);
  arch.tied_by_files = !tied;
}

}  // namespace

std::string supported_families() {
  std::string list;
  for (const Family& family : families()) {
    if (!family.alone) continue;
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

ExpertAdapters expert_adapters(std::string_view family) {
  const Family* row = find_family(family);
  return row == nullptr ? ExpertAdapters::kNone : row->experts;
}

std::vector<std::string> mxfp4_families() {
  std::vector<std::string> list;
  for (const Family& family : families()) {
    if (family.mxfp4) list.emplace_back(family.model_type);
  }
  return list;
}

ArchSpec read_arch_spec(const Json& config, const std::string& path) {
  ConfigReader reader(config, path);
  const auto model_type = reader.text({"model_type"});
  if (!model_type && !reader.has_problems()) reader.problem("model_type", "is missing");
  reader.finish();
  const Family* family = find_family(*model_type);
  if (family == nullptr || !family->alone) {
    throw ConfigError(path + ": model_type '" + *model_type +
                      "' is not supported; supported: " + supported_families());
  }
  ArchSpec arch;
  if (family->read != nullptr) {
    arch.origin = path;
    family->read(reader, arch);
  } else {
    read_text_tower(reader, *model_type, arch);
  }
  arch.family = *model_type;
  know_qk_norm(arch, reader);
  know_packed(config, reader);
  reader.finish_keys(arch);
  reader.finish();
  return arch;
}

}  // namespace longshore
