#!/usr/bin/env python3
"""Makes tests/parity/golden_weighted: losses with numbers for each token, by PyTorch in fp64.

Needs scripts/dev/venv. Usage: make_weighted_golden.py [case ...]; without arguments all cases.
Every case is a directory:

  rows.jsonl          rows of token ids with their numbers
  golden.json         the model, the loss and its settings, those of the optimizer, and the loss,
                      gradient norm and metrics of each of 20 steps
  golden.safetensors  final.<name>  weights after the run, rounded to fp32

A step's loss is, over its rows of one sequence each:
  sft     sum(weight * nll) / sum(weight)
  policy  sum(-min(r * A, clip(r, 1 - low, 1 + high) * A)) / tokens, r = exp(logp - old_logp)
A run that starts 1e-7 away must end within 1e-5: no token may be so near a clip that rounding
decides.
"""
import json
import random
import shutil
import sys

sys.dont_write_bytecode = True
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

import make_golden

ROOT = make_golden.ROOT.parent / "golden_weighted"
STEPS = 20
ADAMW = {"lr": 2e-3, "betas": [0.9, 0.95], "eps": 1e-4, "weight_decay": 0.0}
CASES = {
    "sft": {"base": "llama", "loss": "sft", "seed": 1, "sequences_per_step": 3},
    "policy": {"base": "llama", "loss": "policy", "seed": 2, "sequences_per_step": 3,
               "lr": 5e-4, "policy": {"clip_low": 0.2, "clip_high": 0.3}},
}


def load(case):
    return AutoModelForCausalLM.from_pretrained(
        make_golden.ROOT / case["base"], dtype=torch.float32, attn_implementation="eager").double()


def adamw_of(case):
    return {**ADAMW, "lr": case.get("lr", ADAMW["lr"])}


def targets_of(row):
    return torch.tensor(row.get("labels", row["input_ids"]))[1:]


def logps_of(model, row):
    """Log-probabilities of the trained tokens, in order."""
    targets = targets_of(row)
    logits = model(input_ids=torch.tensor([row["input_ids"]])).logits[0, :-1]
    logps = torch.log_softmax(logits, -1).gather(1, targets.clamp_min(0)[:, None])[:, 0]
    return logps[targets != -100]


def at_trained(row, values):
    """Values of the trained tokens: given for each token, or for each trained one."""
    trained = targets_of(row) != -100
    values = torch.tensor(values, dtype=torch.float64)
    return values[1:][trained] if len(values) == len(row["input_ids"]) else values


def weights_of(row):
    weights = at_trained(row, row.get("weights", [1.0] * len(row["input_ids"])))
    return weights * row.get("weight", 1.0)


def make_rows(case):
    chance = random.Random(case["seed"])
    lines = (make_golden.ROOT / case["base"] / "train.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines][:9]
    model = load(case)
    for index, row in enumerate(rows):
        trained = int((targets_of(row) != -100).sum())
        if case["loss"] == "sft":
            if index % 3 != 0:
                row["weight"] = round(chance.uniform(0.2, 3.0), 3)
            if index % 2 == 0:
                row["weights"] = [chance.choice([0.0, 0.5, 1.0, round(chance.uniform(0, 4), 3)])
                                  for _ in row["input_ids"]]
            continue
        if index % 2 == 0:
            row["advantage"] = round(chance.uniform(-2, 2), 3)
        else:
            row["advantages"] = [round(chance.uniform(-2, 2), 3) for _ in range(trained)]
        with torch.no_grad():
            row["old_logps"] = [round(logp + chance.gauss(0, 0.25), 4)
                                for logp in logps_of(model, row).tolist()]
    return rows


def policy_terms(case, row, logps):
    """The losses of the trained tokens, which ones the clip holds, and their ratios."""
    low, high = case["policy"]["clip_low"], case["policy"]["clip_high"]
    if "advantage" in row:
        advantages = torch.full_like(logps, row["advantage"])
    else:
        advantages = at_trained(row, row["advantages"])
    ratio = (logps - at_trained(row, row["old_logps"])).exp()
    losses = -torch.min(ratio * advantages, ratio.clamp(1 - low, 1 + high) * advantages)
    held = ((ratio < 1 - low) & (advantages < 0)) | ((ratio > 1 + high) & (advantages > 0))
    return losses, held, ratio


def loss_of(case, model, batch):
    """The step's mean loss and its metrics."""
    if case["loss"] == "sft":
        total = sum((weights_of(row) * -logps_of(model, row)).sum() for row in batch)
        return total / sum(weights_of(row).sum() for row in batch), {}
    terms = [policy_terms(case, row, logps_of(model, row)) for row in batch]
    losses, held, ratio = (torch.cat(parts) for parts in zip(*terms))
    metrics = {"policy/clip_fraction": held.double().mean().item(),
               "policy/ratio": ratio.mean().item()}
    return losses.mean(), metrics


def train(case, rows, shift=0.0):
    model = load(case)
    generator = torch.Generator().manual_seed(9)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += shift * torch.randn(parameter.shape, generator=generator).double()
    adamw = adamw_of(case)
    optimizer = torch.optim.AdamW(model.parameters(), lr=adamw["lr"], betas=adamw["betas"],
                                  eps=adamw["eps"], weight_decay=adamw["weight_decay"])
    steps = []
    for step in range(STEPS):
        first = step * case["sequences_per_step"]
        batch = [rows[(first + i) % len(rows)] for i in range(case["sequences_per_step"])]
        optimizer.zero_grad()
        loss, metrics = loss_of(case, model, batch)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), float("inf"))
        optimizer.step()
        steps.append({"loss": loss.item(), "grad_norm": norm.item(), **metrics})
    return steps, {f"final.{name}": value.detach().float().contiguous()
                   for name, value in model.named_parameters()}


def make_case(name):
    case = CASES[name]
    directory = ROOT / name
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    rows = make_rows(case)
    steps, final = train(case, rows)
    near, shifted = train(case, rows, 1e-7)
    worst = max(((final[key] - shifted[key]).norm() / final[key].norm()).item() for key in final)
    assert worst < 1e-5, worst
    for mine, other in zip(steps, near):
        assert all(abs(mine[key] - other[key]) < 1e-5 * max(1, abs(mine[key])) for key in mine)
    (directory / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    save_file(final, directory / "golden.safetensors")
    facts = {"base": case["base"], "loss": case["loss"], "policy": case.get("policy", {}),
             "adamw": adamw_of(case), "sequences_per_step": case["sequences_per_step"],
             "steps": {key: [step[key] for step in steps] for key in steps[0]}}
    (directory / "golden.json").write_text(json.dumps(facts, indent=1) + "\n")
    print(f"{name}: loss {steps[0]['loss']:.5f} -> {steps[-1]['loss']:.5f}, off by {worst:.1e}",
          {key: [round(step[key], 3) for step in steps] for key in steps[0] if "/" in key})


if __name__ == "__main__":
    make_golden.main(CASES, make_case)
