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
    }
