#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "kernels/causal_convolution.h"
#include "model/families/config_decoder.h"
#include "model/families/family_rows.h"

namespace longshore {
namespace {

constexpr int64_t kMostExperts = 65536;

struct ExpertDefaults {
  int64_t experts = 0, top_k = 0;
  bool renormalise = false;
  double balance = 0.001;
};

// Reads the keys of all families with experts, in either spelling, and makes every layer sparse.
void read_experts(ConfigReader& config, const ExpertDefaults& defaults, ArchSpec& arch) {
  MoeSpec& moe = arch.moe;
  moe.experts =
      config.integer({"num_experts", "num_local_experts", "n_routed_experts"}, 1, kMostExperts)
          .value_or(defaults.experts);
  moe.top_k = config.integer({"num_experts_per_tok", "experts_per_token"}, 1, kMostExperts)
                  .value_or(defaults.top_k);
  if (moe.top_k > moe.experts) {
    config.problem("num_experts_per_tok", "= " + std::to_string(moe.top_k) + " is more than the " +
                                              std::to_string(moe.experts) + " experts");
    moe.top_k = moe.experts;
  }
  moe.width = arch.intermediate;
  moe.renormalise = defaults.renormalise;
  for (LayerSpec& layer : arch.layers) layer.sparse = true;
  const double balance =
      config.real({"router_aux_loss_coef"}, 0.0, kMostReal).value_or(defaults.balance);
  if (config.boolean({"output_router_logits"}).value_or(false)) moe.balance = balance;
}

// Reads Qwen's keys, including the list of dense layers.
void read_qwen_experts(ConfigReader& config, const ExpertDefaults& defaults, int64_t width,
                       ArchSpec& arch) {
  read_experts(config, defaults, arch);
  arch.moe.width = config.size_or({"moe_intermediate_size"}, width);
  arch.moe.renormalise = config.boolean({"norm_topk_prob"}).value_or(defaults.renormalise);
  const int64_t step = config.size_or({"decoder_sparse_step"}, 1);
  const std::vector<int64_t> listed = config.integers({"mlp_only_layers"}, 0, kMostToken);
  const std::set<int64_t> dense(listed.begin(), listed.end());
  for (int64_t i = 0; i < arch.layer_count(); ++i) {
    arch.layers[static_cast<size_t>(i)].sparse = !dense.contains(i) && (i + 1) % step == 0;
  }
}

void check_groups(ConfigReader& config, const MoeSpec& moe) {
  const int64_t each = moe.experts / moe.groups;
  if (moe.experts % moe.groups != 0 || each < 2) {
    config.problem("n_group", "= " + std::to_string(moe.groups) + " does not split " +
                                  std::to_string(moe.experts) +
                                  " experts into equal groups of 2 or more");
  } else if (moe.kept_groups > moe.groups || moe.top_k > moe.kept_groups * each) {
    config.problem("topk_group", "= " + std::to_string(moe.kept_groups) + " does not fit " +
                                     std::to_string(moe.groups) + " groups of " +
                                     std::to_string(each) + " experts and " +
                                     std::to_string(moe.top_k) + " for a token");
  }
}

// Reads which layers are gated DeltaNet, and its sizes.
void read_delta(ConfigReader& config, ArchSpec& arch) {
  const int64_t interval = config.size_or({"full_attention_interval"}, 4);
  const auto linear = read_layer_types(config, arch, "linear_attention",
                                       [&](int64_t layer) { return (layer + 1) % interval != 0; });
  if (!linear) return;
  for (size_t i = 0; i < arch.layers.size(); ++i) {
    if ((*linear)[i]) arch.layers[i].mixer = MixerKind::kDelta;
  }
  DeltaSpec& delta = arch.delta;
  const auto size = [&config](std::string_view key, int64_t otherwise) {
    return config.integer({key}, 1, 65536).value_or(otherwise);
  };
  delta.key_heads = size("linear_num_key_heads", 16);
  delta.value_heads = size("linear_num_value_heads", 32);
  delta.key_dim = size("linear_key_head_dim", 128);
  delta.value_dim = size("linear_value_head_dim", 128);
  delta.taps = config.integer({"linear_conv_kernel_dim"}, 1, kernels::kMostTaps).value_or(4);
  if (delta.value_heads % delta.key_heads != 0) {
    config.problem("linear_num_value_heads", "= " + std::to_string(delta.value_heads) +
                                                 " is not a multiple of linear_num_key_heads = " +
                                                 std::to_string(delta.key_heads));
  }
  if (delta.mixed_width() > kMostToken) {
    config.problem("linear_key_head_dim", "is too large for its heads");
  }
}

// Reads what Qwen3-Next and Qwen3.5 share: gated DeltaNet in most layers, attention with a gate in
// others.
void read_qwen_hybrid(ConfigReader& config, const LlamaDefaults& defaults, ArchSpec& arch) {
  read_llama_like(config, defaults, arch);
  read_rope(config, {.share = 0.25, .partial = true}, arch);
  arch.norm = NormKind::kRmsOffset;
  arch.qk_norm = QueryKeyNorm::kHead;
  arch.output_gate = true;
  arch.qkv_bias = config.boolean({"attention_bias"}).value_or(false);
  arch.output_bias = arch.qkv_bias;
  if (!config.boolean({"attn_output_gate"}).value_or(true)) {
    config.problem("attn_output_gate", "= false is not supported");
  }
  if (arch.activation != Activation::kSilu) {
    config.problem("hidden_act", "other than silu is not supported with gated DeltaNet");
  }
  read_delta(config, arch);
}

}  // namespace

void read_corrected_experts(ConfigReader& config, const CorrectedDefaults& defaults,
                            ArchSpec& arch) {
  read_experts(config, {.experts = defaults.experts, .top_k = defaults.top_k}, arch);
  MoeSpec& moe = arch.moe;
  moe.balance = 0.0;
  moe.scores = RouterScores::kSigmoid;
  moe.correction = true;
  moe.rounded_weights = moe.shared_switch = false;
  moe.renormalise = config.boolean({"norm_topk_prob"}).value_or(true);
  moe.weight_scale =
      config.real({"routed_scaling_factor"}, 1e-6, kMostReal).value_or(defaults.weight_scale);
  moe.width = config.size_or({"moe_intermediate_size"}, defaults.width);
  moe.shared_width = moe.width * config.integer({"n_shared_experts"}, 0, kMostExperts).value_or(1);
  if (moe.shared_width > kMostToken) config.problem("n_shared_experts", "is too large");
  moe.groups = config.size_or({"n_group"}, defaults.groups);
  moe.kept_groups = config.size_or({"topk_group"}, defaults.kept_groups);
  check_groups(config, moe);
  const int64_t dense =
      config.integer({"first_k_dense_replace"}, 0, kMostToken).value_or(defaults.dense);
  for (int64_t i = 0; i < arch.layer_count(); ++i) {
    arch.layers[static_cast<size_t>(i)].sparse = i >= dense;
  }
  for (const auto& [key, only] :
       {std::pair<std::string_view, std::string_view>{"scoring_func", "sigmoid"},
        {"topk_method", "noaux_tc"}}) {
    const std::string given = config.text({key}).value_or(std::string(only));
    if (given != only) config.problem(key, "= '" + given + "' is not supported");
  }
  if (config.size_or({"moe_layer_freq"}, 1) != 1) {
    config.problem("moe_layer_freq", "other than 1 is not supported");
  }
}

void read_qwen3_moe(ConfigReader& config, ArchSpec& arch) {
  read_llama_like(config, {.positions = 32768, .sizes = {.heads = 32, .kv_heads = 4}}, arch);
  read_rope(config, {}, arch);
  arch.qk_norm = QueryKeyNorm::kHead;
  arch.qkv_bias = arch.output_bias = config.boolean({"attention_bias"}).value_or(false);
  if (config.boolean({"use_sliding_window"}).value_or(false)) {
    const int64_t window = read_window(config, 4096);
    for (LayerSpec& layer : arch.layers) layer.window = window;
  }
  read_qwen_experts(config, {.experts = 128, .top_k = 8}, 768, arch);
}

// Qwen2-MoE has one more expert, which serves every token.
void read_qwen2_moe(ConfigReader& config, ArchSpec& arch) {
  read_llama_like(config, {.positions = 32768, .sizes = {.heads = 16, .kv_heads = 16}}, arch);
  read_rope(config, {}, arch);
  arch.qkv_bias = config.boolean({"qkv_bias"}).value_or(true);
  const bool use = config.boolean({"use_sliding_window"}).value_or(false);
  // transformers writes a window of 0 where the switch is off.
  const int64_t window = use ? read_window(config, 4096) : 0;
  const int64_t most = config.integer({"max_window_layers"}, 0, kMostToken).value_or(28);
  read_windows(config, window, arch,
               [&](int64_t layer) { return window > 0 && layer % 2 == 0 && layer < most; });
  read_qwen_experts(config, {.experts = 60, .top_k = 4}, 1408, arch);
  arch.moe.shared_width = config.size_or({"shared_expert_intermediate_size"}, 5632);
}

void read_mixtral(ConfigReader& config, ArchSpec& arch) {
  read_llama_like(
      config, {.positions = 131072, .sizes = {.heads = 32, .kv_heads = 8}, .norm_eps = 1e-5}, arch);
  read_rope(config, {.theta = 1e6}, arch);
  read_window_of_all(config, 0, arch);
  read_experts(config, {.experts = 8, .top_k = 2, .renormalise = true}, arch);
  arch.moe.rounded_weights = false;
  if (config.real({"router_jitter_noise"}, 0.0, kMostReal).value_or(0.0) != 0.0) {
    config.problem("router_jitter_noise", "other than 0 is not supported");
  }
}

// OLMoE normalises queries and keys over all heads, and may clip them and the values.
void read_olmoe(ConfigReader& config, ArchSpec& arch) {
  read_llama_like(config, {.positions = 4096, .sizes = {.heads = 16}, .norm_eps = 1e-5}, arch);
  read_rope(config, {}, arch);
  arch.qkv_bias = arch.output_bias = config.boolean({"attention_bias"}).value_or(false);
  arch.qk_norm = QueryKeyNorm::kWidth;
  arch.qkv_clip = config.real({"clip_qkv"}, 1e-6, kMostReal).value_or(0.0);
  read_experts(config, {.experts = 64, .top_k = 8, .balance = 0.01}, arch);
  arch.moe.renormalise = config.boolean({"norm_topk_prob"}).value_or(false);
}

// GPT-OSS has sinks, biases, windows in every second layer and a softmax over the chosen experts.
void read_gpt_oss(ConfigReader& config, ArchSpec& arch) {
  read_llama_like(config,
                  {.positions = 131072,
                   .sizes = {.heads = 64, .kv_heads = 8, .head_dim = 64},
                   .norm_eps = 1e-5},
                  arch);
  read_rope(config, {.theta = 150000.0}, arch);
  if (config.find({"rope_scaling", "rope_parameters"}) == nullptr) {
    arch.rope.scaling = RopeSpec::Scaling::kYarn;
    arch.rope.factor = 32.0;
    arch.rope.attention_factor = 0.1 * std::log(arch.rope.factor) + 1.0;
    arch.rope.original_max_positions = 4096;
    arch.rope.whole_dimensions = false;
  }
  read_biases(config, true, arch);
  arch.norm = NormKind::kRmsWide;
  arch.sinks = true;
  const int64_t window = read_window(config, 128);
  read_windows(config, window, arch, [](int64_t layer) { return layer % 2 == 0; });
  read_experts(config, {.experts = 128, .top_k = 4}, arch);
  MoeSpec& moe = arch.moe;
  moe.scores = RouterScores::kSoftmaxOfChosen;
  moe.router_bias = moe.expert_bias = true;
  moe.fused = moe.transposed = moe.interleaved = true;
  moe.clamp = config.real({"swiglu_limit"}, 1e-6, kMostReal).value_or(7.0);
  moe.gate_gain = config.real({"swiglu_alpha"}, 1e-6, kMostReal).value_or(1.702);
  // Loading converts MXFP4 tensors of the files into the model's tensors.
  const Json* quantised = config.find({"quantization_config"});
  if (quantised != nullptr && quantised->is_object() &&
      quantised->value("quant_method", std::string()) != "mxfp4") {
    config.problem("quantization_config", "is supported with quant_method = 'mxfp4' only");
  }
}

// Reads the text model of Qwen3.5.
void read_qwen3_5_text(ConfigReader& config, ArchSpec& arch) {
  read_qwen_hybrid(config,
                   {.positions = 32768,
                    .sizes = {.vocabulary = 248320, .heads = 16, .kv_heads = 4, .head_dim = 256}},
                   arch);
}

// In Qwen3.5 with experts every layer is sparse.
void read_qwen3_5_moe_text(ConfigReader& config, ArchSpec& arch) {
  read_qwen_hybrid(config,
                   {.positions = 32768,
                    .sizes = {.vocabulary = 248320, .heads = 16, .kv_heads = 2, .head_dim = 256},
                    .intermediate = 512},
                   arch);
  read_experts(config, {.experts = 256, .top_k = 8, .renormalise = true}, arch);
  arch.moe.width = config.size_or({"moe_intermediate_size"}, 512);
  arch.moe.shared_width = config.size_or({"shared_expert_intermediate_size"}, 512);
}

void read_qwen3_next(ConfigReader& config, ArchSpec& arch) {
  read_qwen_hybrid(config,
                   {.positions = 32768,
                    .sizes = {.vocabulary = 151936, .heads = 16, .kv_heads = 2, .head_dim = 256},
                    .intermediate = 5632},
                   arch);
  arch.delta.fused = true;
  read_qwen_experts(config, {.experts = 512, .top_k = 10, .renormalise = true}, 512, arch);
  arch.moe.shared_width = config.size_or({"shared_expert_intermediate_size"}, 512);
}

void read_glm4_moe(ConfigReader& config, ArchSpec& arch) {
  read_llama_like(config,
                  {.positions = 131072,
                   .sizes = {.vocabulary = 151552, .heads = 96, .kv_heads = 8},
                   .norm_eps = 1e-5,
                   .intermediate = 10944},
                  arch);
  read_rope(config, {.share = 0.5, .partial = true}, arch);
  arch.qkv_bias = config.boolean({"attention_bias"}).value_or(false);
  if (config.boolean({"use_qk_norm"}).value_or(false)) arch.qk_norm = QueryKeyNorm::kHead;
  read_corrected_experts(config, {.experts = 128, .top_k = 8, .width = 1408, .dense = 1}, arch);
}

// Returns the factor of attention's scale that yarn asks for.
double latent_scale_factor(ConfigReader& config, const RopeSpec& rope) {
  const Json* object = config.find({"rope_scaling", "rope_parameters"});
  if (rope.scaling == RopeSpec::Scaling::kNone || object == nullptr) return 1.0;
  ConfigReader inner(*object, config.path() + ": rope_parameters");
  const double all = inner.real({"mscale_all_dim"}, 0.0, kMostReal).value_or(0.0);
  config.take_problems(inner);
  if (all == 0.0 || rope.factor <= 1.0) return 1.0;
  const double m = 0.1 * all * std::log(rope.factor) + 1.0;
  return m * m;
}

void read_deepseek_v3(ConfigReader& config, ArchSpec& arch) {
  read_llama_like(config,
                  {.positions = 4096,
                   .sizes = {.vocabulary = 129280, .heads = 128, .kv_heads = 128, .head_dim = 64},
                   .intermediate = 18432},
                  arch);
  arch.kv_heads = arch.heads;  // the key means nothing here
  constexpr int64_t kMostWidth = int64_t{1} << 20;
  const auto size = [&config](std::string_view key, int64_t otherwise) {
    return config.integer({key}, 1, kMostWidth).value_or(otherwise);
  };
  LatentSpec& latent = arch.latent;
  // A query rank of null means queries without a latent.
  latent.query_rank =
      config.integer({"q_lora_rank"}, 1, kMostWidth).value_or(config.has("q_lora_rank") ? 0 : 1536);
  latent.rank = size("kv_lora_rank", 512);
  latent.plain_dim = size("qk_nope_head_dim", 128);
  latent.rope_dim = size("qk_rope_head_dim", 64);
  latent.value_dim = size("v_head_dim", 128);
  arch.head_dim = latent.rope_dim;
  read_rope(config, {}, arch);
  arch.rope.pairs = config.boolean({"rope_interleave"}).value_or(true);
  // Keys and values are padded to one width.
  arch.head_dim = std::max(latent.key_dim(), latent.value_dim);
  const double scale =
      latent_scale_factor(config, arch.rope) / std::sqrt(static_cast<double>(latent.key_dim()));
  for (LayerSpec& layer : arch.layers) {
    layer.mixer = MixerKind::kLatent;
    layer.attention_scale = scale;
  }
  arch.qkv_bias = arch.output_bias = config.boolean({"attention_bias"}).value_or(false);
  read_corrected_experts(config,
                         {.experts = 256,
                          .top_k = 8,
                          .width = 2048,
                          .dense = 3,
                          .groups = 8,
                          .kept_groups = 4,
                          .weight_scale = 2.5},
                         arch);
}

}  // namespace longshore
