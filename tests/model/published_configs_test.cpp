// The config.json of published models with experts gives their known number of parameters.
#include <gtest/gtest.h>

#include "model/families/families.h"
#include "model/parameters/model_spec.h"

namespace longshore {
namespace {

struct Published {
  const char* config;  // the keys of the hub's file that affect numbers
  int64_t parameters;  // number of weights on the hub, unquantised
  int64_t blocks_sparse;
};

const Published kQwen3_30B_A3B = {
    R"({"architectures": ["Qwen3MoeForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
        "bos_token_id": 151643, "decoder_sparse_step": 1, "eos_token_id": 151645, "head_dim": 128,
        "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02,
        "intermediate_size": 6144, "max_position_embeddings": 40960, "max_window_layers": 48,
        "mlp_only_layers": [], "model_type": "qwen3_moe", "moe_intermediate_size": 768,
        "norm_topk_prob": true, "num_attention_heads": 32, "num_experts": 128,
        "num_experts_per_tok": 8, "num_hidden_layers": 48, "num_key_value_heads": 4,
        "output_router_logits": false, "rms_norm_eps": 1e-06, "rope_scaling": null,
        "rope_theta": 1000000.0, "router_aux_loss_coef": 0.001, "sliding_window": null,
        "tie_word_embeddings": false, "torch_dtype": "bfloat16", "use_cache": true,
        "use_sliding_window": false, "vocab_size": 151936})",
    30'532'122'624, 48};

const Published kMixtral_8x7B = {
    R"({"architectures": ["MixtralForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 1,
        "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
        "intermediate_size": 14336, "max_position_embeddings": 32768, "model_type": "mixtral",
        "num_attention_heads": 32, "num_experts_per_tok": 2, "num_hidden_layers": 32,
        "num_key_value_heads": 8, "num_local_experts": 8, "output_router_logits": false,
        "rms_norm_eps": 1e-05, "rope_theta": 1000000.0, "router_aux_loss_coef": 0.02,
        "sliding_window": null, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
        "use_cache": true, "vocab_size": 32000})",
    46'702'792'704, 32};

const Published kOlmoe_1B_7B = {
    R"({"architectures": ["OlmoeForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
        "clip_qkv": null, "eos_token_id": 50279, "hidden_act": "silu", "hidden_size": 2048,
        "initializer_range": 0.02, "intermediate_size": 1024, "max_position_embeddings": 4096,
        "model_type": "olmoe", "norm_topk_prob": false, "num_attention_heads": 16,
        "num_experts": 64, "num_experts_per_tok": 8, "num_hidden_layers": 16,
        "num_key_value_heads": 16, "output_router_logits": false, "pad_token_id": 1,
        "rms_norm_eps": 1e-05, "rope_scaling": null, "rope_theta": 10000.0,
        "router_aux_loss_coef": 0.01, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
        "use_cache": true, "vocab_size": 50304})",
    6'919'161'856, 16};

const Published kGptOss_20B = {
    R"({"architectures": ["GptOssForCausalLM"], "attention_bias": true, "attention_dropout": 0.0,
        "eos_token_id": 200002, "experts_per_token": 4, "head_dim": 64, "hidden_act": "silu",
        "hidden_size": 2880, "initial_context_length": 4096, "initializer_range": 0.02,
        "intermediate_size": 2880, "max_position_embeddings": 131072, "model_type": "gpt_oss",
        "num_attention_heads": 64, "num_experts_per_tok": 4, "num_hidden_layers": 24,
        "num_key_value_heads": 8, "num_local_experts": 32, "output_router_logits": false,
        "pad_token_id": 199999, "rms_norm_eps": 1e-05, "rope_theta": 150000,
        "rope_scaling": {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0,
                         "original_max_position_embeddings": 4096, "rope_type": "yarn",
                         "truncate": false},
        "router_aux_loss_coef": 0.9, "sliding_window": 128, "swiglu_limit": 7.0,
        "tie_word_embeddings": false, "use_cache": true, "vocab_size": 201088,
        "quantization_config": {"modules_to_not_convert": ["model.layers.*.self_attn",
          "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"],
          "quant_method": "mxfp4"}})",
    20'914'757'184, 24};

const Published kNemotron3Nano_30B_A3B = {
    R"({"architectures": ["NemotronHForCausalLM"], "attention_bias": false,
        "attention_dropout": 0.0,
        "bos_token_id": 1, "chunk_size": 128, "conv_kernel": 4, "eos_token_id": 2, "expand": 2,
        "head_dim": 128, "hidden_dropout": 0.0, "hidden_size": 2688,
        "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
        "initializer_range": 0.02, "intermediate_size": 1856, "layer_norm_epsilon": 1e-05,
        "mamba_head_dim": 64, "mamba_hidden_act": "silu", "mamba_num_heads": 64,
        "mamba_proj_bias": false, "max_position_embeddings": 262144, "mlp_bias": false,
        "mlp_hidden_act": "relu2", "model_type": "nemotron_h", "moe_intermediate_size": 1856,
        "moe_shared_expert_intermediate_size": 3712, "n_group": 1, "n_groups": 8,
        "n_routed_experts": 128, "n_shared_experts": 1, "norm_eps": 1e-05, "norm_topk_prob": true,
        "num_attention_heads": 32, "num_experts_per_tok": 6, "num_hidden_layers": 52,
        "num_key_value_heads": 2, "pad_token_id": 0, "partial_rotary_factor": 1.0,
        "rescale_prenorm_residual": true, "residual_in_fp32": false, "rope_theta": 10000,
        "routed_scaling_factor": 2.5, "sliding_window": null, "ssm_state_size": 128,
        "tie_word_embeddings": false, "time_step_floor": 0.0001, "time_step_max": 0.1,
        "time_step_min": 0.001, "topk_group": 1, "torch_dtype": "bfloat16", "use_bias": false,
        "use_cache": true, "use_conv_bias": true, "use_mamba_kernels": true,
        "vocab_size": 131072})",
    31'577'940'288, 23};

// Each config gives the number of parameters that the hub counts.
TEST(PublishedConfigs, GiveTheParametersThatTheModelsHave) {
  for (const Published& published :
       {kQwen3_30B_A3B, kMixtral_8x7B, kOlmoe_1B_7B, kGptOss_20B, kNemotron3Nano_30B_A3B}) {
    ArchSpec arch = read_arch_spec(Json::parse(published.config), "config.json");
    int64_t sparse = 0;
    for (const LayerSpec& layer : arch.layers) sparse += layer.sparse ? 1 : 0;
    EXPECT_EQ(sparse, published.blocks_sparse) << arch.family;
    EXPECT_EQ(make_model_spec(arch, {}).parameter_elements(), published.parameters) << arch.family;
  }
}

}  // namespace
}  // namespace longshore
