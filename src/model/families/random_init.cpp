#include "model/families/random_init.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include "base/errors.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/random.h"
#include "base/texts.h"
#include "model/families/families.h"

namespace longshore {
namespace {

// Maps bits to (0, 1): never 0, because its logarithm is infinite.
double to_unit(uint32_t bits) {
  return (static_cast<double>(bits) + 0.5) * 0x1p-32;
}

std::array<uint32_t, 4> four_bits(uint64_t block, PhiloxKey key) {
  return philox4x32({static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), 0, 0}, key);
}

// Returns four values between -1 and 1 from one call of the generator.
std::array<double, 4> four_uniforms(uint64_t block, PhiloxKey key) {
  const auto bits = four_bits(block, key);
  std::array<double, 4> values{};
  for (size_t i = 0; i < 4; ++i) values[i] = 2.0 * to_unit(bits[i]) - 1.0;
  return values;
}

// Returns four normal values, as two Box-Muller pairs, from one call of the generator.
std::array<double, 4> four_normals(uint64_t block, PhiloxKey key) {
  const auto bits = four_bits(block, key);
  std::array<double, 4> values{};
  for (size_t pair = 0; pair < 2; ++pair) {
    const double radius = std::sqrt(-2.0 * std::log(to_unit(bits[2 * pair])));
    const double angle = 2.0 * std::numbers::pi * to_unit(bits[2 * pair + 1]);
    values[2 * pair] = radius * std::cos(angle);
    values[2 * pair + 1] = radius * std::sin(angle);
  }
  return values;
}

// The sizes of one preset; everything else follows from the family.
struct Sizes {
  std::string_view family;
  int64_t hidden, intermediate, layers, heads, kv_heads, head_dim, positions;
  bool tied;
  int64_t sharing_layers = 0;   // of Gemma 4, whose layers then have their own inputs, too
  std::string_view kinds = "";  // of the layers, where the family's config has no rule for them
};

// The layers of Nemotron 3 Nano.
constexpr std::string_view kNanoLayers = "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME";
// The layers of Gemma 4 E2B and E4B: those that slide, and those that see everything.
constexpr std::string_view kE2bLayers = "SSSSFSSSSFSSSSFSSSSFSSSSFSSSSFSSSSF";
constexpr std::string_view kE4bLayers = "SSSSSFSSSSSFSSSSSFSSSSSFSSSSSFSSSSSFSSSSSF";

struct Row {
  InitPreset preset;
  Sizes sizes;
};

// Tiny presets are for tests and first tries, in seconds on any machine. Small ones learn something
// in minutes on two cores.
const std::vector<Row>& first_rows() {
  static const std::vector<Row> table = {
      {{"tiny-llama", "llama, 2 layers of 64; grouped heads"},
       {"llama", 64, 160, 2, 4, 2, 16, 1024, false}},
      {{"tiny-mistral", "mistral, 2 layers of 64; a sliding window of 64"},
       {"mistral", 64, 160, 2, 4, 2, 16, 1024, false}},
      {{"tiny-qwen2", "qwen2, 2 layers of 64; tied"}, {"qwen2", 64, 160, 2, 4, 2, 16, 1024, true}},
      {{"tiny-qwen3", "qwen3, 2 layers of 64; tied, head_dim 32"},
       {"qwen3", 64, 160, 2, 4, 2, 32, 1024, true}},
      {{"tiny-gemma2",
        "gemma2, 4 layers of 64; tied, caps, a sliding window of 64 in every second"},
       {"gemma2", 64, 160, 4, 4, 2, 16, 1024, true}},
      {{"tiny-gemma3", "gemma3_text, 6 layers of 64; tied, a sliding window of 64 in five"},
       {"gemma3_text", 64, 160, 6, 4, 2, 16, 1024, true}},
      {{"tiny-gemma4", "gemma4_text, 6 layers of 64; tied, a sliding window of 64 in five"},
       {"gemma4_text", 64, 160, 6, 4, 2, 16, 1024, true}},
      {{"tiny-phi3", "phi3, 2 layers of 64; fused matrices"},
       {"phi3", 64, 160, 2, 4, 2, 16, 1024, false}},
      {{"tiny-olmo2", "olmo2, 2 layers of 64; norms behind"},
       {"olmo2", 64, 160, 2, 4, 4, 16, 1024, false}},
      {{"tiny-olmo3", "olmo3, 4 layers of 64; a sliding window of 64 in three"},
       {"olmo3", 64, 160, 4, 4, 4, 16, 1024, false}},
      {{"tiny-smollm3", "smollm3, 4 layers of 64; one without positions, tied"},
       {"smollm3", 64, 160, 4, 4, 2, 16, 1024, true}},
      {{"tiny-granite", "granite, 2 layers of 64; four multipliers, tied"},
       {"granite", 64, 160, 2, 4, 2, 16, 1024, true}},
      {{"tiny-glm4", "glm4, 2 layers of 64; pairs of half a head turn"},
       {"glm4", 64, 160, 2, 4, 2, 16, 1024, false}},
      {{"tiny-hunyuan", "hunyuan_v1_dense, 2 layers of 64; tied"},
       {"hunyuan_v1_dense", 64, 160, 2, 4, 2, 16, 1024, true}},
      {{"tiny-ministral3", "ministral3, 2 layers of 64; queries grow from position 256 on"},
       {"ministral3", 64, 160, 2, 4, 2, 16, 1024, false}},
      {{"tiny-seed-oss", "seed_oss, 2 layers of 64; biases"},
       {"seed_oss", 64, 160, 2, 4, 2, 16, 1024, false}},
      {{"tiny-qwen3-moe", "qwen3_moe, 3 layers of 64, one of them dense; 8 experts, 2 for a token"},
       {"qwen3_moe", 64, 160, 3, 4, 2, 32, 1024, false}},
      {{"tiny-qwen2-moe", "qwen2_moe, 2 layers of 64; 8 experts, 2 for a token, one for all"},
       {"qwen2_moe", 64, 160, 2, 4, 4, 16, 1024, false}},
      {{"tiny-mixtral", "mixtral, 2 layers of 64; 8 experts, 2 for a token"},
       {"mixtral", 64, 128, 2, 4, 2, 16, 1024, false}},
      {{"tiny-olmoe", "olmoe, 2 layers of 64; 8 experts, 2 for a token"},
       {"olmoe", 64, 64, 2, 4, 4, 16, 1024, false}},
      {{"tiny-gpt-oss", "gpt_oss, 2 layers of 64; 8 experts, 2 for a token, sinks, a window of 64"},
       {"gpt_oss", 64, 128, 2, 4, 2, 16, 1024, false}},
      {{"tiny-qwen3.5", "qwen3_5_text, 4 layers of 64: three of gated DeltaNet, one of attention"},
       {"qwen3_5_text", 64, 160, 4, 4, 2, 32, 1024, true}},
      {{"tiny-qwen3.5-moe",
        "qwen3_5_moe_text, the same with 8 experts, 2 for a token, one for all"},
       {"qwen3_5_moe_text", 64, 160, 4, 4, 2, 32, 1024, true}},
      {{"tiny-qwen3-next", "qwen3_next, the same with fused matrices"},
       {"qwen3_next", 64, 160, 4, 4, 2, 32, 1024, false}},
      {{"tiny-glm4-moe", "glm4_moe, 3 layers of 64, one of them dense; 8 experts in 2 groups"},
       {"glm4_moe", 64, 160, 3, 4, 2, 32, 1024, false}},
      {{"tiny-deepseek-v3", "deepseek_v3, the same with latent attention"},
       {"deepseek_v3", 64, 160, 3, 4, 4, 16, 1024, false}},
      {{"tiny-deep", "llama, 96 layers of 64: many units, for small device caps"},
       {"llama", 64, 160, 96, 4, 2, 16, 1024, true}},
      {{"tiny-gpt2", "gpt2, 2 layers of 64; tied"}, {"gpt2", 64, 256, 2, 4, 4, 16, 1024, true}},
      {{"small-llama", "llama, 6 layers of 256, tied; about 6 M parameters with 4096 tokens"},
       {"llama", 256, 704, 6, 4, 2, 64, 2048, true}},
      {{"small-qwen3", "qwen3, 6 layers of 256, tied; about 6 M parameters with 4096 tokens"},
       {"qwen3", 256, 704, 6, 4, 2, 64, 2048, true}},
      {{"small-gpt2", "gpt2, 6 layers of 256; about 6 M parameters with 4096 tokens"},
       {"gpt2", 256, 1024, 6, 4, 4, 64, 1024, true}},
  };
  return table;
}

const std::vector<Row>& later_rows() {
  static const std::vector<Row> table = {
      {{"tiny-ministral", "ministral, 2 layers of 64; a sliding window of 64 in one"},
       {"ministral", 64, 160, 2, 4, 2, 16, 1024, false}},
      {{"tiny-gemma4-e2b",
        "gemma4_text, 6 layers of 64 with inputs of their own; the last 3 read keys of others"},
       {"gemma4_text", 64, 160, 6, 4, 1, 16, 1024, true, 3, "SFSSSF"}},
      {{"gemma-4-e2b", "gemma4_text, the text part of the published model: 17 GiB in fp32"},
       {"gemma4_text", 1536, 6144, std::ssize(kE2bLayers), 8, 1, 256, 131072, true, 20,
        kE2bLayers}},
      {{"gemma-4-e4b", "gemma4_text, the text part of the published model: 28 GiB in fp32"},
       {"gemma4_text", 2560, 10240, std::ssize(kE4bLayers), 8, 2, 256, 131072, true, 18,
        kE4bLayers}},
      {{"tiny-starcoder2", "starcoder2, 2 layers of 64; tied, layer norms, no gate, biases"},
       {"starcoder2", 64, 256, 2, 4, 2, 16, 1024, true}},
      {{"tiny-ernie4.5", "ernie4_5, 2 layers of 64; tied, neighbours turn"},
       {"ernie4_5", 64, 160, 2, 4, 2, 16, 1024, true}},
      {{"tiny-lfm2", "lfm2, 3 layers of 64: two gated convolutions, one of attention; tied"},
       {"lfm2", 64, 160, 3, 4, 2, 16, 1024, true}},
      {{"tiny-nemotron-h", "nemotron_h, 4 layers of 64: Mamba-2, an MLP, attention and an MLP"},
       {"nemotron_h", 64, 160, 4, 4, 2, 16, 1024, false, 0, "M-*-"}},
      {{"tiny-nemotron-3", "nemotron_h, the same with 8 experts in 2 groups for the MLP"},
       {"nemotron_h", 64, 160, 4, 4, 2, 16, 1024, false, 0, "ME*E"}},
      {{"nemotron-3-nano-30b-a3b", "nemotron_h, the sizes of the published model: 118 GiB in fp32"},
       {"nemotron_h", 2688, 1856, std::ssize(kNanoLayers), 32, 2, 128, 262144, false, 0,
        kNanoLayers}},
      {{"tiny-exaone4", "exaone4, 4 layers of 64; a sliding window of 64 in three, which rotate"},
       {"exaone4", 64, 160, 4, 4, 2, 16, 1024, true}},
      {{"tiny-cohere", "cohere, 2 layers of 64; tied, attention and MLP side by side"},
       {"cohere", 64, 160, 2, 4, 2, 16, 1024, true}},
      {{"tiny-cohere2",
        "cohere2, 4 layers of 64; tied, attention and MLP side by side, a window of 64 in three"},
       {"cohere2", 64, 160, 4, 4, 2, 16, 1024, true}},
  };
  return table;
}

const std::vector<Row>& rows() {
  static const std::vector<Row> table = [] {
    std::vector<Row> list = first_rows();
    list.insert(list.end(), later_rows().begin(), later_rows().end());
    return list;
  }();
  return table;
}

// "LlamaDecoderLayer" is the block class of "LlamaForCausalLM", "Gemma4TextDecoderLayer" that of
// "Gemma4ForCausalLM".
std::string class_name(std::string_view family) {
  if (family == "gpt2") return "GPT2LMHeadModel";
  std::string_view name = name_table(family).block_class;
  for (const std::string_view block : {"DecoderLayer", "Block"}) {
    if (name.ends_with(block)) name.remove_suffix(block.size());
  }
  if (name.ends_with("Text")) name.remove_suffix(4);
  return std::string(name) + "ForCausalLM";
}

Json gpt2_config(const Sizes& sizes) {
  Json config;
  config["activation_function"] = "gelu_new";
  config["attn_pdrop"] = config["embd_pdrop"] = config["resid_pdrop"] = 0.0;
  config["layer_norm_epsilon"] = 1e-5;
  config["n_embd"] = sizes.hidden;
  config["n_head"] = sizes.heads;
  config["n_inner"] = sizes.intermediate;
  config["n_layer"] = sizes.layers;
  config["n_positions"] = sizes.positions;
  return config;
}

void add_experts(const Sizes& sizes, Json& config) {
  const bool hybrid = sizes.family == "qwen3_5_moe_text" || sizes.family == "qwen3_next";
  const bool qwen = sizes.family == "qwen3_moe" || sizes.family == "qwen2_moe" || hybrid;
  const bool local = sizes.family == "mixtral" || sizes.family == "gpt_oss";
  const bool corrected = sizes.family == "glm4_moe" || sizes.family == "deepseek_v3";
  if (!qwen && !local && !corrected && sizes.family != "olmoe") return;
  config[local ? "num_local_experts" : corrected ? "n_routed_experts" : "num_experts"] = 8;
  config["num_experts_per_tok"] = 2;
  config["output_router_logits"] = false;
  if (qwen) {
    config["moe_intermediate_size"] = sizes.intermediate / 5;
  }
  if (corrected) {
    config.update({{"moe_intermediate_size", sizes.intermediate / 5},
                   {"n_shared_experts", 1},
                   {"first_k_dense_replace", 1},
                   {"n_group", 2},
                   {"topk_group", 1},
                   {"norm_topk_prob", true},
                   {"routed_scaling_factor", 1.5}});
  }
  // Qwen3.5 has no choice in these.
  if (qwen && sizes.family != "qwen3_5_moe_text") {
    config["norm_topk_prob"] = sizes.family != "qwen2_moe";
    config["decoder_sparse_step"] = 1;
    config["mlp_only_layers"] = Json::array();
  }
  if (sizes.family == "qwen3_moe") config["mlp_only_layers"] = {1};
  if (sizes.family == "qwen2_moe" || hybrid)
    config["shared_expert_intermediate_size"] = sizes.intermediate;
  if (sizes.family != "gpt_oss") return;
  config["attention_bias"] = true;
  config["sliding_window"] = 64;
  config["swiglu_limit"] = 7.0;
  config["rope_parameters"].update({{"rope_type", "yarn"},
                                    {"rope_theta", 150000.0},
                                    {"factor", 4.0},
                                    {"truncate", false},
                                    {"original_max_position_embeddings", 256}});
}

void add_gemma4(const Sizes& sizes, const Json& rope, Json& config) {
  config.erase("hidden_act");
  config.update({{"hidden_activation", "gelu_pytorch_tanh"},
                 {"sliding_window", 64},
                 {"hidden_size_per_layer_input", 0},
                 {"global_head_dim", 2 * sizes.head_dim},
                 {"num_global_key_value_heads", 1},
                 {"attention_k_eq_v", true},
                 {"final_logit_softcapping", 30.0}});
  if (sizes.sharing_layers > 0) {
    config.erase("num_global_key_value_heads");
    config.update({{"attention_k_eq_v", false},
                   {"hidden_size_per_layer_input", sizes.head_dim},
                   {"layer_types", Json::array()},
                   {"num_kv_shared_layers", sizes.sharing_layers},
                   {"use_double_wide_mlp", sizes.kinds != kE4bLayers}});
    for (const char kind : sizes.kinds) {
      config["layer_types"].push_back(kind == 'F' ? "full_attention" : "sliding_attention");
    }
    if (sizes.positions > 1024) config["sliding_window"] = 512;
  }
  const Json proportional = {
      {"rope_type", "proportional"}, {"partial_rotary_factor", 0.25}, {"rope_theta", 1e6}};
  config["rope_parameters"] = {{"sliding_attention", rope}, {"full_attention", proportional}};
}

// Adds what the families of later_rows() write otherwise.
void add_windows_and_norms(const Sizes& sizes, Json& config) {
  const bool slides = sizes.family == "exaone4" || sizes.family == "cohere2";
  if (slides || sizes.family == "ministral") config["sliding_window"] = 64;
  if (sizes.family == "ministral") {
    config["layer_types"] = {"sliding_attention", "full_attention"};
  }
  if (sizes.family == "cohere" || sizes.family == "cohere2") {
    config.erase("rms_norm_eps");
    config["layer_norm_eps"] = 1e-5;
    config["logit_scale"] = 0.25;
  }
  if (sizes.family == "starcoder2") {
    config.erase("rms_norm_eps");
    config["norm_epsilon"] = 1e-5;
    config["hidden_act"] = "gelu_pytorch_tanh";
    config["use_bias"] = true;
  }
}

// Names keys as LFM2 does. The width of the MLP is the one that is given.
void add_lfm2(Json& config) {
  for (const char* key : {"hidden_act", "head_dim", "rms_norm_eps"}) config.erase(key);
  config.update({{"norm_eps", 1e-5},
                 {"block_auto_adjust_ff_dim", false},
                 {"conv_L_cache", 3},
                 {"conv_bias", false},
                 {"layer_types", {"conv", "full_attention", "conv"}}});
}

void add_nemotron_h(const Sizes& sizes, Json& config) {
  for (const char* key : {"hidden_act", "rms_norm_eps", "rope_parameters"}) config.erase(key);
  config.update({{"layer_norm_epsilon", 1e-5},
                 {"hybrid_override_pattern", sizes.kinds},
                 {"mlp_hidden_act", "relu2"},
                 {"mamba_num_heads", 2 * sizes.heads},
                 {"mamba_head_dim", sizes.head_dim},
                 {"n_groups", sizes.kv_heads},
                 {"ssm_state_size", sizes.head_dim},
                 {"conv_kernel", 4}});
  if (sizes.kinds.find('E') == std::string_view::npos) return;
  config.update({{"n_routed_experts", 8},
                 {"num_experts_per_tok", 2},
                 {"moe_intermediate_size", sizes.intermediate / 5},
                 {"moe_shared_expert_intermediate_size", sizes.intermediate},
                 {"n_group", 2},
                 {"topk_group", 1},
                 {"norm_topk_prob", true},
                 {"routed_scaling_factor", 2.5}});
  if (sizes.kinds != kNanoLayers) return;
  config.update({{"mamba_head_dim", 64},
                 {"n_groups", 8},
                 {"n_routed_experts", 128},
                 {"num_experts_per_tok", 6},
                 {"moe_intermediate_size", sizes.intermediate},
                 {"moe_shared_expert_intermediate_size", 2 * sizes.intermediate},
                 {"n_group", 1}});
}

Json llama_like_config(const Sizes& sizes) {
  Json config;
  config["hidden_act"] = "silu";
  config["hidden_size"] = sizes.hidden;
  config["intermediate_size"] = sizes.intermediate;
  config["num_hidden_layers"] = sizes.layers;
  config["num_attention_heads"] = sizes.heads;
  config["num_key_value_heads"] = sizes.kv_heads;
  const bool derived = sizes.family == "qwen2" || sizes.family == "phi3" ||
                       sizes.family == "qwen2_moe" || sizes.family == "olmoe" ||
                       sizes.family.starts_with("cohere") || sizes.family == "starcoder2";
  if (!derived) config["head_dim"] = sizes.head_dim;
  config["max_position_embeddings"] = sizes.positions;
  config["rms_norm_eps"] = 1e-6;
  const Json rope = {{"rope_type", "default"}, {"rope_theta", 10000.0}};
  config["rope_parameters"] = rope;
  const bool slides = sizes.family == "gemma3_text" || sizes.family == "olmo3";
  const bool gemma = sizes.family == "gemma2" || sizes.family == "gemma3_text";
  if (sizes.family == "mistral" || slides || gemma) config["sliding_window"] = 64;
  if (slides) config["rope_parameters"] = {{"sliding_attention", rope}, {"full_attention", rope}};
  if (sizes.family == "gemma2") {
    config["attn_logit_softcapping"] = 50.0;
    config["final_logit_softcapping"] = 30.0;
  }
  if (gemma) {
    config.erase("hidden_act");
    config["hidden_activation"] = "gelu_pytorch_tanh";
    config["query_pre_attn_scalar"] = sizes.head_dim;
  }
  if (sizes.family == "ministral3") {
    config["rope_parameters"].update({{"rope_type", "yarn"},
                                      {"factor", 4.0},
                                      {"llama_4_scaling_beta", 0.1},
                                      {"original_max_position_embeddings", 256}});
  }
  if (sizes.family == "granite") {
    config["embedding_multiplier"] = 12.0;
    config["residual_multiplier"] = 0.22;
    config["attention_multiplier"] = 1.0 / static_cast<double>(sizes.head_dim);
    config["logits_scaling"] = 8.0;
  }
  if (sizes.family == "gemma4_text") add_gemma4(sizes, rope, config);
  if (sizes.family.starts_with("qwen3_5") || sizes.family == "qwen3_next") {
    config["rope_parameters"]["partial_rotary_factor"] = 0.25;
    config["linear_num_key_heads"] = sizes.kv_heads;
    config["linear_num_value_heads"] = sizes.heads;
    config["linear_key_head_dim"] = config["linear_value_head_dim"] = sizes.head_dim / 2;
    config["linear_conv_kernel_dim"] = 4;
  }
  if (sizes.family == "deepseek_v3") {
    config.erase("head_dim");
    config["q_lora_rank"] = sizes.hidden / 2;
    config["kv_lora_rank"] = config["qk_nope_head_dim"] = config["v_head_dim"] = sizes.head_dim;
    config["qk_rope_head_dim"] = sizes.head_dim / 2;
  }
  add_windows_and_norms(sizes, config);
  if (sizes.family == "lfm2") add_lfm2(config);
  if (sizes.family == "nemotron_h") add_nemotron_h(sizes, config);
  add_experts(sizes, config);
  return config;
}

Json token_or_null(int64_t token) {
  return token < 0 ? Json(nullptr) : Json(token);
}

}  // namespace

void fill_random(std::string_view name, const InitSpec& init, uint64_t seed, int64_t element_begin,
                 std::span<float> values) {
  LONGSHORE_CHECK(element_begin >= 0) << element_begin;
  if (init.kind == InitSpec::Kind::kZeros || init.kind == InitSpec::Kind::kOnes) {
    std::fill(values.begin(), values.end(), init.kind == InitSpec::Kind::kOnes ? 1.0f : 0.0f);
    return;
  }
  const uint64_t mixed = hash64(name) ^ (seed * 0x9E3779B97F4A7C15u);
  const PhiloxKey key{static_cast<uint32_t>(mixed), static_cast<uint32_t>(mixed >> 32)};
  const bool logarithm = init.kind == InitSpec::Kind::kLogUniform;
  const bool uniform = logarithm || init.kind == InitSpec::Kind::kUniform;
  const double factor = uniform ? init.bound : init.standard_deviation;
  const double middle = (init.bound + init.least) / 2.0, reach = (init.bound - init.least) / 2.0;
  std::array<double, 4> four{};
  for (size_t i = 0; i < values.size(); ++i) {
    const auto element = static_cast<uint64_t>(element_begin) + i;
    if (i == 0 || element % 4 == 0) {
      four = uniform ? four_uniforms(element / 4, key) : four_normals(element / 4, key);
    }
    const double value = four[element % 4];
    values[i] = static_cast<float>(logarithm ? std::log(middle + reach * value) : factor * value);
  }
}

const std::vector<InitPreset>& init_presets() {
  static const std::vector<InitPreset> presets = [] {
    std::vector<InitPreset> list;
    for (const Row& row : rows()) list.push_back(row.preset);
    return list;
  }();
  return presets;
}

std::string init_preset_config(std::string_view name, const InitPresetOptions& options) {
  LONGSHORE_CHECK(options.vocabulary >= 1) << options.vocabulary;
  std::vector<std::string> names;
  for (const Row& row : rows()) {
    names.emplace_back(row.preset.name);
    if (row.preset.name != name) continue;
    Json config;
    config["architectures"] = {class_name(row.sizes.family)};
    config["model_type"] = row.sizes.family;
    config["dtype"] = "float32";
    config["vocab_size"] = options.vocabulary;
    config["bos_token_id"] = token_or_null(options.bos_token);
    config["eos_token_id"] = token_or_null(options.eos_token);
    config["pad_token_id"] = token_or_null(options.pad_token);
    config["initializer_range"] = 0.02;
    config["tie_word_embeddings"] = row.sizes.tied;
    config.update(row.sizes.family == "gpt2" ? gpt2_config(row.sizes)
                                             : llama_like_config(row.sizes));
    if (row.sizes.sharing_layers > 0) config["vocab_size_per_layer_input"] = options.vocabulary;
    return config.dump(2) + "\n";
  }
  const std::string nearest = nearest_name(name, names);
  throw ConfigError("unknown preset '" + std::string(name) + "'" +
                    (nearest.empty() ? "" : ", did you mean '" + nearest + "'?") +
                    " (there are: " + joined(names, ", ") + ")");
}

}  // namespace longshore
