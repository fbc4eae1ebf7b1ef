"""What make_golden.py needs beyond a dense model for one with experts.

transformers holds a layer's experts in one tensor; the hub's files hold one per expert and matrix,
but for gpt_oss. Routing is made safe to compare: no token lies near the boundary between chosen
experts and others, and in some layers an expert is chosen by no token.
"""
import re
from types import SimpleNamespace

import torch
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

# The least distance between the scores of the last chosen expert and the first other one, relative
# to the deviation of such scores: for rows also compared in bf16, and for training.
BF16_MARGIN = 0.01
TRAINING_MARGIN = 3e-5
# Coordinate 0 of every embedding is large, so an idle expert's router row uses it for a low score;
# the other rows do not use it.
COMMON = 6.0
IDLE = -8.0


def renamed(config, model_type, class_name, **more):
    return {**config, "model_type": model_type, "architectures": [class_name], **more}


def cases(llama, qwen3_5, wrapper, gemma4):
    """idle: (layer, expert) without a token; fused: files as transformers 5 holds the experts."""
    small = {**llama, "intermediate_size": 24}
    hybrid = {**qwen3_5, "num_hidden_layers": 2, "full_attention_interval": 2,
              "moe_intermediate_size": 12, "shared_expert_intermediate_size": 20}
    balanced = {"output_router_logits": True, "router_aux_loss_coef": 0.4}
    return {
        # The balance loss is over layers with a dense one between; weights are a softmax over the
        # chosen experts only.
        "qwen3_moe-balanced": {
            "config": renamed(small, "qwen3_moe", "Qwen3MoeForCausalLM", head_dim=12,
                              num_hidden_layers=3, decoder_sparse_step=1, mlp_only_layers=[1],
                              moe_intermediate_size=12, num_experts=6, num_experts_per_tok=2,
                              norm_topk_prob=True, rope_theta=1000000.0, rms_norm_eps=1e-6,
                              **balanced),
            "idle": [(0, 2), (2, 5)]},
        "gpt_oss-balanced": {
            "config": renamed(small, "gpt_oss", "GptOssForCausalLM", head_dim=8,
                              attention_bias=True, num_local_experts=5, num_experts_per_tok=2,
                              experts_per_token=2, sliding_window=5, swiglu_limit=1.25,
                              layer_types=["sliding_attention", "full_attention"],
                              rope_theta=150000.0, pad_token_id=0, **balanced,
                              rope_scaling={"rope_type": "yarn", "factor": 4.0, "truncate": False,
                                            "beta_fast": 32.0, "beta_slow": 1.0,
                                            "original_max_position_embeddings": 16}),
            "idle": [(1, 4)], "fused": True, "attention": ["eager", "flash"]},
        # The files are as on the hub; a dense layer lies between sparse ones.
        "qwen3_moe": {
            "config": renamed(small, "qwen3_moe", "Qwen3MoeForCausalLM", head_dim=12,
                              num_hidden_layers=3, decoder_sparse_step=1, mlp_only_layers=[1],
                              moe_intermediate_size=12, num_experts=6, num_experts_per_tok=2,
                              norm_topk_prob=True, rope_theta=1000000.0, rms_norm_eps=1e-6,
                              output_router_logits=False, router_aux_loss_coef=0.001,
                              use_sliding_window=False, sliding_window=None),
            "idle": [(0, 2), (2, 5)]},
        # The files have the form that transformers 5 writes without splitting experts; every second
        # layer is sparse, and weights are not renormalised.
        "qwen3_moe-fused": {
            "config": renamed(small, "qwen3_moe", "Qwen3MoeForCausalLM", num_hidden_layers=4,
                              decoder_sparse_step=2, mlp_only_layers=[], moe_intermediate_size=12,
                              num_local_experts=5, num_experts_per_tok=2, norm_topk_prob=False,
                              rope_parameters={"rope_type": "default", "rope_theta": 10000.0}),
            "idle": [(3, 0)], "fused": True},
        "mixtral": {
            "config": renamed(small, "mixtral", "MixtralForCausalLM", num_local_experts=5,
                              num_experts_per_tok=2, rope_theta=1000000.0, sliding_window=None,
                              output_router_logits=False, router_aux_loss_coef=0.02),
            "idle": [(1, 3)]},
        "olmoe": {
            "config": renamed(small, "olmoe", "OlmoeForCausalLM", num_experts=6,
                              num_experts_per_tok=3, norm_topk_prob=False, clip_qkv=None,
                              rope_theta=10000.0, pad_token_id=1),
            "idle": [(0, 1)]},
        "olmoe-clip": {
            "config": renamed(small, "olmoe", "OlmoeForCausalLM", num_experts=6,
                              num_experts_per_tok=3, norm_topk_prob=False, clip_qkv=0.75,
                              rope_theta=10000.0, pad_token_id=1),
            "idle": [(0, 1)]},
        # The clamp cuts often.
        "gpt_oss": {
            "config": renamed(small, "gpt_oss", "GptOssForCausalLM", head_dim=8,
                              attention_bias=True, num_local_experts=5, num_experts_per_tok=2,
                              experts_per_token=2, sliding_window=5, swiglu_limit=1.25,
                              layer_types=["sliding_attention", "full_attention"],
                              max_position_embeddings=4096, initial_context_length=1024,
                              rope_theta=150000.0, pad_token_id=0,
                              rope_scaling={"rope_type": "yarn", "factor": 4.0, "truncate": False,
                                            "beta_fast": 32.0, "beta_slow": 1.0,
                                            "original_max_position_embeddings": 1024}),
            "idle": [(1, 4)], "fused": True, "attention": ["eager", "flash"]},
        # The files are as published: the experts in MXFP4, everything else in bf16.
        "gpt_oss-mxfp4": {
            "config": renamed(small, "gpt_oss", "GptOssForCausalLM", hidden_size=32, head_dim=8,
                              intermediate_size=32, num_hidden_layers=1, attention_bias=True,
                              num_local_experts=4, num_experts_per_tok=2, experts_per_token=2,
                              sliding_window=5, layer_types=["sliding_attention"],
                              rope_theta=150000.0, pad_token_id=0, torch_dtype="bfloat16",
                              rope_scaling={"rope_type": "yarn", "factor": 4.0, "truncate": False,
                                            "beta_fast": 32.0, "beta_slow": 1.0,
                                            "original_max_position_embeddings": 16},
                              quantization_config={
                                  "quant_method": "mxfp4",
                                  "modules_to_not_convert": ["model.layers.*.self_attn",
                                                             "model.layers.*.mlp.router",
                                                             "model.embed_tokens", "lm_head"]}),
            "idle": [(0, 3)], "fused": True, "mxfp4": True},
        "qwen2_moe": {
            "config": renamed(small, "qwen2_moe", "Qwen2MoeForCausalLM", num_experts=5,
                              moe_intermediate_size=12, shared_expert_intermediate_size=20,
                              num_experts_per_tok=2, norm_topk_prob=False, decoder_sparse_step=1,
                              rope_theta=1000000.0, rms_norm_eps=1e-6),
            "idle": [(1, 1)]},
        # The files hold the experts fused, as on the hub; every layer has an expert for all tokens.
        "qwen3_5_moe_text": {
            "config": renamed(small, "qwen3_5_moe_text", "Qwen3_5MoeForCausalLM", **hybrid,
                              num_experts=5, num_experts_per_tok=2),
            "idle": [(0, 3)], "fused": True},
        "qwen3_5_moe": {
            "config": {**wrapper, "architectures": ["Qwen3_5MoeForConditionalGeneration"],
                       "model_type": "qwen3_5_moe",
                       "text_config": renamed(small, "qwen3_5_moe_text", "Qwen3_5MoeForCausalLM",
                                              **hybrid, num_experts=4, num_experts_per_tok=2),
                       "tie_word_embeddings": False,
                       "vision_config": {**wrapper["vision_config"],
                                         "model_type": "qwen3_5_moe_vision"}},
            "idle": [(1, 2)], "fused": True, "unused": {"mtp.fc.weight": [16, 32]}},
        # A dense layer lies between sparse ones, and weights are not renormalised.
        "qwen3_next": {
            "config": renamed(small, "qwen3_next", "Qwen3NextForCausalLM", **{
                **hybrid, "num_hidden_layers": 3}, mlp_only_layers=[1], decoder_sparse_step=1,
                              num_experts=5, num_experts_per_tok=2, norm_topk_prob=False),
            "idle": [(2, 1)], "unused": {"mtp.fc.weight": [16, 32]}},
        # Scores are sigmoids, one of two groups can be chosen from, and the choice is corrected.
        # The files also hold a part of the layer that predicts a second token.
        "glm4_moe": {
            "config": renamed(small, "glm4_moe", "Glm4MoeForCausalLM", head_dim=8,
                              num_hidden_layers=3, attention_bias=True, use_qk_norm=True,
                              partial_rotary_factor=0.5, rope_theta=10000.0, pad_token_id=0,
                              first_k_dense_replace=1, n_routed_experts=6, num_experts_per_tok=2,
                              moe_intermediate_size=12, n_shared_experts=2, n_group=2,
                              topk_group=1, norm_topk_prob=True, routed_scaling_factor=1.5,
                              num_nextn_predict_layers=1),
            "idle": [(1, 2)],
            "unused": {"model.layers.3.eh_proj.weight": [16, 32],
                       "model.layers.3.mlp.gate.weight": [6, 16]}},
        # Values are wider than keys, yarn scales scores and rotations, and queries have a latent.
        "deepseek_v3": {
            "config": renamed(small, "deepseek_v3", "DeepseekV3ForCausalLM",
                              num_key_value_heads=4, rope_theta=10000.0, pad_token_id=0,
                              q_lora_rank=10, kv_lora_rank=8, qk_nope_head_dim=6,
                              qk_rope_head_dim=4, v_head_dim=12, attention_bias=True,
                              rope_scaling={"type": "yarn", "factor": 4.0, "mscale": 1.0,
                                            "mscale_all_dim": 0.5, "beta_fast": 32,
                                            "beta_slow": 1,
                                            "original_max_position_embeddings": 16},
                              first_k_dense_replace=1, n_routed_experts=6, num_experts_per_tok=2,
                              moe_intermediate_size=12, n_shared_experts=1, n_group=2,
                              topk_group=1, norm_topk_prob=True, routed_scaling_factor=2.5),
            "idle": [(1, 4)]},
        # The queries have no latent, halves rotate, and values are narrower than keys.
        "deepseek_v3-plain": {
            "config": renamed(small, "deepseek_v3", "DeepseekV3ForCausalLM", num_hidden_layers=1,
                              num_key_value_heads=4, rope_theta=10000.0, pad_token_id=0,
                              q_lora_rank=None, kv_lora_rank=8, qk_nope_head_dim=6,
                              qk_rope_head_dim=4, v_head_dim=8, rope_interleave=False,
                              first_k_dense_replace=0, n_routed_experts=5, num_experts_per_tok=2,
                              moe_intermediate_size=12, n_shared_experts=1, n_group=1,
                              topk_group=1, norm_topk_prob=False, routed_scaling_factor=0.75),
            "idle": [(0, 4)]},
        # Experts run beside the MLP. The head is not tied and nothing is capped, because one
        # coordinate of every embedding is large.
        "gemma4_text-moe": {
            "config": renamed(small, "gemma4_text", "Gemma4ForCausalLM", **{
                **gemma4, "num_hidden_layers": 2, "tie_word_embeddings": False,
                "layer_types": ["sliding_attention", "full_attention"], "enable_moe_block": True,
                "num_experts": 5, "top_k_experts": 2, "moe_intermediate_size": 12}),
            "idle": [(1, 3)], "fused": True},
        # Every group can be chosen from, and weights are not renormalised.
        "glm4_moe-plain": {
            "config": renamed(small, "glm4_moe", "Glm4MoeForCausalLM", rope_theta=10000.0,
                              pad_token_id=0, first_k_dense_replace=0, n_routed_experts=5,
                              num_experts_per_tok=2, moe_intermediate_size=12, n_shared_experts=1,
                              norm_topk_prob=False, routed_scaling_factor=0.75),
            "idle": [(0, 4)]},
        # The last two layers read the keys of the first two, past a layer with experts, and have
        # MLPs of twice the width. Without inputs of each layer transformers 5.23 runs it only where
        # it returns hidden states.
        "gemma4_text-moe-shared": {
            "config": renamed(small, "gemma4_text", "Gemma4ForCausalLM", **{
                **gemma4, "num_hidden_layers": 4, "tie_word_embeddings": False,
                "layer_types": ["sliding_attention", "full_attention"] * 2,
                "enable_moe_block": True, "num_experts": 5, "top_k_experts": 2,
                "moe_intermediate_size": 12, "num_kv_shared_layers": 2,
                "use_double_wide_mlp": True, "intermediate_size": 16, "global_head_dim": 12,
                "attention_k_eq_v": False, "output_hidden_states": True}),
            "idle": [(1, 3)], "fused": True},
    }


class UnfitRouting(Exception):
    """Another rounding could choose another expert, or an expert is not as idle as it should be."""


def is_router(name):
    return re.search(r"\.((mlp|mixer)\.(gate|router)|router\.proj)\.weight$", name) is not None


def is_corrected(model):
    """Whether scores are sigmoids and a buffer corrects the choice."""
    return any(name.endswith("e_score_correction_bias") for name, _ in model.named_buffers())


def choice_gap(values, count):
    """The least distance between the last of `count` chosen values and the first other one,
    relative to the deviation of the values."""
    best = values.topk(count + 1, dim=-1).values
    return ((best[:, -2] - best[:, -1]).min() / best[best.isfinite()].std()).item()


def randomise_experts(model, idle, generator):
    """After all other weights are drawn: scores that are apart, and experts without a token."""
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        embedding = next(value for name, value in parameters.items()
                         if name.endswith(("embed_tokens.weight", "embeddings.weight")))
        embedding *= 4.0
        embedding[:, 0] += COMMON
        for name, parameter in parameters.items():
            if is_router(name):
                parameter *= 1.0 if is_corrected(model) else 3.0  # sigmoids must not all be 1
                parameter[:, 0] = 0.0
                layer = int(re.search(r"layers\.(\d+)\.", name)[1])
                for expert in [expert for at, expert in idle if at == layer]:
                    parameter[expert, 0] = IDLE
            elif name.endswith("sinks"):
                parameter.copy_(torch.randn(parameter.shape, generator=generator))
            elif name.endswith("experts.gate_up_proj"):
                parameter *= 2.0
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.copy_(torch.randn(buffer.shape, generator=generator) * 0.1)


def quantise_experts(model, generator):
    """Draws the experts in MXFP4, and everything else as bf16 holds it; the files' tensors."""
    files = {}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if not re.search(r"experts\.(gate_up|down)_proj$", name):
                parameter.copy_(parameter.to(torch.bfloat16).float())
                continue
            experts, columns, rows = parameter.shape
            shape = (experts, rows, columns // 32)
            blocks = torch.randint(0, 256, (*shape, 16), dtype=torch.uint8, generator=generator)
            scales = torch.randint(123, 126, shape, dtype=torch.uint8, generator=generator)
            parameter.copy_(convert_moe_packed_tensors(blocks, scales).float())
            files[name] = {f"{name}_blocks": blocks, f"{name}_scales": scales}
    return files


class Routing:
    """Watches a model's routers while it runs: how near a choice was, and which experts had one."""

    def __init__(self, model):
        self.margin = float("inf")
        self.counts = {}
        for name, module in model.named_modules():
            beside = hasattr(module, "per_expert_scale")  # Gemma 4's router is more than a matrix
            if beside or (hasattr(module, "top_k") and is_router(name + ".weight")):
                layer = int(re.search(r"layers\.(\d+)\.", name)[1])
                module.register_forward_hook(
                    lambda module, _, output, layer=layer: self.watch(layer, module, output))

    def watch(self, layer, module, output):
        logits, indices = output[0].detach().float(), output[2]
        sizes = module
        if hasattr(module, "per_expert_scale"):
            logits, sizes = logits.log(), SimpleNamespace(
                top_k=module.config.top_k_experts, num_experts=module.config.num_experts)
        if hasattr(module, "e_score_correction_bias"):
            values = logits.sigmoid() + module.e_score_correction_bias
            if module.topk_group < module.num_group:
                grouped = values.view(len(values), module.num_group, -1)
                sums = grouped.topk(2, dim=-1).values.sum(-1)
                self.margin = min(self.margin, choice_gap(sums, module.topk_group))
                least = sums.topk(module.topk_group, dim=-1).values[:, -1:]
                values = grouped.masked_fill((sums < least)[..., None], float("-inf")).flatten(1)
        else:
            values = logits
        self.margin = min(self.margin, choice_gap(values, sizes.top_k))
        counts = torch.bincount(indices.flatten(), minlength=sizes.num_experts)
        self.counts[layer] = self.counts.get(layer, 0) + counts

    def check(self, least, idle):
        found = [(layer, expert) for layer, counts in sorted(self.counts.items())
                 for expert in range(len(counts)) if counts[expert] == 0]
        if self.margin < least or found != sorted(idle):
            raise UnfitRouting


def in_files(case, name, tensor):
    """A tensor of the model as (name, tensor) pairs of the files."""
    if "idle" not in case:
        return [(name, tensor)]
    mixtral = case["config"]["model_type"] == "mixtral"
    if mixtral:
        name = name.replace(".mlp.", ".block_sparse_moe.")
    if case.get("fused") or ".experts." not in name:
        return [(name, tensor)]
    prefix = name[:name.index(".experts.")] + ".experts."
    gate, down, up = ("w1", "w2", "w3") if mixtral else ("gate_proj", "down_proj", "up_proj")
    pairs = []
    for expert, matrix in enumerate(tensor):
        if name.endswith("down_proj"):
            pairs.append((f"{prefix}{expert}.{down}.weight", matrix))
        elif not name.endswith("gate_up_proj"):  # Nemotron-H has no gates
            pairs.append((f"{prefix}{expert}.{up}.weight", matrix))
        else:
            halves = matrix.chunk(2, dim=0)
            pairs.append((f"{prefix}{expert}.{gate}.weight", halves[0]))
            pairs.append((f"{prefix}{expert}.{up}.weight", halves[1]))
    return [(name, part.contiguous()) for name, part in pairs]
