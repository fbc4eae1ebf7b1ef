// Reading config.json: spellings, defaults and refusals.
#include "model/families/families.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/errors.h"
#include "model/parameters/model_spec.h"
#include "tests/model/configs.h"

namespace longshore {
namespace {

Json gpt2() {
  return Json::parse(R"({"model_type": "gpt2", "vocab_size": 100, "n_embd": 64, "n_layer": 2,
    "n_head": 4})");
}

// Keys that are absent take the family's defaults.
TEST(Families, AbsentKeysTakeTheFamilysDefaults) {
  const ArchSpec arch = read_arch_spec(llama(), "config.json");
  EXPECT_EQ(arch.kv_heads, 4);
  EXPECT_EQ(arch.head_dim, 16);
  EXPECT_EQ(arch.rope.theta, 10000.0);
  EXPECT_FALSE(arch.tied_by_config);
  EXPECT_EQ(arch.layers[0].window, 0);
  EXPECT_DOUBLE_EQ(arch.layers[0].attention_scale, 0.25);
  const ArchSpec learned = read_arch_spec(gpt2(), "config.json");
  EXPECT_EQ(learned.intermediate, 256);
  EXPECT_EQ(learned.max_positions, 1024);
  EXPECT_TRUE(learned.tied_by_config);
  EXPECT_EQ(learned.norm_eps, 1e-5);
  Json qwen3 = with(llama(), R"({"model_type": "qwen3"})");
  EXPECT_EQ(read_arch_spec(qwen3, "config.json").head_dim, 128);
  Json mistral = with(llama(), R"({"model_type": "mistral"})");
  EXPECT_EQ(read_arch_spec(mistral, "config.json").layers[1].window, 4096);
  mistral["sliding_window"] = nullptr;
  EXPECT_EQ(read_arch_spec(mistral, "config.json").layers[1].window, 0);
}

// Old and new spellings of the rotary embedding mean the same.
TEST(Families, OldAndNewSpellingsOfRopeMeanTheSame) {
  const ArchSpec old = read_arch_spec(
      with(llama(), R"({"rope_theta": 5e5, "torch_dtype": "bfloat16", "rope_scaling": {
        "type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192}})"),
      "config.json");
  const ArchSpec now = read_arch_spec(
      with(llama(), R"({"dtype": "bfloat16", "rope_parameters": {"rope_theta": 500000,
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192}})"),
      "config.json");
  for (const ArchSpec& arch : {old, now}) {
    EXPECT_EQ(arch.rope.scaling, RopeSpec::Scaling::kLlama3);
    EXPECT_EQ(arch.rope.theta, 500000.0);
    EXPECT_EQ(arch.rope.factor, 8.0);
    EXPECT_EQ(arch.rope.low_freq_factor, 1.0);
    EXPECT_EQ(arch.rope.high_freq_factor, 4.0);
    EXPECT_EQ(arch.rope.original_max_positions, 8192);
    EXPECT_EQ(arch.dtype, DType::kBF16);
  }
}

// Qwen uses a sliding window from max_window_layers on, if use_sliding_window is set.
TEST(Families, QwenSlidesFromMaxWindowLayersOnWhenItSlidesAtAll) {
  Json config = with(llama(), R"({"model_type": "qwen2", "num_hidden_layers": 4,
    "sliding_window": 32, "max_window_layers": 2})");
  for (const LayerSpec& layer : read_arch_spec(config, "config.json").layers) {
    EXPECT_EQ(layer.window, 0);
  }
  config["use_sliding_window"] = true;
  const ArchSpec arch = read_arch_spec(config, "config.json");
  EXPECT_EQ(arch.layers[1].window, 0);
  EXPECT_EQ(arch.layers[2].window, 32);
  config["layer_types"] = {"sliding_attention", "full_attention", "full_attention",
                           "full_attention"};
  const ArchSpec listed = read_arch_spec(config, "config.json");
  EXPECT_EQ(listed.layers[0].window, 32);
  EXPECT_EQ(listed.layers[3].window, 0);
}

// A window of 0 or null is none. Where use_sliding_window is off the window is not read:
// transformers saves every qwen2_moe with a window of 0.
TEST(Families, AWindowOfZeroIsNone) {
  for (const std::string family : {"qwen2", "qwen3", "qwen2_moe", "qwen3_moe", "smollm3"}) {
    for (const std::string window : {"0", "null", "-1"}) {
      const Json config =
          with(llama(), R"({"use_sliding_window": false, "model_type": ")" + family +
                            R"(", "num_key_value_heads": 4, "sliding_window": )" + window + "}");
      for (const LayerSpec& layer : read_arch_spec(config, "config.json").layers) {
        EXPECT_EQ(layer.window, 0) << family << " " << window;
      }
    }
  }
  for (const std::string family : {"mistral", "mixtral", "phi3", "qwen2"}) {
    for (const std::string window : {"0", "null"}) {
      const Json config =
          with(llama(), R"({"use_sliding_window": true, "max_window_layers": 1, "model_type": ")" +
                            family + R"(", "num_key_value_heads": 4, "sliding_window": )" + window +
                            "}");
      for (const LayerSpec& layer : read_arch_spec(config, "config.json").layers) {
        EXPECT_EQ(layer.window, 0) << family;
      }
    }
  }
  for (const std::string family : {"gemma2", "gemma3_text", "olmo3", "gpt_oss"}) {
    const Json config =
        with(llama(), R"({"sliding_window": 0, "num_key_value_heads": 4, "model_type": ")" +
                          family + R"("})");
    expect_problem(config, "there is no sliding window; set sliding_window");
  }
}

// eos_token_id may be a number, a list, or absent; -1 means none for every special token.
TEST(Families, EosMayBeAListOrAbsent) {
  EXPECT_TRUE(read_arch_spec(llama(), "config.json").eos_tokens.empty());
  EXPECT_EQ(read_arch_spec(with(llama(), R"({"eos_token_id": 7})"), "config.json").eos_tokens,
            std::vector<int64_t>{7});
  EXPECT_EQ(read_arch_spec(with(llama(), R"({"eos_token_id": [7, 8]})"), "config.json").eos_tokens,
            (std::vector<int64_t>{7, 8}));
  const ArchSpec arch = read_arch_spec(
      with(llama(), R"({"eos_token_id": -1, "bos_token_id": -1, "pad_token_id": -1})"),
      "config.json");
  EXPECT_TRUE(arch.eos_tokens.empty());
  EXPECT_FALSE(arch.bos_token || arch.pad_token);
}

// An unknown model_type is refused with the supported list and the nearest name.
TEST(Families, AnUnknownModelTypeIsRefusedWithTheSupportedList) {
  expect_problem(with(llama(), R"({"model_type": "lama"})"),
                 "model_type 'lama' is not supported; supported: llama, mistral, qwen2, qwen3");
  Json none = llama();
  none.erase("model_type");
  expect_problem(none, "'model_type' is missing");
  expect_problem(with(llama(), R"({"model_type": 3})"), "must be a string");
}

// Keys that would change the results and are not supported are refused.
TEST(Families, KeysThatWouldChangeTheNumbersAreRefused) {
  expect_problem(with(llama(), R"({"attn_logit_softcapping": 50.0})"), "attn_logit_softcapping");
  expect_problem(with(llama(), R"({"embedding_multiplier": 12})"), "embedding_multiplier");
  expect_problem(with(llama(), R"({"logits_scaling": 8})"), "logits_scaling");
  expect_problem(with(llama(), R"({"quantization_config": {"bits": 4}})"), "quantization_config");
  expect_problem(with(llama(), R"({"partial_rotary_factor": 0.5})"), "partial_rotary_factor");
  expect_problem(with(gpt2(), R"({"add_cross_attention": true})"), "add_cross_attention");
  expect_problem(with(llama(), R"({"num_experts": 8})"), "num_experts");
  expect_problem(with(llama(), R"({"use_qk_norm": true})"), "use_qk_norm");
  EXPECT_TRUE(problems_of(with(llama(), R"({"attn_logit_softcapping": null})")).empty());
  EXPECT_TRUE(problems_of(with(llama(), R"({"num_experts": 0, "alibi": false})")).empty());
  EXPECT_TRUE(problems_of(with(llama(), R"({"some_note": "kept"})")).empty());
  EXPECT_TRUE(problems_of(with(llama(), R"({"moe_layer_freq": 2})")).empty()) << "has no experts";
}

// Unsupported kinds of rotary embedding are refused with the reason.
TEST(Families, RopeOfAnotherKindIsRefused) {
  expect_problem(with(llama(), R"({"rope_scaling": {"type": "longrope", "factor": 2.0}})"),
                 "'longrope' is not supported; supported: default, linear, llama3, yarn");
  expect_problem(with(llama(), R"({"rope_scaling": {"type": "dynamic", "factor": 2.0}})"),
                 "grows with the length of each text");
  expect_problem(with(llama(), R"({"rope_scaling": {"type": "llama3"}})"), "'factor' is needed");
  expect_problem(with(llama(), R"({"rope_scaling": {"type": "linear"}})"), "'factor' is needed");
  expect_problem(with(llama(), R"({"rope_parameters": [1]})"), "must be an object");
  expect_problem(with(llama(), R"({"rope_parameters": {"full_attention": {}}})"),
                 "not for each kind of layer");
  const Json phi3 = with(llama(), R"({"model_type": "phi3"})");
  expect_problem(with(phi3, R"({"rope_scaling": {"type": "su", "short_factor": [1, 1],
    "long_factor": [1, 1, 1, 1, 1, 1, 1, 1]}})"),
                 "'short_factor' must be a list of 8 numbers");
  expect_problem(with(phi3, R"({"partial_rotary_factor": 0.07})"), "they must be even");
  const Json gemma = with(llama(), R"({"model_type": "gemma3_text"})");
  expect_problem(with(gemma, R"({"rope_parameters": {"chunked_attention": {}}})"),
                 "has no layers of type 'chunked_attention'");
}

// Local and global layers may have different rotary embeddings, in both spellings.
TEST(Families, RopeOfEachKindOfLayerInBothSpellings) {
  const Json gemma = with(llama(), R"({"model_type": "gemma3_text", "num_hidden_layers": 6})");
  const ArchSpec plain = read_arch_spec(gemma, "config.json");
  EXPECT_EQ(plain.rope.theta, 1e6);
  EXPECT_EQ(plain.local_rope.theta, 1e4);
  EXPECT_EQ(plain.head_dim, 256);
  EXPECT_TRUE(plain.tied_by_config);
  EXPECT_TRUE(plain.layers[4].local_rope);
  EXPECT_EQ(plain.layers[4].window, 4096);
  EXPECT_FALSE(plain.layers[5].local_rope);
  const ArchSpec old =
      read_arch_spec(with(gemma, R"({"rope_theta": 2e6, "rope_local_base_freq": 2e4, "rope_scaling":
        {"rope_type": "linear", "factor": 8}})"),
                     "config.json");
  const ArchSpec now = read_arch_spec(
      with(gemma, R"({"rope_parameters": {"sliding_attention": {"rope_type": "default",
        "rope_theta": 2e4}, "full_attention": {"rope_type": "linear", "factor": 8,
        "rope_theta": 2e6}}})"),
      "config.json");
  for (const ArchSpec& arch : {old, now}) {
    EXPECT_EQ(arch.rope.theta, 2e6);
    EXPECT_EQ(arch.rope.factor, 8.0);
    EXPECT_EQ(arch.local_rope.theta, 2e4);
    EXPECT_EQ(arch.local_rope.scaling, RopeSpec::Scaling::kNone);
  }
  expect_problem(with(gemma, R"({"use_bidirectional_attention": true})"), "is not supported");
}

// Gemma 2 caps scores and logits unless its file says null.
TEST(Families, Gemma2IsCappedUnlessItsFileSaysNull) {
  const Json gemma = with(llama(), R"({"model_type": "gemma2"})");
  const ArchSpec plain = read_arch_spec(gemma, "config.json");
  EXPECT_EQ(plain.score_cap, 50.0);
  EXPECT_EQ(plain.logit_cap, 30.0);
  EXPECT_EQ(plain.head_dim, 256);
  EXPECT_DOUBLE_EQ(plain.layers[0].attention_scale, 1.0 / 16);
  EXPECT_EQ(plain.layers[0].window, 4096);
  EXPECT_EQ(plain.layers[1].window, 0);
  EXPECT_TRUE(plain.tied_by_config);
  // transformers reads hidden_activation only.
  EXPECT_EQ(read_arch_spec(with(gemma, R"({"hidden_act": "silu"})"), "config.json").activation,
            Activation::kGeluTanh);
  EXPECT_EQ(
      read_arch_spec(with(gemma, R"({"hidden_activation": "silu"})"), "config.json").activation,
      Activation::kSilu);
  const ArchSpec one =
      read_arch_spec(with(gemma, R"({"attn_logit_softcapping": null, "final_logit_softcapping": 20,
        "query_pre_attn_scalar": 144, "layer_types": ["full_attention", "sliding_attention"],
        "sliding_window": 8})"),
                     "config.json");
  EXPECT_EQ(one.score_cap, 0.0);
  EXPECT_EQ(one.logit_cap, 20.0);
  EXPECT_DOUBLE_EQ(one.layers[0].attention_scale, 1.0 / 12);
  EXPECT_EQ(one.layers[0].window, 0);
  EXPECT_EQ(one.layers[1].window, 8);
  expect_problem(with(gemma, R"({"attn_logit_softcapping": 0})"), "must be a number in 1e-06");
  expect_problem(with(gemma, R"({"sliding_window": null})"), "there is no sliding window");
  expect_problem(with(gemma, R"({"use_bidirectional_attention": true})"), "is not supported");
}

// Gemma 3 applies the cap of logits only, as transformers does for text models.
TEST(Families, Gemma3ObeysOneCap) {
  const Json gemma =
      with(llama(), R"({"model_type": "gemma3_text", "final_logit_softcapping": 30.0})");
  EXPECT_EQ(read_arch_spec(gemma, "config.json").logit_cap, 30.0);
  EXPECT_EQ(read_arch_spec(with(gemma, R"({"final_logit_softcapping": null,
    "attn_logit_softcapping": null})"),
                           "config.json")
                .logit_cap,
            0.0);
  expect_problem(with(gemma, R"({"attn_logit_softcapping": 50.0})"),
                 "'attn_logit_softcapping' is not supported: transformers computes gemma3 without");
  Json wrapper = {{"model_type", "gemma3"}, {"text_config", gemma}};
  expect_problem(wrapper, "'final_logit_softcapping' is not supported inside a wrapper");
  wrapper["text_config"].erase("final_logit_softcapping");
  EXPECT_TRUE(problems_of(wrapper).empty());
}

// SmolLM3 leaves out the rotary embedding in every fourth layer.
TEST(Families, SmolLM3KnowsNoPositionsInEveryFourthLayer) {
  const Json config = with(llama(), R"({"model_type": "smollm3", "num_hidden_layers": 8})");
  const ArchSpec arch = read_arch_spec(config, "config.json");
  EXPECT_TRUE(arch.layers[2].rotates);
  EXPECT_FALSE(arch.layers[3].rotates);
  EXPECT_FALSE(arch.layers[7].rotates);
  EXPECT_EQ(arch.rope.theta, 2e6);
  expect_problem(with(config, R"({"no_rope_layers": [1, 0]})"), "has 2 entries for 8 layers");
  expect_problem(with(config, R"({"no_rope_layers": [2]})"), "must hold integers in 0 .. 1");
}

// Ministral has layers of both kinds, StarCoder 2 layer norms and no gate, ERNIE 4.5 turns pairs.
TEST(Families, LikeLlamaWithOneDifference) {
  const Json config = with(llama(), R"({"model_type": "ministral", "num_key_value_heads": 4,
    "layer_types": ["sliding_attention", "full_attention"]})");
  EXPECT_EQ(read_arch_spec(config, "config.json").layers[0].window, 4096);
  EXPECT_EQ(read_arch_spec(config, "config.json").layers[1].window, 0);
  const ArchSpec coder = read_arch_spec(
      with(llama(), R"({"model_type": "starcoder2", "norm_epsilon": 1e-6})"), "config.json");
  EXPECT_TRUE(coder.norm == NormKind::kLayer && coder.norm_bias && !coder.gated);
  EXPECT_TRUE(coder.qkv_bias && coder.output_bias && coder.mlp_bias && coder.tied_by_config);
  EXPECT_EQ(coder.activation, Activation::kGeluTanh);
  EXPECT_EQ(coder.norm_eps, 1e-6);
  const ArchSpec ernie =
      read_arch_spec(with(llama(), R"({"model_type": "ernie4_5"})"), "config.json");
  EXPECT_TRUE(ernie.rope.pairs && ernie.tied_by_config && !ernie.mlp_bias);
  EXPECT_EQ(ernie.rope.theta, 5e5);
  EXPECT_EQ(ernie.kv_heads, 2);
}

// Experts are read in both spellings of their number.
TEST(Families, ExpertsAreReadInBothSpellingsOfTheirNumber) {
  const Json qwen = with(llama(), R"({"model_type": "qwen3_moe", "num_hidden_layers": 6})");
  const ArchSpec plain = read_arch_spec(qwen, "config.json");
  EXPECT_EQ(plain.moe.experts, 128);
  EXPECT_EQ(plain.moe.top_k, 8);
  EXPECT_EQ(plain.moe.width, 768);
  EXPECT_FALSE(plain.moe.renormalise);
  EXPECT_TRUE(plain.layers[0].sparse);
  for (const char* key : {"num_experts", "num_local_experts"}) {
    Json named = with(qwen, R"({"decoder_sparse_step": 2, "mlp_only_layers": [3]})");
    named[key] = 16;
    const ArchSpec arch = read_arch_spec(named, "config.json");
    EXPECT_EQ(arch.moe.experts, 16);
    EXPECT_FALSE(arch.layers[0].sparse) << "every second";
    EXPECT_TRUE(arch.layers[1].sparse);
    EXPECT_FALSE(arch.layers[3].sparse) << "named";
  }
  expect_problem(with(qwen, R"({"num_experts": 4})"), "= 8 is more than the 4 experts");
  EXPECT_EQ(plain.moe.balance, 0.0);
  EXPECT_EQ(read_arch_spec(with(qwen, R"({"output_router_logits": true})"), "").moe.balance, 0.001);
  const Json balanced =
      with(qwen, R"({"output_router_logits": true, "router_aux_loss_coef": 0.5})");
  EXPECT_EQ(read_arch_spec(balanced, "").moe.balance, 0.5);
  expect_problem(with(llama(), R"({"num_experts": 4})"), "would change the numbers");
}

// Keys that other programs write and no model of the family reads are no reason to refuse it.
TEST(Families, NumbersThatChangeNothingAreNotRefused) {
  for (const std::string unread :
       {R"("num_experts": 1, "moe_topk": 1, "num_shared_expert": 1, "moe_layer_num_skipped": 0)",
        R"("moe_topk": [1], "moe_intermediate_size": 3072, "router_aux_loss_coef": 0.001)",
        R"("num_experts_per_tok": 8, "expert_parallel_size": 4)",
        R"("logits_scaling": 1.0, "embedding_multiplier": 1, "logit_scale": 1.0, "scale_emb": 1)",
        R"("initializer_range": 2.0, "router_aux_loss_coef": 0.9, "qk_norm": false)"}) {
    EXPECT_TRUE(problems_of(with(llama(), "{" + unread + "}")).empty()) << unread;
  }
  const std::string normed = R"({"use_qk_norm": true, "qk_norm": true, "model_type": )";
  for (const std::string family : {R"("qwen3"})", R"("hunyuan_v1_dense"})", R"("qwen3_moe"})"}) {
    EXPECT_TRUE(
        problems_of(with(with(llama(), R"({"num_key_value_heads": 4})"), normed + family)).empty())
        << family;
  }
  for (const std::string read : {R"("use_qk_norm": true)", R"("embedding_multiplier": 12)",
                                 R"("logit_scale": 0.0625)", R"("n_routed_experts": 64)",
                                 R"("quantization_config": {"bits": 4})", R"("clip_qkv": 8.0)"}) {
    expect_problem(with(llama(), "{" + read + "}"), "would change the numbers");
  }
}

// Mixtral refuses options that it does not compute; OLMoE clips queries, keys and values if told.
TEST(Families, MixtralAndOlmoeRefuseWhatTheyDoNotCompute) {
  const Json mixtral = with(llama(), R"({"model_type": "mixtral", "num_key_value_heads": 4})");
  const ArchSpec arch = read_arch_spec(mixtral, "config.json");
  EXPECT_EQ(arch.moe.width, 128);
  EXPECT_TRUE(arch.moe.renormalise);
  EXPECT_EQ(arch.rope.theta, 1e6);
  expect_problem(with(mixtral, R"({"router_jitter_noise": 0.1})"), "other than 0");
  const Json olmoe = with(llama(), R"({"model_type": "olmoe", "clip_qkv": null})");
  EXPECT_EQ(read_arch_spec(olmoe, "config.json").moe.experts, 64);
  EXPECT_EQ(read_arch_spec(olmoe, "config.json").qkv_clip, 0.0);
  EXPECT_EQ(read_arch_spec(with(olmoe, R"({"clip_qkv": 8.0})"), "config.json").qkv_clip, 8.0);
  expect_problem(with(olmoe, R"({"clip_qkv": -1})"), "'clip_qkv' must be a number");
}

// gpt-oss uses YaRN unless its file says otherwise.
TEST(Families, GptOssTurnsByYarnUnlessTold) {
  const Json gpt_oss = with(llama(), R"({"model_type": "gpt_oss", "num_key_value_heads": 4})");
  const ArchSpec arch = read_arch_spec(gpt_oss, "config.json");
  EXPECT_EQ(arch.rope.scaling, RopeSpec::Scaling::kYarn);
  EXPECT_EQ(arch.rope.original_max_positions, 4096);
  EXPECT_EQ(arch.layers[0].window, 128);
  EXPECT_EQ(arch.layers[1].window, 0);
  EXPECT_TRUE(arch.sinks && arch.output_bias && arch.moe.fused);
  EXPECT_TRUE(
      problems_of(with(gpt_oss, R"({"quantization_config": {"quant_method": "mxfp4"}})")).empty());
  expect_problem(with(gpt_oss, R"({"quantization_config": {"quant_method": "gptq"}})"), "mxfp4");
}

// Sizes outside their bounds are refused.
TEST(Families, SizesAreChecked) {
  expect_problem(with(llama(), R"({"vocab_size": 0})"), "'vocab_size' must be an integer in 1");
  expect_problem(with(llama(), R"({"vocab_size": 2147483648})"), "'vocab_size'");
  expect_problem(with(llama(), R"({"vocab_size": 18446744073709551615})"), "'vocab_size'");
  expect_problem(with(llama(), R"({"vocab_size": "100"})"), "'vocab_size'");
  expect_problem(with(llama(), R"({"num_hidden_layers": 5000})"), "at most 4096");
  expect_problem(with(llama(), R"({"hidden_size": 66})"), "not a multiple");
  expect_problem(with(llama(), R"({"num_key_value_heads": 3})"), "not a multiple");
  expect_problem(with(llama(), R"({"head_dim": 15})"), "must be even");
  expect_problem(with(llama(), R"({"rms_norm_eps": -1.0})"), "'rms_norm_eps'");
  expect_problem(with(llama(), R"({"rms_norm_eps": "NaN"})"), "'rms_norm_eps'");
  expect_problem(with(llama(), R"({"hidden_act": "mish"})"), "'mish' is not supported");
  expect_problem(with(gpt2(), R"({"n_embd": 66, "head_dim": 16})"), "'n_head'");
  expect_problem(with(gpt2(), R"({"n_layer": -1})"), "'n_layer' must be an integer");
}

// Goal: the layers and sizes of gated DeltaNet are read in both spellings, and what is not computed
// is refused.
TEST(Families, Qwen35HasAttentionInEveryFourthLayerUnlessTold) {
  const Json qwen = with(llama(), R"({"model_type": "qwen3_5_text", "num_hidden_layers": 5,
    "num_key_value_heads": 2, "mtp_num_hidden_layers": 1, "mamba_ssm_dtype": "float32"})");
  const auto kinds = [](const Json& config) {
    std::string text;
    for (const LayerSpec& layer : read_arch_spec(config, "config.json").layers) {
      text += layer.mixer == MixerKind::kDelta ? 'd' : 'a';
    }
    return text;
  };
  EXPECT_EQ(kinds(qwen), "dddad");
  EXPECT_EQ(kinds(with(qwen, R"({"full_attention_interval": 2})")), "dadad");
  EXPECT_EQ(kinds(with(qwen, R"({"layer_types": ["full_attention", "linear_attention",
    "linear_attention", "full_attention", "full_attention"]})")),
            "addaa");
  const ArchSpec arch = read_arch_spec(qwen, "config.json");
  EXPECT_EQ(arch.delta.mixed_width(), 2 * 16 * 128 + 32 * 128);
  EXPECT_EQ(arch.delta.taps, 4);
  EXPECT_EQ(arch.head_dim, 256);
  EXPECT_EQ(arch.rope.rotary_dim(arch.head_dim), 64);
  EXPECT_TRUE(arch.output_gate && arch.norm == NormKind::kRmsOffset);
  expect_problem(with(qwen, R"({"layer_types": ["full_attention"]})"), "1 entries for 5 layers");
  expect_problem(with(qwen, R"({"linear_num_key_heads": 3})"), "not a multiple");
  expect_problem(with(qwen, R"({"attn_output_gate": false})"), "attn_output_gate");
  expect_problem(with(qwen, R"({"hidden_act": "gelu"})"), "other than silu");
  expect_problem(with(qwen, R"({"linear_key_head_dim": 0})"), "linear_key_head_dim");
}

// Goal: Qwen3-Next and Qwen3.5 with experts are read with transformers' values for absent keys, and
// each renormalises as its class does.
TEST(Families, TheHybridsWithExpertsHaveTheirOwnDefaults) {
  Json config = with(llama(), R"({"num_hidden_layers": 4, "num_key_value_heads": 2})");
  config.erase("intermediate_size");
  for (const std::string family : {"qwen3_next", "qwen3_5_moe_text"}) {
    config["model_type"] = family;
    const bool next = family == "qwen3_next";
    const ArchSpec arch = read_arch_spec(config, "config.json");
    EXPECT_EQ(arch.moe.experts, next ? 512 : 256) << family;
    EXPECT_EQ(arch.moe.top_k, next ? 10 : 8) << family;
    EXPECT_EQ(arch.moe.width, 512) << family;
    EXPECT_EQ(arch.moe.shared_width, 512) << family;
    EXPECT_EQ(arch.head_dim, 256) << family;
    EXPECT_EQ(arch.delta.fused, next) << family;
    EXPECT_TRUE(arch.moe.renormalise && arch.output_gate) << family;
    EXPECT_EQ(std::ranges::count(arch.layers, true, &LayerSpec::sparse), 4) << family;
    EXPECT_EQ(std::ranges::count(arch.layers, MixerKind::kDelta, &LayerSpec::mixer), 3) << family;
  }
  config["model_type"] = "qwen3_next";
  const ArchSpec other = read_arch_spec(
      with(config, R"({"norm_topk_prob": false, "mlp_only_layers": [1]})"), "config.json");
  EXPECT_FALSE(other.moe.renormalise || other.layers.at(1).sparse);
}

// Goal: the router of DeepSeek V3's kind is read, its defaults are GLM's, and groups that cannot be
// are refused.
TEST(Families, Glm4MoeHasASigmoidRouterWithGroups) {
  const Json glm = with(llama(), R"({"model_type": "glm4_moe", "num_hidden_layers": 3,
    "num_key_value_heads": 2, "n_routed_experts": 8, "num_experts_per_tok": 2,
    "moe_intermediate_size": 24, "n_shared_experts": 2, "first_k_dense_replace": 2,
    "n_group": 4, "topk_group": 1, "routed_scaling_factor": 2.5, "attention_bias": true,
    "scoring_func": "sigmoid", "topk_method": "noaux_tc", "num_nextn_predict_layers": 1})");
  const ArchSpec arch = read_arch_spec(glm, "config.json");
  EXPECT_EQ(arch.moe.scores, RouterScores::kSigmoid);
  EXPECT_TRUE(arch.moe.correction && arch.moe.renormalise);
  EXPECT_FALSE(arch.moe.shared_switch || arch.moe.rounded_weights || arch.output_bias);
  EXPECT_TRUE(arch.qkv_bias && arch.qk_norm == QueryKeyNorm::kNone);
  EXPECT_EQ(arch.moe.groups, 4);
  EXPECT_EQ(arch.moe.kept_groups, 1);
  EXPECT_EQ(arch.moe.weight_scale, 2.5);
  EXPECT_EQ(arch.moe.shared_width, 48);
  EXPECT_EQ(arch.rope.partial, 0.5);
  EXPECT_FALSE(arch.layers[1].sparse);
  EXPECT_TRUE(arch.layers[2].sparse);
  EXPECT_TRUE(is_skipped_tensor(arch, "model.layers.3.eh_proj.weight"));
  EXPECT_FALSE(is_skipped_tensor(arch, "model.layers.2.eh_proj.weight"));
  for (const ModuleParameter& one : block_parameters(arch, {.body = "model."}, 2)) {
    EXPECT_EQ(one.spec.frozen, one.module == Module::kRouterCorrection) << one.spec.name;
  }
  EXPECT_EQ(read_arch_spec(with(glm, R"({"use_qk_norm": true})"), "config.json").qk_norm,
            QueryKeyNorm::kHead);
  expect_problem(with(glm, R"({"n_group": 3})"), "'n_group'");
  expect_problem(with(glm, R"({"num_experts_per_tok": 3})"), "'topk_group'");
  expect_problem(with(glm, R"({"scoring_func": "softmax"})"), "'scoring_func'");
  expect_problem(with(glm, R"({"topk_method": "greedy"})"), "'topk_method'");
  expect_problem(with(glm, R"({"moe_layer_freq": 2})"), "'moe_layer_freq'");
}

// Goal: the sizes of latent attention are read, a null rank means no latent, and yarn scales scores
// by the square of its factor.
TEST(Families, DeepseekV3HasLatentAttention) {
  const Json deepseek = with(llama(), R"({"model_type": "deepseek_v3", "num_hidden_layers": 4,
    "num_key_value_heads": 4, "head_dim": 64, "kv_lora_rank": 16, "q_lora_rank": null,
    "qk_nope_head_dim": 24, "qk_rope_head_dim": 8, "v_head_dim": 40})");
  const ArchSpec arch = read_arch_spec(deepseek, "config.json");
  EXPECT_EQ(arch.latent.query_rank, 0);
  EXPECT_EQ(arch.latent.rank, 16);
  EXPECT_EQ(arch.latent.key_dim(), 32);
  EXPECT_EQ(arch.head_dim, 40);
  EXPECT_TRUE(arch.rope.pairs);
  EXPECT_EQ(arch.moe.groups, 8);
  EXPECT_EQ(arch.moe.kept_groups, 4);
  EXPECT_EQ(std::ranges::count(arch.layers, true, &LayerSpec::sparse), 1);
  EXPECT_DOUBLE_EQ(arch.layers[0].attention_scale, 1.0 / std::sqrt(32.0));
  Json scaled = with(deepseek, R"({"rope_scaling": {"type": "yarn", "factor": 40, "mscale": 1.0,
    "mscale_all_dim": 1.0, "original_max_position_embeddings": 4096}})");
  scaled.erase("q_lora_rank");
  const ArchSpec yarn = read_arch_spec(scaled, "config.json");
  EXPECT_EQ(yarn.latent.query_rank, 1536);
  const double m = 0.1 * std::log(40.0) + 1.0;
  EXPECT_DOUBLE_EQ(yarn.layers[0].attention_scale, m * m / std::sqrt(32.0));
  EXPECT_DOUBLE_EQ(yarn.rope.attention_factor, 1.0);
  expect_problem(with(deepseek, R"({"kv_lora_rank": 0})"), "'kv_lora_rank'");
}

// All problems of a config are reported together.
TEST(Families, AllProblemsAreToldAtOnce) {
  Json config = with(llama(), R"({"vocab_size": -1, "hidden_act": "mish", "tie_word_embeddings": 1,
    "rope_scaling": {"type": "su", "factor": 4}, "residual_multiplier": 2})");
  config.erase("intermediate_size");
  EXPECT_EQ(problems_of(config).size(), 6u);
}

// A config that is no JSON object is refused.
TEST(Families, AConfigThatIsNoObjectIsRefused) {
  EXPECT_THROW(read_arch_spec(Json::parse("[1]"), "config.json"), ConfigError);
}

}  // namespace
}  // namespace longshore
