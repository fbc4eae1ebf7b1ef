"""Golden cases of families whose layers have a convolution, for make_golden.py."""

# The first seed of these cases; every case has its own.
FIRST_SEED = 1100


def name_in_files(case, name):
    """The name in the files of what is called so in the model."""
    body = case.get("body", "model.")
    return body + name.removeprefix("model.") if name.startswith("model.") else name


def cases(llama):
    """Returns the cases. `llama` is the config that they are made from."""
    common = {**llama, "model_type": "lfm2", "architectures": ["Lfm2ForCausalLM"],
              "num_hidden_layers": 3, "norm_eps": 1e-5, "pad_token_id": 0}
    for key in ("rms_norm_eps", "hidden_act"):
        del common[key]
    hybrid = {**common, "model_type": "nemotron_h", "architectures": ["NemotronHForCausalLM"],
              "head_dim": 6, "layer_norm_epsilon": 1e-5, "mlp_hidden_act": "relu2",
              "mamba_num_heads": 4, "mamba_head_dim": 6, "n_groups": 2, "ssm_state_size": 5,
              "conv_kernel": 4, "chunk_size": 8, "time_step_min": 0.4}
    for key in ("norm_eps", "num_hidden_layers"):
        del hybrid[key]
    named = {key: value for key, value in common.items() if key != "intermediate_size"}
    return {
        # The keys are those of published files: the MLP's width is 8 * ceil(int(1.2 * 26) / 8).
        "lfm2": {"config": {**named, "block_ff_dim": 40, "block_auto_adjust_ff_dim": True,
                            "block_ffn_dim_multiplier": 1.2, "block_multiple_of": 8,
                            "full_attn_idxs": [1], "conv_L_cache": 3, "conv_bias": True,
                            "rope_theta": 1000000.0, "tie_embedding": True}},
        # The keys are those of transformers 5.
        "lfm2-plain": {"config": {**common, "block_auto_adjust_ff_dim": False, "conv_L_cache": 4,
                                  "num_hidden_layers": 2, "layer_types": ["full_attention", "conv"],
                                  "rope_parameters": {"rope_type": "linear", "factor": 2.0,
                                                      "rope_theta": 1000.0},
                                  "tie_word_embeddings": False}},
        # The keys are those of published files. A quarter of the steps are raised to the least one.
        "nemotron_h": {"config": {**hybrid, "hybrid_override_pattern": "M-*M",
                                  "num_hidden_layers": 4, "use_bias": True, "mlp_bias": True},
                       "body": "backbone.", "unused": {"mtp.layers.0.norm.weight": [16]}},
        # The keys are those of transformers 5.
        "nemotron_h-plain": {"config": {**hybrid, "use_conv_bias": False, "n_groups": 1,
                                        "layers_block_type": ["full_attention",
                                                              "linear_attention", "mlp"],
                                        "mlp_hidden_act": "silu", "time_step_min": 0.001}},
        # The files are as on the hub; one of two groups of experts can be chosen from.
        "nemotron_h-moe": {"config": {**hybrid, "hybrid_override_pattern": "ME*E",
                                      "num_hidden_layers": 4, "n_routed_experts": 6,
                                      "num_experts_per_tok": 2, "n_shared_experts": 1,
                                      "moe_intermediate_size": 12,
                                      "moe_shared_expert_intermediate_size": 20, "n_group": 2,
                                      "topk_group": 1, "norm_topk_prob": True,
                                      "routed_scaling_factor": 2.5},
                           "idle": [(1, 2)], "body": "backbone.",
                           "unused": {"mtp.layers.0.norm.weight": [16]}},
        # The experts work in a width of their own, and an MLP lies between layers of experts.
        "nemotron_h-latent": {"config": {**hybrid, "layers_block_type": [
                                             "moe", "mlp", "full_attention", "moe"],
                                         "n_routed_experts": 5, "num_experts_per_tok": 2,
                                         "moe_intermediate_size": 12, "moe_latent_size": 10,
                                         "moe_shared_expert_intermediate_size": 20,
                                         "norm_topk_prob": False, "routed_scaling_factor": 0.75},
                              "idle": [(0, 4)], "body": "backbone."},
        # The files hold one tensor for all experts.
        "nemotron_h-fused": {"config": {**hybrid, "layers_block_type": ["full_attention", "moe"],
                                        "n_routed_experts": 4, "num_experts_per_tok": 2,
                                        "moe_intermediate_size": 12,
                                        "moe_shared_expert_intermediate_size": 20},
                             "idle": [(1, 3)], "fused": True},
    }
