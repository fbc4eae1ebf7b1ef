"""Golden cases of Gemma 4 whose last layers read keys and values of earlier ones (E2B, E4B)."""

# The seed of the first case; each has its own.
FIRST_SEED = 1200


def cases(llama, gemma4, wrapper, renamed):
    """Returns the cases, from the configs `llama`, `gemma4` and that of a wrapper of Gemma 4."""
    types = ["sliding_attention", "full_attention", "sliding_attention"]
    shared = {**gemma4, "num_hidden_layers": 6, "layer_types": [*types, *types[1:], types[1]],
              "num_kv_shared_layers": 3, "use_double_wide_mlp": True, "intermediate_size": 24,
              "global_head_dim": 12, "attention_k_eq_v": False,
              # With an eps of 1e-5 norms of small rows enlarge rounding in bf16 five times as much.
              "rms_norm_eps": 0.1}
    return {
        # Two layers read the keys of the only full layer, one those of the second sliding layer.
        # Without inputs of each layer transformers 5.23 runs it only where it returns hidden
        # states.
        "gemma4_text-shared": {
            "config": renamed(llama, "gemma4_text", "Gemma4ForCausalLM", **shared,
                              output_hidden_states=True),
            "unused": {"model.layers.4.self_attn.k_proj.weight": [16, 16],
                       "model.layers.4.self_attn.k_norm.weight": [8]}},
        # Layers have inputs of their own, from a table with more rows than tokens.
        "gemma4-e2b": {"config": {**wrapper, "text_config": renamed(
            llama, "gemma4_text", "Gemma4ForCausalLM", **{
                **shared, "num_hidden_layers": 4, "layer_types": shared["layer_types"][:4],
                "num_kv_shared_layers": 1, "num_key_value_heads": 1,
                "hidden_size_per_layer_input": 6, "vocab_size_per_layer_input": 321,
                "final_logit_softcapping": 2.5})}},
    }
