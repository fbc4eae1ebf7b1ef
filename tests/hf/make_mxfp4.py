#!/usr/bin/env python3
"""Makes tests/hf/mxfp4: tensors in MXFP4, and what transformers makes of them in bf16.

Needs torch 2.11 (CPU) and transformers 5. Every exponent of finite values and every pair of values
occurs. The blocks lie in one file and the scales of `other` in another, as an index allows.
"""
import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

ROOT = Path(__file__).parent / "mxfp4"
CONFIG = {"architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss",
          "torch_dtype": "bfloat16",
          "quantization_config": {"modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"],
                                  "quant_method": "mxfp4"},
          "vocab_size": 257}
ALL = "model.layers.0.mlp.experts.gate_up_proj"
OTHER = "model.layers.0.mlp.experts.down_proj"


def main():
    ROOT.mkdir(exist_ok=True)
    generator = torch.Generator().manual_seed(1)
    # The first 253 groups have the scales 0 .. 252, the blocks of the first 16 groups every byte.
    blocks = torch.randint(0, 256, (3, 29, 3, 16), dtype=torch.uint8, generator=generator)
    blocks.view(-1)[:256] = torch.arange(256)
    scales = torch.randint(100, 140, (3, 29, 3), dtype=torch.uint8, generator=generator)
    scales.view(-1)[:253] = torch.arange(253)[torch.randperm(253, generator=generator)]
    other = torch.randint(0, 256, (2, 33, 2, 16), dtype=torch.uint8, generator=generator)
    other_scales = torch.randint(110, 130, (2, 33, 2), dtype=torch.uint8, generator=generator)
    files = {
        "model-00001-of-00002.safetensors": {
            f"{ALL}_blocks": blocks, f"{ALL}_scales": scales, f"{OTHER}_blocks": other,
            "lm_head.weight": torch.randn(7, 4, generator=generator).to(torch.bfloat16)},
        "model-00002-of-00002.safetensors": {f"{OTHER}_scales": other_scales},
    }
    weight_map, size = {}, 0
    for file, tensors in files.items():
        save_file(tensors, ROOT / file, metadata={"format": "pt"})
        weight_map.update({name: file for name in tensors})
        size += sum(value.numel() * value.element_size() for value in tensors.values())
    index = {"metadata": {"total_size": size}, "weight_map": weight_map}
    (ROOT / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")
    (ROOT / "config.json").write_text(json.dumps(CONFIG, indent=2) + "\n")
    expected = {ALL: convert_moe_packed_tensors(blocks, scales),
                OTHER: convert_moe_packed_tensors(other, other_scales)}
    assert all(value.isfinite().all() for value in expected.values())
    (ROOT / "expected").mkdir(exist_ok=True)
    save_file(expected, ROOT / "expected" / "model.safetensors")
    (ROOT / "expected" / "config.json").write_text('{"model_type": "gpt_oss"}\n')


if __name__ == "__main__":
    main()
