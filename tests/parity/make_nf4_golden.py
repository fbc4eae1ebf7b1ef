#!/usr/bin/env python3
"""Makes tests/parity/golden_nf4: a model that transformers writes with bitsandbytes, and PEFT's run
over it.

Needs scripts/dev/venv and bitsandbytes 0.50.2 (its CPU path). The model is golden/llama in bf16, in
NF4 with double quantisation. PEFT trains a LoRA adapter in fp32 over the values that transformers'
dequantize() makes of the written directory; golden.json has its losses.
"""
import json
import shutil
import sys

sys.dont_write_bytecode = True
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

import make_golden

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


def main():
    shutil.rmtree(ROOT, ignore_errors=True)
    ROOT.mkdir()
    write_packed()
    packed = AutoModelForCausalLM.from_pretrained(
        ROOT, dtype=torch.bfloat16, device_map="cpu", attn_implementation="eager")
    base = packed.dequantize().float().eval()
    assert not any(hasattr(weight, "quant_state") for weight in base.parameters())
    base.is_loaded_in_4bit = base.is_quantized = False
    torch.manual_seed(5000)
    model = get_peft_model(base, LoraConfig(task_type="CAUSAL_LM", r=4, lora_alpha=8,
                                            lora_dropout=0.0, target_modules="all-linear"))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".lora_B." in name:
                parameter.normal_(std=0.05)
    model.peft_config["default"].base_model_name_or_path = str(
        ROOT.relative_to(make_golden.ROOT.parents[2]))
    model.save_pretrained(ROOT / "adapter", save_embedding_layers=False)
    (ROOT / "adapter" / "README.md").unlink()
    path = ROOT / "adapter" / "adapter_config.json"
    config = json.loads(path.read_text())
    config["target_modules"].sort()
    path.write_text(json.dumps(config, indent=2, sort_keys=True))
    rows = [json.loads(line) for line in (BASE / "train.jsonl").open()]
    adamw = {**make_golden.adamw_of(make_golden.CASES["llama"]), "lr": LEARNING_RATE}
    losses, norms = make_golden.train(model.eval(), rows, 0.0, adamw)
    (ROOT / "golden.json").write_text(
        json.dumps({"lr": LEARNING_RATE, "loss": losses, "grad_norm": norms}, indent=1) + "\n")
    print(losses, norms)


if __name__ == "__main__":
    main()
