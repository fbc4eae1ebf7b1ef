#!/usr/bin/env python3
"""Makes tests/hf/fp8: matrices in block-scaled fp8, and their bf16 values as torch makes them.

Needs torch 2.11 (CPU) and transformers 5. Every number of e4m3 occurs. Where blocks divide the
shape, transformers' own rule gives the values; elsewhere it reads no file. Prints the digests of
tests/base/fp8_test.cpp.
"""
import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers.integrations.finegrained_fp8 import Fp8Dequantize, Fp8Quantize
from transformers.utils.quantization_config import FineGrainedFP8Config

ROOT = Path(__file__).parent / "fp8"
CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16",
          "quantization_config": {"activation_scheme": "dynamic", "fmt": "e4m3",
                                  "modules_to_not_convert": ["lm_head"], "quant_method": "fp8",
                                  "weight_block_size": [128, 128]},
          "vocab_size": 257}
BLOCK = 128


def draw(shape, scale_dtype, generator):
    codes = torch.randint(0, 254, shape, generator=generator)
    codes += (codes >= 127).to(codes.dtype)  # 127 and 255 are no numbers
    flat = codes.view(-1)
    every = [code for code in range(255) if code != 127]
    flat[:min(len(every), len(flat))] = torch.tensor(every)[:len(flat)]
    grid = [*shape[:-2], -(-shape[-2] // BLOCK), -(-shape[-1] // BLOCK)]
    if scale_dtype == torch.uint8:
        scales = torch.randint(110, 130, grid, generator=generator).to(torch.uint8)
    else:
        scales = torch.rand(grid, generator=generator) * 1e-3 + 1e-5
        if scale_dtype == torch.float8_e8m0fnu:
            scales = scales.to(torch.float32).to(scale_dtype)
        else:
            scales = scales.to(scale_dtype)
    return codes.to(torch.uint8).view(torch.float8_e4m3fn), scales


def values_of(codes, scales):
    wide = (torch.exp2(scales.to(torch.float32) - 127.0) if scales.dtype == torch.uint8
            else scales.to(torch.float32))
    rows, columns = codes.shape[-2:]
    each = wide.repeat_interleave(BLOCK, -2)[..., :rows, :]
    each = each.repeat_interleave(BLOCK, -1)[..., :columns]
    values = (codes.to(torch.float32) * each).to(torch.bfloat16)
    if rows % BLOCK == 0 and columns % BLOCK == 0:
        published = Fp8Dequantize(None)._dequantize_one(codes, scales, torch.bfloat16)
        assert torch.equal(values, published)
    return values


def digest(tensor):
    value = 0xcbf29ce484222325
    for byte in tensor.contiguous().view(-1).view(torch.uint8).tolist():
        value = ((value ^ byte) * 0x100000001b3) % 2**64
    return f"{value:#018x}"


def example(count):
    index = torch.arange(count, dtype=torch.int64)
    draws = ((index * 7919 + 13) % 65536 - 32768).to(torch.float64)
    return (draws * (64 + (index // 64 * 37) % 101).to(torch.float64) / 67108864.0).float()


def print_digests():
    """Packs the matrices of tests/base/fp8_test.cpp as transformers' quantiser does."""
    factors = 1.0 + torch.arange(64, dtype=torch.float64).repeat_interleave(128) / 37.0
    many = (example(128 * 8192).reshape(128, 8192).double() * factors).float()
    for name, scale_fmt, values in (("float", "float", example(256 * 128).reshape(128, 256)),
                                    ("ue8m0", "ue8m0", example(256 * 128).reshape(128, 256)),
                                    ("many", "float", many)):
        class Quantiser:
            quantization_config = FineGrainedFP8Config(scale_fmt=scale_fmt)

        packed = Fp8Quantize(Quantiser())._quantize_one("w.weight", values)
        scales, codes = packed["w.weight_scale_inv"].float(), packed["w.weight"]
        print(name, "scales", digest(scales), "codes", digest(codes))
        if name == "float":
            unpacked = Fp8Dequantize(None)._dequantize_one(codes, scales, torch.bfloat16)
            print(name, "values", digest(unpacked.float()))


def main():
    ROOT.mkdir(exist_ok=True)
    generator = torch.Generator().manual_seed(1)
    layer = "model.layers.0."
    shapes = {f"{layer}mlp.up_proj.weight": ([131, 150], torch.float32),
              f"{layer}mlp.experts.down_proj": ([2, 5, 140], torch.bfloat16),
              f"{layer}mlp.down_proj.weight": ([3, 129], torch.uint8),
              f"{layer}mlp.gate_proj.weight": ([129, 2], torch.float8_e8m0fnu),
              f"{layer}self_attn.q_proj.weight": ([128, 128], torch.float32)}
    codes, scales, expected = {}, {}, {}
    for name, (shape, scale_dtype) in shapes.items():
        codes[name], drawn = draw(shape, scale_dtype, generator)
        scales[f"{name}_scale_inv"] = drawn
        expected[name] = values_of(codes[name], drawn)
    codes["lm_head.weight"] = torch.randn(7, 4, generator=generator).to(torch.bfloat16)
    up = f"{layer}mlp.up_proj.weight_scale_inv"
    files = {"model-00001-of-00002.safetensors": codes | {up: scales.pop(up)},
             "model-00002-of-00002.safetensors": scales}
    weight_map, size = {}, 0
    for file, tensors in files.items():
        save_file(tensors, ROOT / file, metadata={"format": "pt"})
        weight_map.update({name: file for name in tensors})
        size += sum(value.numel() * value.element_size() for value in tensors.values())
    index = {"metadata": {"total_size": size}, "weight_map": weight_map}
    (ROOT / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")
    (ROOT / "config.json").write_text(json.dumps(CONFIG, indent=2) + "\n")
    (ROOT / "expected").mkdir(exist_ok=True)
    save_file(expected, ROOT / "expected" / "model.safetensors")
    (ROOT / "expected" / "config.json").write_text('{"model_type": "llama"}\n')
    print_digests()


if __name__ == "__main__":
    main()
