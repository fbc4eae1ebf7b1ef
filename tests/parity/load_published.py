#!/usr/bin/env python3
"""Loads exports in the published form with transformers, and compares what both make of them.

Needs scripts/dev/venv. Usage: load_published.py LONGSHORE. LONGSHORE is the program. A gpt_oss in
MXFP4 (tests/parity/golden_mxfp4) and a small Qwen3 in block-scaled fp8, which transformers' own
quantiser packs here, are trained in full for three steps and exported with
checkpoint.export_format = "published"; so is the Qwen3 with a merged LoRA adapter and with scales
that are powers of two. For each, transformers must load the export (unpacked, since the CPU has no
kernels for either) without a missing or unexpected tensor, and give the loss that `longshore eval`
gives for it; the size of the weights must be within 1 % of the base's; and config.json must be the
base's. In fp8 every matrix that training changed must be, to the bit, what transformers' quantiser
makes of the master weights (`longshore export --fp32`). In MXFP4 every group must be that of the
base, or what a search over all numbers makes of the masters.
"""
import json
import sys
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import (AutoModelForCausalLM, FineGrainedFP8Config, Mxfp4Config, Qwen3Config,
                          Qwen3ForCausalLM)
from transformers import logging as transformers_logging
from transformers.integrations.finegrained_fp8 import Fp8Dequantize, Fp8Quantize

from load_exports import directory_of, longshore, loss_of_longshore

TOLERANCE = 1e-5  # relative; both sum in fp32, in other orders
NUMBERS = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], dtype=torch.float64)


class Quantiser:
    def __init__(self, scale_fmt):
        self.quantization_config = FineGrainedFP8Config(scale_fmt=scale_fmt)


def write_qwen3(to, scale_fmt):
    """A Qwen3 as its makers publish it in fp8: matrices of the layers packed, the rest in bf16."""
    torch.manual_seed(3)
    config = Qwen3Config(vocab_size=257, hidden_size=128, intermediate_size=256, head_dim=32,
                         num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4,
                         max_position_embeddings=64, tie_word_embeddings=False)
    tensors = {}
    for name, value in Qwen3ForCausalLM(config).state_dict().items():
        if value.ndim == 2 and name.startswith("model.layers."):
            tensors |= Fp8Quantize(Quantiser(scale_fmt))._quantize_one(name, value)
        else:
            tensors[name] = value.to(torch.bfloat16)
    # No type of 8 bits for scales: DeepSeek V3.1 has powers of two in fp32.
    tensors = {name: value.float() if name.endswith("_scale_inv") else value.contiguous()
               for name, value in tensors.items()}
    to.mkdir()
    save_file(tensors, to / "model.safetensors", metadata={"format": "pt"})
    described = config.to_dict() | {
        "architectures": ["Qwen3ForCausalLM"], "dtype": "bfloat16",
        "quantization_config": {"quant_method": "fp8", "activation_scheme": "dynamic",
                                "weight_block_size": [128, 128], "fmt": "e4m3",
                                "modules_to_not_convert": ["lm_head"]}}
    if scale_fmt == "ue8m0":
        described["quantization_config"]["scale_fmt"] = scale_fmt
    (to / "config.json").write_text(json.dumps(described, indent=1))


def loss_of_transformers(directory, rows, unpacked):
    model, report = AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.bfloat16, attn_implementation="eager", output_loading_info=True,
        quantization_config=unpacked)
    wrong = {key: sorted(names) for key, names in report.items() if names}
    if wrong:
        sys.exit(f"{directory}: {wrong}")
    model, total, trained = model.float().eval(), 0.0, 0
    with torch.no_grad():
        for row in rows:
            targets = torch.tensor(row.get("labels", row["input_ids"]))[1:]
            logits = model(input_ids=torch.tensor([row["input_ids"]])).logits[0, :-1]
            total += torch.nn.functional.cross_entropy(logits.float(), targets, ignore_index=-100,
                                                       reduction="sum").item()
            trained += int((targets != -100).sum())
    return total / trained


def same(one, other):
    return torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))


def wrong_in_fp8(base, written, masters, scale_fmt):
    """The matrices whose codes or scales are not those of transformers, and how many are new."""
    wrong, packed = [], 0
    for name, codes in written.items():
        scale = name + "_scale_inv"
        if scale not in written:
            continue
        before = Fp8Dequantize(None)._dequantize_one(base[name], base[scale], torch.bfloat16)
        expected = Fp8Quantize(Quantiser(scale_fmt))._quantize_one(name, masters[name])
        blocks = [(slice(r, r + 128), slice(c, c + 128)) for r in range(0, codes.shape[0], 128)
                  for c in range(0, codes.shape[1], 128)]
        for rows, columns in blocks:
            kept = torch.equal(before.float()[rows, columns], masters[name][rows, columns])
            packed += not kept
            at = rows.start // 128, columns.start // 128
            of = (base[name], base[scale]) if kept else (expected[name], expected[scale].float())
            if not (same(codes[rows, columns], of[0][rows, columns])
                    and torch.equal(written[scale][at], of[1][at].float())):
                wrong.append((name, at))
    return wrong, packed


def groups_of(blocks, scales):
    """Values [experts, rows, groups, 32] of MXFP4."""
    codes = torch.stack([blocks & 15, blocks >> 4], -1).flatten(-2).long()
    values = NUMBERS[codes & 7] * torch.where(codes > 7, -1.0, 1.0)
    return torch.ldexp(values, scales.to(torch.int32)[..., None] - 127)


def wrong_in_mxfp4(base, written, masters):
    wrong, packed = [], 0
    for name in [name for name in written if name.endswith("_blocks")]:
        plain, scales = name.removesuffix("_blocks"), name.removesuffix("_blocks") + "_scales"
        trained = masters[plain].double().transpose(1, 2)
        trained = trained.reshape(*trained.shape[:2], -1, 32)
        kept = (trained == groups_of(base[name], base[scales])).all(-1)
        largest = trained.abs().amax(-1)
        exponent = torch.where(largest > 0, torch.frexp(largest).exponent - 1 - 2, -127)
        quotient = torch.ldexp(trained, -exponent[..., None])
        distance = (quotient.abs()[..., None] - NUMBERS).abs()
        # Odd codes lose a tie; the order of the numbers decides nothing else.
        code = (distance * 2 + (torch.arange(8) % 2) * 2.0**-40).argmin(-1)
        code = code + 8 * quotient.signbit()
        blocks = (code[..., 0::2] | code[..., 1::2] << 4).to(torch.uint8)
        for found, of, new in ((written[name], base[name], blocks),
                               (written[scales], base[scales], (exponent + 127).to(torch.uint8))):
            mask = kept[..., None] if found.ndim == 4 else kept
            if not torch.equal(found, torch.where(mask, of, new)):
                wrong.append(name)
        packed += int((~kept).sum())
    return wrong, packed


def check(program, name, model, rows, keys, unpacked, compare, folder):
    run = folder / f"run-{name}"
    run.mkdir()
    (run / "empty.toml").touch()
    adapters = any("adapter.kind" in key for key in keys)
    longshore(program, "train", str(run / "empty.toml"), f'--model.path="{model}"',
              f'--data.train=["{rows}"]', f'--data.eval=["{rows}"]', "--data.packing=false",
              "--data.max_tokens=40", "--train.steps=3", "--train.sequences_per_step=3",
              "--optimizer.lr=0.01", "--schedule.name=constant", "--precision.compute=fp32",
              f"--checkpoint.export={'merged' if adapters else 'end'}",
              "--checkpoint.export_format=published", f'--run.dir="{run}"',
              f'--data.cache="{run}/cache"', *keys)
    run_file, export, fp32 = str(run / "config.toml"), run / "hf", run / "fp32"
    longshore(program, "export", run_file, "--fp32", "--to", str(fp32),
              *(["--merged"] if adapters else []))
    of = [load_file(path / "model.safetensors") for path in (Path(model), export, fp32)]
    wrong, packed = compare(*of)
    sizes = [(path / "model.safetensors").stat().st_size for path in (Path(model), export)]
    alike = (export / "config.json").read_bytes() == (Path(model) / "config.json").read_bytes()
    kept = sorted(of[0]) == sorted(of[1]) and all(
        of[0][key].dtype == of[1][key].dtype and of[0][key].shape == of[1][key].shape
        for key in of[0])
    theirs = loss_of_transformers(str(export), [json.loads(line) for line in Path(rows).open()],
                                  unpacked)
    ours = loss_of_longshore(program, run_file, str(export))
    before = loss_of_longshore(program, run_file, "model")
    same_size = abs(sizes[0] - sizes[1]) <= sizes[0] / 100
    good = not wrong and packed > 0 and alike and kept and same_size
    good = good and abs(theirs - ours) <= TOLERANCE * ours and abs(before - theirs) > 1e-3 * before
    print(f"{name:12} transformers {theirs:.6f}, eval of the export {ours:.6f}, before training "
          f"{before:.6f}; {packed} blocks packed again, {len(wrong)} of them otherwise; "
          f"{sizes[1]} bytes, base {sizes[0]}: {'as it should' if good else 'WRONG'}")
    return good


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    program, results = sys.argv[1], []
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work)
        gpt_oss = directory_of("gpt_oss-mxfp4")
        rows = Path(gpt_oss) / "train.jsonl"
        results.append(check(program, "gpt_oss", gpt_oss, rows, [], Mxfp4Config(dequantize=True),
                             wrong_in_mxfp4, folder))
        for name, scale_fmt, keys in (
                ("qwen3", "float", []), ("qwen3-ue8m0", "ue8m0", []),
                ("qwen3-lora", "float", ["--adapter.kind=lora", '--adapter.targets=["q_proj"]'])):
            model = folder / f"model-{name}"
            write_qwen3(model, scale_fmt)
            results.append(check(
                program, name, model, rows, keys, FineGrainedFP8Config(dequantize=True),
                lambda *of, fmt=scale_fmt: wrong_in_fp8(*of, fmt), folder))
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
