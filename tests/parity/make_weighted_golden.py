#!/usr/bin/env python3
"""Makes tests/parity/golden_weighted: losses with numbers for each token, by PyTorch in fp64.

Needs scripts/dev/venv. Usage: make_weighted_golden.py [case ...]; without arguments all cases.
Every case is a directory:

  rows.jsonl          rows of token ids with their numbers
  golden.json         the model, the loss and its settings, those of the optimizer, and the loss,
                      gradient norm and metrics of each of 20 steps
  golden_sketches.json  final: a sketch (sketches.py) of each weight after the run, in fp32

A step's loss is, over its rows of one sequence each:
  sft     sum(weight * nll) / sum(weight)
  policy  sum(-min(r * A, clip(r, 1 - low, 1 + high) * A)) / tokens, r = exp(logp - old_logp)
  distill sum(weight * ((1 - c) * kl + c * nll)) / sum(weight); kl is over the teacher's tokens
          and the rest as one class, with the student's logits divided by the temperature
A run that starts 1e-7 away must end within 1e-5: no token may be so near a clip that rounding
decides.
"""
import json
import random
import shutil
import sys

sys.dont_write_bytecode = True
import torch
from transformers import AutoModelForCausalLM

import make_golden
from sketches import write_sketches

ROOT = make_golden.ROOT.parent / "golden_weighted"
STEPS = 20
SECTIONS = ["policy", "distill"]
ADAMW = {"lr": 2e-3, "betas": [0.9, 0.95], "eps": 1e-4, "weight_decay": 0.0}
CASES = {
    "sft": {"base": "llama", "loss": "sft", "seed": 1, "sequences_per_step": 3},
    "policy": {"base": "llama", "loss": "policy", "seed": 2, "sequences_per_step": 3,
               "lr": 5e-4, "policy": {"clip_low": 0.2, "clip_high": 0.3}},
    "distill": {"base": "llama", "loss": "distill", "seed": 3, "sequences_per_step": 3,
                "lr": 5e-4,
                "distill": {"top_k": 5, "temperature": 1.5, "ce_weight": 0.3}},
}


def load(case):
    return AutoModelForCausalLM.from_pretrained(
        make_golden.ROOT / case["base"], dtype=torch.float32, attn_implementation="eager").double()


def adamw_of(case):
    return {**ADAMW, "lr": case.get("lr", ADAMW["lr"])}


def targets_of(row):
    return torch.tensor(row.get("labels", row["input_ids"]))[1:]


def logits_of(model, row):
    """Logits of the places that predict a trained token, in order."""
    logits = model(input_ids=torch.tensor([row["input_ids"]])).logits[0, :-1]
    return logits[targets_of(row) != -100]


def logps_of(model, row):
    """Log-probabilities of the trained tokens, in order."""
    targets = targets_of(row)
    logps = torch.log_softmax(logits_of(model, row), -1)
    return logps.gather(1, targets[targets != -100][:, None])[:, 0]


def at_trained(row, values):
    """Values of the trained tokens: given for each token, or for each trained one."""
    trained = targets_of(row) != -100
    values = torch.tensor(values, dtype=torch.float64)
    return values[1:][trained] if len(values) == len(row["input_ids"]) else values


def weights_of(row):
    weights = at_trained(row, row.get("weights", [1.0] * len(row["input_ids"])))
    return weights * row.get("weight", 1.0)


def add_teacher(case, row, index, teacher, chance):
    """Adds the likeliest tokens of a teacher; some tokens have fewer, and some have one alone."""
    top_k, temperature = case["distill"]["top_k"], case["distill"]["temperature"]
    with torch.no_grad():
        logps, ids = torch.log_softmax(logits_of(teacher, row) / temperature, -1).topk(top_k)
    lists = []
    for some_ids, some_logps in zip(ids.tolist(), logps.tolist()):
        count = chance.choice([1, 3, top_k, top_k])
        sure = chance.random() < 0.1
        lists.append((some_ids[:1], [0.0]) if sure else
                     (some_ids[:count], [round(logp, 5) for logp in some_logps[:count]]))
    if index % 2 == 0:
        lists = iter(lists)
        lists = [next(lists) if target != -100 else (None, None)
                 for target in [-100, *targets_of(row).tolist()]]
    row["teacher_ids"], row["teacher_logps"] = map(list, zip(*lists))
    if index % 3 == 0:
        row["weight"] = round(chance.uniform(0.2, 3.0), 3)


def make_teacher(case):
    teacher = load(case)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in teacher.parameters():
            noise = torch.randn(parameter.shape, generator=generator).double()
            parameter += 0.5 * parameter.std() * noise
        teacher.lm_head.weight *= 3.0
    return teacher


def make_rows(case):
    chance = random.Random(case["seed"])
    lines = (make_golden.ROOT / case["base"] / "train.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines][:9]
    model = load(case)
    teacher = make_teacher(case)
    for index, row in enumerate(rows):
        if case["loss"] == "distill":
            add_teacher(case, row, index, teacher, chance)
            continue
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


def distill_terms(case, model, row):
    """The losses of the trained tokens, their divergences and their weights."""
    options, logits = case["distill"], logits_of(model, row)
    q = torch.softmax(logits / options["temperature"], -1)
    trained = targets_of(row) != -100
    lists = list(zip(row["teacher_ids"], row["teacher_logps"]))
    if len(lists) == len(row["input_ids"]):
        lists = [one for one, wanted in zip(lists[1:], trained.tolist()) if wanted]
    divergences = []
    for place, (ids, logps) in enumerate(lists):
        p = torch.tensor(logps, dtype=torch.float64).exp()
        p = p / max(1.0, p.sum().item())
        rest = 1.0 - p.sum()
        kl = (p * (p.log() - q[place, ids].log())).sum()
        if rest > 1e-12:
            others = torch.ones_like(q[place], dtype=torch.bool)
            others[ids] = False
            kl = kl + rest * (rest.log() - q[place, others].sum().log())
        divergences.append(kl)
    kl, share = torch.stack(divergences), options["ce_weight"]
    nll = -torch.log_softmax(logits, -1).gather(1, targets_of(row)[trained][:, None])[:, 0]
    return (1 - share) * kl + share * nll, kl, torch.full_like(kl, row.get("weight", 1.0))


def loss_of(case, model, batch):
    """The step's mean loss and its metrics."""
    if case["loss"] == "sft":
        total = sum((weights_of(row) * -logps_of(model, row)).sum() for row in batch)
        return total / sum(weights_of(row).sum() for row in batch), {}
    if case["loss"] == "distill":
        terms = [distill_terms(case, model, row) for row in batch]
        losses, kl, weights = (torch.cat(parts) for parts in zip(*terms))
        return (losses * weights).sum() / weights.sum(), {"distill/kl": kl.mean().item()}
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
    write_sketches(final, directory / "golden_sketches.json")
    facts = {"base": case["base"], "loss": case["loss"],
             "settings": {section: case[section] for section in SECTIONS if section in case},
             "adamw": adamw_of(case), "sequences_per_step": case["sequences_per_step"],
             "steps": {key: [step[key] for step in steps] for key in steps[0]}}
    (directory / "golden.json").write_text(json.dumps(facts, indent=1) + "\n")
    print(f"{name}: loss {steps[0]['loss']:.5f} -> {steps[-1]['loss']:.5f}, off by {worst:.1e}",
          {key: [round(step[key], 3) for step in steps] for key in steps[0] if "/" in key})


if __name__ == "__main__":
    make_golden.main(CASES, make_case)
