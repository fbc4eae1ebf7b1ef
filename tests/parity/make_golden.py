#!/usr/bin/env python3
"""Makes tests/parity/golden: tiny random models and what transformers and torch make of them.

Needs torch 2.11 (CPU) and transformers 5. Usage: make_golden.py [case ...]; without arguments all
cases. Every case is a directory:

  config.json, model*.safetensors  the model, as a user would bring it; or
  config.json, weights.json        how weights.py draws the model's weights
  train.jsonl                      token rows; some labels are -100, some rows have no labels
  golden.json                      rows, settings, losses and gradient norms of the two runs
  golden_sketches.json             by name, a sketch (sketches.py) of
                                   logits       of the n-th single row
                                   grad         of the mean loss over `gradient_rows`
                                   clip, free   weights after the runs with and without clipping

All of it is fp32 on the CPU with eager attention.

Models with experts go to tests/parity/golden_moe: some tests are over the dense ones alone. Those
whose files hold MXFP4 go to golden_mxfp4, with the two runs alone in golden_sketches.json. Their
golden.json also says which experts no token chose in both runs (`idle`), and how near a choice was.
"""
import json
import re
import shutil
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
import convolution_cases
import gemma4_cases
import sink_attention
import sliding_cases
import weights
from golden_training import SEQUENCES_PER_STEP, STEPS, backward_mean, loss_sum, train
from sketches import write_sketches
from expert_cases import Routing, UnfitRouting, cases, in_files, quantise_experts
from expert_cases import randomise_experts
from expert_cases import BF16_MARGIN, COMMON, IDLE, TRAINING_MARGIN, is_router
from transformers import logging as transformers_logging
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

ROOT = Path(__file__).parent / "golden"
EXPERTS_ROOT = Path(__file__).parent / "golden_moe"
MXFP4_ROOT = Path(__file__).parent / "golden_mxfp4"
VOCABULARY = 257
GRADIENT_ROWS = [0, 3, 1, 4]
ADAMW = {"lr": 2e-3, "betas": [0.9, 0.95], "eps": 1e-6, "weight_decay": 0.1}
# Some gradients are zero in theory and rounding noise in practice: gpt2's key bias (softmax ignores
# it), the router's row of an idle expert (renormalised weights do). A larger eps keeps Adam from
# making steps of noise.
NOISE_ADAMW = {**ADAMW, "eps": 1e-5}
NOISE_FAMILIES = ("gpt2", "glm4", "qwen3_moe", "mixtral", "gpt_oss", "glm4_moe", "deepseek_v3",
                  "starcoder2", "ernie4_5")
# Each step enlarges rounding less with a smaller rate.
DELTA_ADAMW = {**NOISE_ADAMW, "lr": 5e-4}

LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
    "vocab_size": VOCABULARY, "hidden_size": 16, "intermediate_size": 40, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5, "bos_token_id": 0, "eos_token_id": [1, 2],
}
LLAMA3 = {"factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 16}
GPT2 = {
    "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "vocab_size": VOCABULARY,
    "n_embd": 16, "n_head": 4, "n_layer": 2, "n_positions": 40, "layer_norm_epsilon": 1e-5,
    "attn_pdrop": 0.1, "embd_pdrop": 0.1, "resid_pdrop": 0.1, "bos_token_id": 0, "eos_token_id": 1,
}


def renamed(config, model_type, class_name, **more):
    return {**config, "model_type": model_type, "architectures": [class_name], **more}


# The vision tower exists but takes no part.
VISION = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1,
          "num_attention_heads": 2, "image_size": 16, "patch_size": 8}


def wrapper(model_type, class_name, text, vision, **more):
    """A model with a text tower and one of pictures; files as transformers 4 wrote them."""
    return {"architectures": [class_name], "model_type": model_type, "text_config": text,
            "vision_config": {**VISION, "model_type": vision}, **more}


# Outputs of the recurrence are small at the beginning of a row, and their norm enlarges rounding:
# with an eps of 1e-6 two runs in fp32 part by 8 % in the norm of gradients, with 1e-2 by 4e-5.
QWEN3_5 = {"num_hidden_layers": 4, "head_dim": 8, "rms_norm_eps": 1e-2, "pad_token_id": 0,
           "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 6,
           "linear_value_head_dim": 8, "linear_conv_kernel_dim": 4,
           "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0,
                               "partial_rotary_factor": 0.5, "mrope_interleaved": True,
                               "mrope_section": [1, 1, 0]}}

# In full layers heads are wider, a quarter of the pairs of each head turns, and values are keys.
GEMMA4 = {"num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
          "global_head_dim": 16, "num_global_key_value_heads": 1, "attention_k_eq_v": True,
          "layer_types": ["sliding_attention", "full_attention", "full_attention"],
          "sliding_window": 5, "hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0,
          "hidden_activation": "gelu_pytorch_tanh", "tie_word_embeddings": True, "pad_token_id": 0,
          "use_bidirectional_attention": "vision",
          "rope_parameters": {
              "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25,
                                 "rope_theta": 5000.0},
              "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0}}}

# Each case has its config and the peculiarities of its files.
CASES = {
    # The keys are those of transformers 4; head_dim is not hidden / heads; heads are grouped,
    # untied.
    "llama": {"config": {**LLAMA, "head_dim": 12, "rope_theta": 5000.0, "torch_dtype": "float32",
                         "rope_scaling": {"type": "llama3", **LLAMA3}}},
    # The keys are those of transformers 5; there are biases, linear scaling and one key head.
    "llama-tied": {"config": {**LLAMA, "tie_word_embeddings": True, "attention_bias": True,
                              "mlp_bias": True, "num_key_value_heads": 1, "dtype": "float32",
                              "rope_parameters": {"rope_type": "linear", "factor": 2.0,
                                                  "rope_theta": 1000.0}}},
    "llama-bf16": {"config": {**LLAMA, "dtype": "bfloat16", "num_key_value_heads": 4,
                              "rope_parameters": {"rope_type": "llama3", "rope_theta": 5000.0,
                                                  **LLAMA3}}},
    "llama-indexed": {"config": {**LLAMA, "torch_dtype": "float32", "rope_theta": 10000.0},
                      "files": 3},
    "qwen2": {"config": renamed(LLAMA, "qwen2", "Qwen2ForCausalLM", num_hidden_layers=3,
                                use_sliding_window=True, sliding_window=5, max_window_layers=1,
                                rope_theta=1000000.0, rms_norm_eps=1e-6)},
    "qwen3": {"config": renamed(LLAMA, "qwen3", "Qwen3ForCausalLM", tie_word_embeddings=True,
                                head_dim=12, rope_parameters={"rope_type": "default",
                                                              "rope_theta": 1000000.0})},
    "mistral": {"config": renamed(LLAMA, "mistral", "MistralForCausalLM", head_dim=6,
                                  sliding_window=6, rope_theta=10000.0)},
    "granite": {"config": renamed(LLAMA, "granite", "GraniteForCausalLM", rope_theta=10000.0,
                                  embedding_multiplier=3.0, residual_multiplier=0.22,
                                  attention_multiplier=0.4, logits_scaling=2.5)},
    # The keys are those of transformers 4; some layers have no positions (every fourth by default).
    "smollm3": {"config": renamed(LLAMA, "smollm3", "SmolLM3ForCausalLM", num_hidden_layers=3,
                                  no_rope_layers=[1, 0, 1], use_sliding_window=True,
                                  sliding_window=5, rope_theta=50000.0, pad_token_id=0)},
    "seed_oss": {"config": renamed(LLAMA, "seed_oss", "SeedOssForCausalLM", head_dim=8,
                                   attention_bias=True, attention_out_bias=False, mlp_bias=True,
                                   max_position_embeddings=4096, attention_dropout=0.1,
                                   residual_dropout=0.1, pad_token_id=0,
                                   rope_parameters={"rope_type": "yarn", "factor": 4.0,
                                                    "rope_theta": 10000.0,
                                                    "original_max_position_embeddings": 1024})},
    "olmo2": {"config": renamed(LLAMA, "olmo2", "Olmo2ForCausalLM", rope_theta=500000.0,
                                pad_token_id=0)},
    "olmo3": {"config": renamed(LLAMA, "olmo3", "Olmo3ForCausalLM", num_hidden_layers=4,
                                num_attention_heads=2, max_position_embeddings=2048,
                                sliding_window=5, rope_theta=5000.0, pad_token_id=0,
                                rope_scaling={"rope_type": "yarn", "factor": 4.0,
                                              "attention_factor": 1.2, "beta_fast": 4.0,
                                              "beta_slow": 1.0,
                                              "original_max_position_embeddings": 512})},
    # As in Phi 4 mini half of each head rotates, with factors for long documents; every row is
    # short.
    "phi3": {"config": renamed(LLAMA, "phi3", "Phi3ForCausalLM", hidden_size=32,
                               tie_word_embeddings=True, partial_rotary_factor=0.5,
                               original_max_position_embeddings=32, pad_token_id=0,
                               rope_theta=10000.0,
                               rope_scaling={"type": "longrope", "short_factor": [1.0, 1.5],
                                             "long_factor": [1.0, 4.0]})},
    # Every row but the shortest counts as long.
    "phi3-long": {"config": renamed(LLAMA, "phi3", "Phi3ForCausalLM", pad_token_id=0,
                                    original_max_position_embeddings=2, sliding_window=6,
                                    rope_parameters={"rope_type": "longrope",
                                                     "rope_theta": 10000.0,
                                                     "attention_factor": 1.1,
                                                     "short_factor": [1.0, 1.5],
                                                     "long_factor": [1.0, 4.0]})},
    "gemma3_text": {"config": renamed(LLAMA, "gemma3_text", "Gemma3ForCausalLM",
                                      num_hidden_layers=3, sliding_window_pattern=3, head_dim=12,
                                      sliding_window=5, query_pre_attn_scalar=20,
                                      hidden_activation="gelu_pytorch_tanh", pad_token_id=0,
                                      rope_theta=50000.0, rope_local_base_freq=1000.0,
                                      rope_scaling={"rope_type": "linear", "factor": 2.0})},
    # The caps bend most scores and logits.
    "gemma2": {"config": renamed(LLAMA, "gemma2", "Gemma2ForCausalLM", num_hidden_layers=3,
                                 head_dim=12, sliding_window=5, query_pre_attn_scalar=20,
                                 hidden_activation="gelu_pytorch_tanh", pad_token_id=0,
                                 rope_theta=10000.0, attn_logit_softcapping=1.5,
                                 final_logit_softcapping=2.5), "attention": ["eager"]},
    # Gemma 3 applies a cap to logits but has none for scores.
    "gemma3-capped": {"config": renamed(LLAMA, "gemma3_text", "Gemma3ForCausalLM",
                                        num_hidden_layers=1, head_dim=4, sliding_window=5,
                                        hidden_activation="gelu_pytorch_tanh", pad_token_id=0,
                                        query_pre_attn_scalar=4, final_logit_softcapping=2.5)},
    "glm4": {"config": renamed(LLAMA, "glm4", "Glm4ForCausalLM", head_dim=8, rope_theta=10000.0,
                               attention_bias=True, pad_token_id=0)},
    "hunyuan_v1_dense": {"config": renamed(LLAMA, "hunyuan_v1_dense", "HunYuanDenseV1ForCausalLM",
                                           head_dim=8, tie_word_embeddings=True, pad_token_id=0,
                                           rope_theta=10000.0,
                                           rope_scaling={"type": "dynamic", "alpha": 100.0,
                                                         "factor": 1.0})},
    # Queries are scaled from the fourth position on.
    "ministral3": {"config": renamed(LLAMA, "ministral3", "Ministral3ForCausalLM", head_dim=8,
                                     pad_token_id=0, rope_parameters={
                                         "type": "yarn", "rope_type": "yarn", "factor": 16.0,
                                         "rope_theta": 10000.0, "mscale": 1.0,
                                         "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.5,
                                         "original_max_position_embeddings": 4})},
    "gemma3": {"config": wrapper("gemma3", "Gemma3ForConditionalGeneration", {
        "model_type": "gemma3_text", "vocab_size": VOCABULARY, "hidden_size": 16,
        "intermediate_size": 40, "num_hidden_layers": 2, "head_dim": 4, "sliding_window": 5,
        "query_pre_attn_scalar": 4, "max_position_embeddings": 64, "sliding_window_pattern": 2,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0}}, "siglip_vision_model",
        eos_token_id=[1, 2], image_token_index=250, boi_token_index=251, eoi_token_index=252,
        mm_tokens_per_image=4), "as_transformers_4": True},
    # The keys are those of published files; the caps bend most logits.
    "gemma4_text": {"config": renamed(LLAMA, "gemma4_text", "Gemma4ForCausalLM", **{
        **GEMMA4, "final_logit_softcapping": 2.5})},
    # The sizes of full layers are those that transformers 5.23 writes by the layer's number.
    "gemma4": {"config": {
        "architectures": ["Gemma4ForConditionalGeneration"], "model_type": "gemma4",
        "text_config": renamed(LLAMA, "gemma4_text", "Gemma4ForCausalLM", **{
            **{key: value for key, value in GEMMA4.items()
               if "global" not in key and key != "attention_k_eq_v"},
            "num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"],
            "per_layer_config": {"1": {"head_dim": 12}}, "final_logit_softcapping": 4.0}),
        "vision_config": {**VISION, "model_type": "gemma4_vision", "num_key_value_heads": 2,
                          "head_dim": 4, "pooling_kernel_size": 1, "position_embedding_size": 16},
        "audio_config": None, "tie_word_embeddings": True, "image_token_id": 300,
        "video_token_id": 301, "boi_token_id": 252, "eoi_token_id": 253},
        "unused": {"model.audio_tower.output_proj.weight": [8, 8],
                   "model.embed_audio.embedding_projection.weight": [16, 8]}},
    "mistral3": {"config": wrapper("mistral3", "Mistral3ForConditionalGeneration", renamed(
        LLAMA, "mistral", "MistralForCausalLM", head_dim=6, sliding_window=None,
        rope_theta=10000.0), "pixtral", image_token_index=250, spatial_merge_size=2,
        vision_feature_layer=-1)},
    # Three layers of gated DeltaNet, whose value heads share key heads, and one of attention.
    "qwen3_5_text": {"config": renamed(LLAMA, "qwen3_5_text", "Qwen3_5ForCausalLM", **QWEN3_5)},
    "qwen3_5": {"config": {
        "architectures": ["Qwen3_5ForConditionalGeneration"], "model_type": "qwen3_5",
        "text_config": renamed(LLAMA, "qwen3_5_text", "Qwen3_5ForCausalLM", **{
            **QWEN3_5, "num_hidden_layers": 2, "full_attention_interval": 2,
            "tie_word_embeddings": True}),
        "vision_config": {"model_type": "qwen3_5_vision", "depth": 1, "hidden_size": 8,
                          "intermediate_size": 8, "num_heads": 2, "patch_size": 4,
                          "out_hidden_size": 16, "num_position_embeddings": 16},
        "tie_word_embeddings": True, "image_token_id": 250, "video_token_id": 251,
        "vision_start_token_id": 252, "vision_end_token_id": 253},
        "unused": {"mtp.fc.weight": [16, 32]}},
    "gpt2": {"config": {**GPT2, "activation_function": "gelu_new"}},
    # The names lack `transformer.`, and the mask buffers of old files are there.
    "gpt2-plain": {"config": {**GPT2, "activation_function": "gelu", "n_inner": 40,
                              "scale_attn_by_inverse_layer_idx": True}, "plain": True},
}

CASES.update(cases(LLAMA, QWEN3_5, CASES["qwen3_5"]["config"], GEMMA4))
CONVOLUTIONS = convolution_cases.cases(LLAMA)
CASES.update(CONVOLUTIONS)
SLIDING = sliding_cases.cases(LLAMA, LLAMA3, renamed)
CASES.update(SLIDING)
SHARED = gemma4_cases.cases(LLAMA, GEMMA4, CASES["gemma4"]["config"], renamed)
CASES.update(SHARED)


# Each case has a seed of its own, so a new case changes no other.
SEEDS = {name: 1000 + number for number, name in enumerate(
    ["llama", "llama-tied", "llama-bf16", "llama-indexed", "qwen2", "qwen3", "mistral", "gpt2",
     "gpt2-plain", "granite", "smollm3", "seed_oss", "olmo2", "olmo3", "phi3", "phi3-long",
     "gemma3_text", "glm4", "hunyuan_v1_dense", "ministral3", "gemma3", "mistral3", "gemma2",
     "gemma3-capped", "qwen3_5_text", "qwen3_5", "gemma4_text", "gemma4"])}
SEEDS.update({name: sliding_cases.FIRST_SEED + number for number, name in enumerate(SLIDING)})
SEEDS.update({name: convolution_cases.FIRST_SEED + number
              for number, name in enumerate(CONVOLUTIONS)})
SEEDS.update({name: gemma4_cases.FIRST_SEED + number for number, name in enumerate(SHARED)})
# With other weights rounding grows to 5e-4 of a gradient's norm in 20 steps.
SEEDS.update({"gemma4_text": 1300, "gemma4-e2b": 1400})
# A GPU rounds bf16 at other places, and gradients of the first weights left their tolerance there.
SEEDS.update({"qwen3_moe-fused": 2100})
# The weights of these are in files: adapters of PEFT, runs of TRL and other golden numbers were
# made from them, the files have a special form, or a test needs weights that few random ones are.
# weights.py draws all others.
WEIGHTS_IN_FILES = {
    "llama", "llama-tied", "llama-bf16", "llama-indexed", "qwen2", "qwen3", "gpt2", "gpt2-plain",
    "phi3", "granite", "gemma3", "gemma3-capped", "gemma4_text-shared", "qwen3_5_text", "mixtral",
    "qwen2_moe", "qwen3_moe", "qwen3_moe-balanced", "qwen3_next", "glm4_moe", "deepseek_v3",
    "gpt_oss", "gpt_oss-mxfp4", "nemotron_h-moe", "nemotron_h-latent"}
# Cases with experts take the first seed from this one on with a usable routing.
FIRST_EXPERT_SEED = 2000


def is_delta(family):
    return family.startswith("qwen3_5") or family == "qwen3_next"


def is_centred(family, name):
    if family == "muse_glimmer":
        return name.endswith("layernorm.weight")
    return family in ("gemma2", "gemma3", "gemma3_text") or (
        is_delta(family) and not name.endswith("linear_attn.norm.weight"))


def randomise(model, generator):
    """Weights large enough that every part matters; norms and biases too."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if name.endswith("bias"):
                parameter.copy_(noise * 0.1)
            elif parameter.dim() >= 2:
                parameter.copy_(noise * 0.25)
            elif name.endswith("A_log"):  # a state loses about a third of itself at each token
                parameter.copy_(noise * 0.5 - 0.5)
            elif is_centred(model.config.model_type, name):  # multiplied by 1 + weight
                parameter.copy_(noise * 0.2)
            else:
                parameter.copy_(1.0 + noise * 0.2)
        for name, buffer in model.named_buffers():
            if name.endswith("layer_scalar"):  # no run trains it
                buffer.copy_(0.8 + torch.randn(1, generator=generator) * 0.1)


def make_rows(generator):
    """Rows of unequal lengths; every row has at least two trained tokens."""
    rows = []
    for index, length in enumerate([24, 3, 17, 9, 13, 5, 21, 11, 7, 19]):
        ids = torch.randint(3, VOCABULARY, (length,), generator=generator).tolist()
        row = {"input_ids": ids}
        if index % 3 != 0:
            masked = torch.rand(length, generator=generator) < 0.3
            masked[-2:] = False
            row["labels"] = [-100 if skip else token for token, skip in zip(ids, masked.tolist())]
        rows.append(row)
    return rows


def adamw_of(case):
    family = case["config"]["model_type"]
    # Gemma 4 does not divide scores by the root of the head's width, so its attention is steep.
    if is_delta(family) or family.startswith("gemma4"):
        return DELTA_ADAMW
    return NOISE_ADAMW if family in NOISE_FAMILIES else ADAMW


def stored_in_bf16(case):
    return "bfloat16" in (case["config"].get("dtype"), case["config"].get("torch_dtype"))


def write_model(case, directory, model, packed):
    """The model's files: one or several, with or without a prefix."""
    if case.get("as_transformers_4"):
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            shutil.copy(Path(folder) / "model.safetensors", directory)
        return
    dtype = torch.bfloat16 if stored_in_bf16(case) else torch.float32
    tied = getattr(model.config, "tie_word_embeddings", False)
    tensors = {name: part for whole, value in model.state_dict().items()
               if not (tied and whole == "lm_head.weight")
               for name, part in in_files(case, whole, value.detach().to(dtype).contiguous())}
    tensors = {convolution_cases.name_in_files(case, name): value
               for name, value in tensors.items()}
    tensors.update({name: torch.ones(shape) for name, shape in case.get("unused", {}).items()})
    for name, parts in packed.items():
        del tensors[name]
        tensors.update(parts)
    if case.get("plain"):
        tensors = {name.removeprefix("transformer."): value for name, value in tensors.items()}
        positions = case["config"]["n_positions"]
        mask = torch.tril(torch.ones(1, 1, positions, positions))
        for layer in range(case["config"]["n_layer"]):
            tensors[f"h.{layer}.attn.bias"] = mask.clone()
    files = case.get("files", 1)
    if files == 1:
        save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
        return
    names, weight_map = sorted(tensors), {}
    for index in range(files):
        part = {name: tensors[name] for name in names[index::files]}
        file = f"model-{index + 1:05d}-of-{files:05d}.safetensors"
        save_file(part, directory / file, metadata={"format": "pt"})
        weight_map.update({name: file for name in part})
    size = sum(value.numel() * value.element_size() for value in tensors.values())
    index = {"metadata": {"total_size": size}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")


def named_in_files(case, name, tensor):
    """A tensor of the model, with its name in the files; several where those hold its parts."""
    if case.get("as_transformers_4"):
        name = name.replace("model.language_model.", "language_model.model.")
    if case.get("plain"):
        name = name.removeprefix("transformer.")
    return in_files(case, convolution_cases.name_in_files(case, name), tensor)


def recipe_of(case, name, shape):
    """Mean and deviation of a tensor of the files, and what its first column is; as randomise and
    randomise_experts have them."""
    config = case["config"]
    if "idle" in case:
        if shape[0] == VOCABULARY and name.endswith(("embed_tokens.weight", "embeddings.weight")):
            return 0.0, 1.0, COMMON
        if is_router(name):
            layer = int(re.search(r"layers\.(\d+)\.", name)[1])
            corrected = config["model_type"] in ("glm4_moe", "deepseek_v3", "nemotron_h")
            return 0.0, 0.25 if corrected else 0.75, [
                IDLE if (layer, expert) in case["idle"] else 0.0 for expert in range(shape[0])]
        if name.endswith("sinks"):
            return 0.0, 1.0
        if config["model_type"] != "nemotron_h" and re.search(
                r"experts\.(gate_up_proj|\d+\.(gate|up)_proj\.weight)$", name):
            return 0.0, 0.5
    if name.endswith("bias"):
        return 0.0, 0.1
    if len(shape) >= 2:
        return 0.0, 0.25
    if name.endswith("A_log"):
        return -0.5, 0.5
    if name.endswith("layer_scalar"):
        return 0.8, 0.1
    return (0.0 if is_centred(config["model_type"], name) else 1.0), 0.2


def write_recipe(case, directory, key):
    """Draws all weights of the model's file anew, as weights.json says from then on."""
    path = directory / "model.safetensors"
    with safe_open(path, "pt") as file:
        shapes = {name: list(file.get_slice(name).get_shape()) for name in file.keys()}
    recipe = {"key": key, "tensors": {name: [shape, *recipe_of(case, name, shape)]
                                      for name, shape in shapes.items()}}
    recipe["sum"] = weights.sum_of(weights.draw_all(recipe))
    weights.write_recipe(recipe, directory / "weights.json")
    weights.write_weights(recipe, path)


def class_of(case):
    return AutoModelForImageTextToText if "text_config" in case["config"] else AutoModelForCausalLM


def trained(model):
    """Names and parameters that take part: other towers of a wrapper have no gradient."""
    return [(name, p) for name, p in model.named_parameters() if p.grad is not None]


def load(case, directory, attention="eager", experts="eager"):
    model = class_of(case).from_pretrained(
        directory, dtype=torch.float32, attn_implementation=attention,
        experts_implementation=experts)
    return model.float().eval()


def relative_error(found, exact):
    if not exact.any():  # this expert has no token
        assert not found.any()
        return 0.0
    return round(((found - exact).norm() / exact.norm()).item(), 5)


def spread_in_bf16(case, directory, rows, golden):
    """How far bf16 takes transformers' own gradients from fp32, by parameter: the most over kinds
    of attention and orders of rows. Ours may go about as far."""
    errors = {}
    kinds = [(attention, experts) for attention in case.get("attention", ["eager", "sdpa"])
             for experts in (["eager", "batched_mm"] if "idle" in case else ["eager"])]
    for attention, experts in kinds:
        for ordered in [rows, rows[::-1]]:
            flash = attention == "flash"
            with sink_attention.flash() if flash else nullcontext():
                model = load(case, directory, "eager" if flash else attention, experts)
                model = model.to(torch.bfloat16)
                backward_mean(model, ordered)
            for whole, parameter in trained(model):
                for name, gradient in named_in_files(case, whole, parameter.grad.float()):
                    errors[name] = max(errors.get(name, 0.0),
                                       relative_error(gradient, golden[f"grad.{name}"]))
    return errors


def make_case(name):
    case = CASES[name]
    if "idle" not in case:
        return make_case_of(name, ROOT / name, SEEDS[name])
    seed = SEEDS.get(name, FIRST_EXPERT_SEED)
    while True:
        try:
            root = MXFP4_ROOT if case.get("mxfp4") else EXPERTS_ROOT
            return make_case_of(name, root / name, seed)
        except UnfitRouting:
            seed += 1


def random_model(case, directory, generator):
    model = class_of(case).from_config(AutoConfig.from_pretrained(directory),
                                       attn_implementation="eager", experts_implementation="eager")
    randomise(model, generator)
    if "idle" in case:
        randomise_experts(model, case["idle"], generator)
    return model.eval()


def check_first_rows(case, model, rows):
    """Whether the routing of the rows that are compared in bf16 is fit; the margin."""
    routing = Routing(model)
    with torch.no_grad():
        for row in [rows[i] for i in [*GRADIENT_ROWS, 2]]:
            model(input_ids=torch.tensor([row["input_ids"]]))
    routing.check(BF16_MARGIN, case["idle"])
    return routing.margin


def make_case_of(name, directory, seed):
    case = CASES[name]
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps(case["config"], indent=1) + "\n")
    generator = torch.Generator().manual_seed(seed)
    drawn = random_model(case, directory, generator)
    packed = quantise_experts(drawn, generator) if case.get("mxfp4") else {}
    rows = make_rows(generator)
    write_model(case, directory, drawn, packed)
    if name not in WEIGHTS_IN_FILES:
        write_recipe(case, directory, seed)
        drawn = load(case, directory)
    margin_of_first = check_first_rows(case, drawn, rows) if "idle" in case else None
    (directory / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    golden = {}
    model = load(case, directory)
    if "idle" in case:  # checks that transformers found every tensor
        loaded = model.state_dict()
        assert all(torch.equal(value, loaded[key]) for key, value in drawn.state_dict().items())
    single_rows = [rows[0]["input_ids"][:1], rows[1]["input_ids"], rows[2]["input_ids"]]
    with torch.no_grad():
        for index, ids in enumerate(single_rows):
            golden[f"logits.{index}"] = model(input_ids=torch.tensor([ids])).logits[0].clone()
    gradient_loss = backward_mean(model, [rows[i] for i in GRADIENT_ROWS])
    for whole, parameter in trained(model):
        for part_name, gradient in named_in_files(case, whole, parameter.grad.clone()):
            golden[f"grad.{part_name}"] = gradient

    bf16_errors = {}
    if case.get("mxfp4"):  # only the reading of the files is left to compare
        golden = {}
    else:
        bf16_errors = spread_in_bf16(case, directory, [rows[i] for i in GRADIENT_ROWS], golden)

    runs = {}
    free_run, clip_run = load(case, directory), load(case, directory)
    routings = [Routing(free_run), Routing(clip_run)]
    free_losses, free_norms = train(free_run, rows, 0.0, adamw_of(case))
    # The limit is half of the smallest norm, so every step is clipped.
    clip = float(f"{min(free_norms) / 2:.1g}")
    clip_losses, clip_norms = train(clip_run, rows, clip, adamw_of(case))
    assert min(clip_norms) > clip, (name, clip, clip_norms)
    for watched in routings if "idle" in case else []:
        watched.check(TRAINING_MARGIN, case["idle"])
    for run, (result, limit, losses, norms) in {
            "free": (free_run, 0.0, free_losses, free_norms),
            "clip": (clip_run, clip, clip_losses, clip_norms)}.items():
        runs[run] = {"max_grad_norm": limit, "loss": losses, "grad_norm": norms}
        for whole, parameter in trained(result):
            for part_name, value in named_in_files(case, whole, parameter.detach().clone()):
                golden[f"{run}.{part_name}"] = value

    write_sketches(golden, directory / "golden_sketches.json")
    facts = {"single_rows": single_rows, "gradient_rows": GRADIENT_ROWS,
             "gradient_loss": gradient_loss, "bf16_gradient_errors": bf16_errors,
             "steps": STEPS, "sequences_per_step": SEQUENCES_PER_STEP,
             "adamw": adamw_of(case), "runs": runs}
    if "idle" in case:
        facts["routing"] = {"seed": seed, "idle": case["idle"],
                            "margin_of_first_rows": margin_of_first,
                            "margin_in_training": min(watched.margin for watched in routings)}
    (directory / "golden.json").write_text(json.dumps(facts, indent=1) + "\n")
    if name not in WEIGHTS_IN_FILES:
        (directory / "model.safetensors").unlink()
    size = sum(file.stat().st_size for file in directory.iterdir())
    print(f"{name}: {size / 1024:.0f} KiB, loss {free_losses[0]:.3f} -> {free_losses[-1]:.3f}, "
          f"norm {min(free_norms):.2f} .. {max(free_norms):.2f}, clip {clip}"
          + (f", {facts['routing']}" if "idle" in case else ""))


def main(cases, make):
    """Calls make(name) for each case that the command line names, or for all."""
    transformers_logging.disable_progress_bar()
    torch.use_deterministic_algorithms(True)
    for name in sys.argv[1:] or cases:
        make(name)


if __name__ == "__main__":
    main(CASES, make_case)
