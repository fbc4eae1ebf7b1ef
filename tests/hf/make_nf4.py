#!/usr/bin/env python3
"""Makes tests/hf/nf4: a random model that transformers packs and writes with bitsandbytes.

Needs scripts/dev/venv and bitsandbytes 0.50.2 (its CPU path). The directories double and single are
with and without double quantisation. expected.json in them has the digest of each matrix that
bitsandbytes' dequantize_4bit gives in bf16. The larger matrices have two groups of scales, and a
last block of 16 values.
"""
import json
import shutil
import sys
from pathlib import Path

sys.dont_write_bytecode = True
import torch
from bitsandbytes.functional import dequantize_4bit
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, LlamaConfig, LlamaForCausalLM

ROOT = Path(__file__).parent / "nf4"
CONFIG = LlamaConfig(vocab_size=31, hidden_size=60, intermediate_size=300, num_hidden_layers=1,
                     num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=64,
                     bos_token_id=0, eos_token_id=1, tie_word_embeddings=False)


def digest(tensor):
    value = 0xcbf29ce484222325
    for byte in tensor.contiguous().view(-1).view(torch.uint8).tolist():
        value = ((value ^ byte) * 0x100000001b3) % 2**64
    return f"{value:#018x}"


def main():
    torch.manual_seed(1)
    plain = ROOT / "plain"
    LlamaForCausalLM(CONFIG).to(torch.bfloat16).save_pretrained(plain)
    for name, double in {"double": True, "single": False}.items():
        quantisation = BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=double,
            bnb_4bit_compute_dtype=torch.bfloat16)
        model = AutoModelForCausalLM.from_pretrained(
            plain, dtype=torch.bfloat16, quantization_config=quantisation, device_map="cpu")
        shutil.rmtree(ROOT / name, ignore_errors=True)
        model.save_pretrained(ROOT / name)
        digests = {}
        for parameter, weight in model.named_parameters():
            if hasattr(weight, "quant_state"):
                assert weight.quant_state.dtype == torch.bfloat16
                values = dequantize_4bit(weight.data, weight.quant_state)
                digests[parameter] = digest(values.to(torch.bfloat16).float())
        assert len(digests) == 7
        (ROOT / name / "expected.json").write_text(json.dumps(digests, indent=2) + "\n")
        (ROOT / name / "generation_config.json").unlink()
    shutil.rmtree(plain)


if __name__ == "__main__":
    main()
