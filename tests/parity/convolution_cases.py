"""Golden cases of families whose layers have a convolution, for make_golden.py."""

# The first seed of these cases; every case has its own.
FIRST_SEED = 1100


def cases(llama):
    """Returns the cases. `llama` is the config that they are made from."""
    common = {**llama, "model_type": "lfm2", "architectures": ["Lfm2ForCausalLM"],
              "num_hidden_layers": 3, "norm_eps": 1e-5, "pad_token_id": 0}
    for key in ("rms_norm_eps", "hidden_act"):
        del common[key]
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
    }
