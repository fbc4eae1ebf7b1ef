"""Golden cases of families that rotate in sliding layers alone, and of plain ones."""

# The seed of the first case; each has its own.
FIRST_SEED = 1026
MUSE_VISION = {"model_type": "muse_glimmer_vision", "hidden_size": 8, "intermediate_size": 8,
               "num_hidden_layers": 1, "num_attention_heads": 2, "patch_size": 4,
               "pos_emb_height": 2, "pos_emb_width": 2, "max_position_embeddings": 4}


def cases(llama, llama3, renamed):
    """Returns the cases, from the config `llama` and the scaling of rope `llama3`."""
    return {
        # Layers with a window rotate; the others have no positions.
        "exaone4": {"config": renamed(llama, "exaone4", "Exaone4ForCausalLM", num_hidden_layers=3,
                                      head_dim=8, sliding_window=5, sliding_window_pattern=3,
                                      rope_theta=5000.0, pad_token_id=0,
                                      rope_scaling={"rope_type": "llama3", **llama3})},
        "cohere2": {"config": renamed(llama, "cohere2", "Cohere2ForCausalLM", num_hidden_layers=3,
                                      sliding_window=5, sliding_window_pattern=3, logit_scale=0.3,
                                      layer_norm_eps=1e-4, rope_theta=5000.0, pad_token_id=0)},
        # As Gemma 4's, its wrapper reads other embeddings for tokens of images; no row has them.
        "muse_glimmer": {"config": {
            "architectures": ["MuseGlimmerForConditionalGeneration"], "model_type": "muse_glimmer",
            "text_config": renamed(llama, "muse_glimmer_text",
                                   "MuseGlimmerForConditionalGeneration", num_hidden_layers=3,
                                   head_dim=8, sliding_window=5, qk_scale_factor=1.7,
                                   output_multiplier=0.3, post_norm_eps=1e-2,
                                   final_logit_softcapping=2.5, hidden_activation="silu",
                                   rope_parameters={"rope_type": "default", "rope_theta": 5000.0}),
            "vision_config": MUSE_VISION, "out_hidden_size": 32, "projector_hidden_size": 8,
            "image_token_id": 300, "video_token_id": 301}},
        "ministral": {"config": renamed(llama, "ministral", "MinistralForCausalLM", head_dim=6,
                                        sliding_window=5, rope_theta=10000.0,
                                        layer_types=["sliding_attention", "full_attention"])},
        "starcoder2": {"config": renamed(llama, "starcoder2", "Starcoder2ForCausalLM",
                                         hidden_act="gelu_pytorch_tanh", norm_epsilon=1e-4,
                                         use_bias=True, sliding_window=6, rope_theta=10000.0,
                                         residual_dropout=0.1, embedding_dropout=0.1,
                                         tie_word_embeddings=True)},
        "ernie4_5": {"config": renamed(llama, "ernie4_5", "Ernie4_5ForCausalLM", head_dim=8,
                                       use_bias=True, rope_theta=5000.0, pad_token_id=0,
                                       tie_word_embeddings=True)},
        "cohere": {"config": renamed(llama, "cohere", "CohereForCausalLM", num_hidden_layers=1,
                                     logit_scale=0.25, layer_norm_eps=1e-4, rope_theta=5000.0,
                                     pad_token_id=0)},
    }
