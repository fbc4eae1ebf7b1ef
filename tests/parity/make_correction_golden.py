#!/usr/bin/env python3
"""Makes golden_correction.json: corrections of routers' choices that bf16 cannot tell apart, and
the experts that transformers' run in bf16 chooses with them.

Every correction is near 64, where bf16 has steps of 0.5, and the scores lie between 0 and 1. So a
run that rounds the corrections chooses by the scores alone. transformers keeps them in fp32.
"""
import json
from pathlib import Path

import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM

from expert_cases import Routing

ROOT = Path(__file__).parent
CASES = ("glm4_moe", "deepseek_v3", "nemotron_h-moe")
CORRECTION = ".e_score_correction_bias"
ROWS = 2
# The scores of two programs in bf16 differ by less, relative to the deviation of all scores.
MARGIN = 0.02


def run_of(name, corrections):
    """The tokens of each expert by layer, and how near a choice was."""
    directory = ROOT / "golden_moe" / name
    model = AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.bfloat16, attn_implementation="eager",
        experts_implementation="eager").eval()
    buffers = [buffer for key, buffer in model.named_buffers() if key.endswith(CORRECTION)]
    with torch.no_grad():
        for buffer, values in zip(buffers, corrections.values(), strict=True):
            assert buffer.dtype == torch.float32
            buffer.copy_(torch.tensor(values))
    routing = Routing(model)
    rows = [json.loads(line) for line in (directory / "train.jsonl").read_text().splitlines()]
    with torch.no_grad():
        for row in rows[:ROWS]:
            model(input_ids=torch.tensor([row["input_ids"]]))
    return [counts.tolist() for _, counts in sorted(routing.counts.items())], routing.margin


def make_case(name):
    directory = ROOT / "golden_moe" / name
    config = json.loads((directory / "config.json").read_text())
    with safe_open(directory / "model.safetensors", "pt") as file:  # by layer
        names = sorted(name for name in file.keys() if name.endswith(CORRECTION))
    seed = 0
    while True:
        generator = torch.Generator().manual_seed(seed)
        noise = torch.randn(len(names), config["n_routed_experts"], generator=generator)
        corrections = {key: (64.0 + 0.1 * values).tolist() for key, values in zip(names, noise)}
        load, margin = run_of(name, corrections)
        rounded = {key: torch.tensor(values).bfloat16().float().tolist()
                   for key, values in corrections.items()}
        rounded_load, _ = run_of(name, rounded)
        if margin >= MARGIN and all(a != b for a, b in zip(load, rounded_load)):
            break
        seed += 1
    return {"rows": ROWS, "corrections": corrections, "load": load}


def main():
    torch.set_num_threads(1)
    golden = {name: make_case(name) for name in CASES}
    (ROOT / "golden_correction.json").write_text(json.dumps(golden, indent=1) + "\n")


if __name__ == "__main__":
    main()
