#!/usr/bin/env python3
"""Makes tests/parity/golden_accuracy: how often a target has the highest score in transformers.

Needs scripts/dev/venv. Usage: make_accuracy_golden.py. For each model of tests/parity/golden in
CASES it writes <case>.jsonl, rows of token ids of which about half are the model's own choice, and
to golden.json the number of trained tokens and of hits over all rows. The two highest scores of
each position differ by more than MARGIN, so that rounding decides nothing. `entropy` is the mean
entropy, in nats, of the distributions that predict the trained tokens.
"""
import json
import sys

sys.dont_write_bytecode = True
import torch

import make_golden

ROOT = make_golden.ROOT.parent / "golden_accuracy"
CASES = ["llama", "gemma3-capped", "granite", "gpt2", "qwen3_5_text"]
ROWS, LENGTH, PROMPT, MARGIN = 6, 30, 4, 1e-3


def make_row(model, generator):
    """A row and the number of its hits; None where two scores are too close."""
    ids = torch.randint(3, model.config.vocab_size, (PROMPT,), generator=generator).tolist()
    hits = 0
    while len(ids) < LENGTH:
        scores = model(input_ids=torch.tensor([ids])).logits[0, -1].float()
        best = scores.topk(2)
        if best.values[0] - best.values[1] < MARGIN:
            return None
        chosen = int(best.indices[0])
        if torch.rand((), generator=generator) < 0.5:
            chosen = int(torch.randint(3, model.config.vocab_size, (), generator=generator))
        hits += int(chosen == best.indices[0])
        ids.append(chosen)
    return {"input_ids": ids, "labels": [-100] * PROMPT + ids[PROMPT:]}, hits


def entropies(model, ids):
    """The entropies of the distributions that predict the trained tokens of a row, in fp64."""
    scores = model(input_ids=torch.tensor([ids])).logits[0, PROMPT - 1:-1].double()
    return torch.distributions.Categorical(logits=scores).entropy()


def main():
    torch.set_num_threads(1)
    ROOT.mkdir(exist_ok=True)
    facts = {}
    for name in CASES:
        model = make_golden.load(make_golden.CASES[name], make_golden.ROOT / name)
        generator = torch.Generator().manual_seed(5)
        made = []
        with torch.no_grad():
            while len(made) < ROWS:
                made += [row for row in [make_row(model, generator)] if row is not None]
            entropy = torch.cat([entropies(model, row["input_ids"]) for row, _ in made]).mean()
        (ROOT / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row, _ in made))
        facts[name] = {"trained_tokens": ROWS * (LENGTH - PROMPT),
                       "hits": sum(hits for _, hits in made), "entropy": entropy.item()}
        print(name, facts[name])
    (ROOT / "golden.json").write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
