#!/usr/bin/env python3
"""Makes tests/parity/golden_nf4: a model that transformers writes with bitsandbytes, and PEFT's run
over it.

Needs scripts/dev/venv and bitsandbytes 0.50.2 (its CPU path). The model is golden/llama in bf16, in
NF4 with double quantisation. PEFT trains a LoRA adapter in fp32 over the values of the written
directory, which are level times scale, rounded to bf16; golden.json has its losses. The scales and
levels are bitsandbytes'; the products are taken here, because its dequantize_4bit on a CPU gives
other values where a row is no multiple of a block (0.50.2, rows of 16 and 48).
"""
import json
import shutil
import sys

sys.dont_write_bytecode = True
import torch
from bitsandbytes import functional
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

import make_golden
from make_adapter_golden import write_adapter

ROOT = make_golden.ROOT.parent / "golden_nf4"
BASE = make_golden.ROOT / "llama"
LEARNING_RATE = 1e-2


def write_packed():
    quantisation = BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16)
    model = AutoModelForCausalLM.from_pretrained(
        BASE, dtype=torch.bfloat16, quantization_config=quantisation, device_map="cpu")
    model.save_pretrained(ROOT)
    (ROOT / "generation_config.json").unlink(missing_ok=True)


def values_of(files, name):
    """A parameter of the written directory, in bf16."""
    if name + ".absmax" not in files:
        return files[name].bfloat16()
    state = functional.QuantState.from_dict(
        {key.removeprefix(name + "."): tensor for key, tensor in files.items()
         if key.startswith(name + ".")}, device=torch.device("cpu"))
    scales = functional.dequantize_blockwise(state.absmax, state.state2) + state.offset
    pairs = files[name].flatten().int()
    levels = state.code[torch.stack([pairs >> 4, pairs & 15], 1).flatten()]
    return (levels.view(-1, 64) * scales[:, None]).view(state.shape).bfloat16()


def main():
    shutil.rmtree(ROOT, ignore_errors=True)
    ROOT.mkdir()
    write_packed()
    base = AutoModelForCausalLM.from_pretrained(
        BASE, dtype=torch.float32, attn_implementation="eager").eval()
    files = load_file(ROOT / "model.safetensors")
    with torch.no_grad():
        for name, parameter in base.named_parameters():
            parameter.copy_(values_of(files, name))
    torch.manual_seed(5000)
    model = get_peft_model(base, LoraConfig(task_type="CAUSAL_LM", r=4, lora_alpha=8,
                                            lora_dropout=0.0, target_modules="all-linear"))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".lora_B." in name:
                parameter.normal_(std=0.05)
    model.peft_config["default"].base_model_name_or_path = str(
        ROOT.relative_to(make_golden.ROOT.parents[2]))
    write_adapter(model, ROOT / "adapter")
    rows = [json.loads(line) for line in (BASE / "train.jsonl").open()]
    adamw = {**make_golden.adamw_of(make_golden.CASES["llama"]), "lr": LEARNING_RATE}
    losses, norms = make_golden.train(model.eval(), rows, 0.0, adamw)
    (ROOT / "golden.json").write_text(
        json.dumps({"lr": LEARNING_RATE, "loss": losses, "grad_norm": norms}, indent=1) + "\n")
    print(losses, norms)


if __name__ == "__main__":
    main()
