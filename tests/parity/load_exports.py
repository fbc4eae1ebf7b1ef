#!/usr/bin/env python3
"""Loads what Longshore exports with transformers, and compares what both say of it.

Needs scripts/dev/venv. Usage: load_exports.py LONGSHORE [case ...]; LONGSHORE is the program,
cases are those of tests/parity/golden, golden_moe and golden_mxfp4; without any, all. Each is
trained for three steps and exported; transformers must load the export without a missing,
unexpected or newly made tensor, and give the loss over the case's rows that `longshore eval` gives
for the checkpoint. It must not give that of the model as it was brought. `longshore check model`
compares every layer's states and the logits of the export with those of transformers. All compute
in fp32, over the weights as they are in the file: an export in bf16 has rounded masters, and is
compared with `eval` of itself.
"""
import functools
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText
from transformers import logging as transformers_logging

from weights import with_weights

ROOTS = [Path(__file__).parent / name for name in ("golden", "golden_moe", "golden_mxfp4")]
TOLERANCE = 1e-5  # relative; both sum in fp32, in other orders
STEPS = 3


def longshore(program, *words):
    done = subprocess.run([program, *words], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(words)}\nended with {done.returncode}:\n{done.stderr}")
    return done.stdout


@functools.cache
def directory_of(case):
    return with_weights(next(root / case for root in ROOTS if (root / case).exists()))


def keys_of(case, run):
    model = directory_of(case)
    rows = model / "train.jsonl"
    return [f'--model.path="{model}"', f'--data.train=["{rows}"]', f'--data.eval=["{rows}"]',
            "--data.packing=false", "--data.max_tokens=40", f"--train.steps={STEPS}",
            "--train.sequences_per_step=3", "--optimizer.lr=0.01", "--schedule.name=constant",
            "--precision.compute=fp32", "--checkpoint.export=end", f'--run.dir="{run}"',
            f'--data.cache="{run}/cache"']


def loss_of_longshore(program, run_file, weights):
    return json.loads(longshore(program, "eval", run_file, "--json", "--from", weights))["loss"]


def loss_of_transformers(directory, rows):
    wrapper = "text_config" in json.loads((Path(directory) / "config.json").read_text())
    kind = AutoModelForImageTextToText if wrapper else AutoModelForCausalLM
    model, report = kind.from_pretrained(
        directory, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    wrong = {key: sorted(names) for key, names in report.items() if names}
    if wrong:
        sys.exit(f"{directory}: {wrong}")
    total, trained = 0.0, 0
    with torch.no_grad():
        for row in rows:
            targets = torch.tensor(row.get("labels", row["input_ids"]))[1:]
            logits = model.eval()(input_ids=torch.tensor([row["input_ids"]])).logits[0, :-1]
            total += torch.nn.functional.cross_entropy(logits.float(), targets, ignore_index=-100,
                                                       reduction="sum").item()
            trained += int((targets != -100).sum())
    return total / trained


def states_agree(program, directory):
    """Whether every layer's states and the logits are those of transformers, by `check model`."""
    done = subprocess.run([program, "check", "model", directory, "--python", sys.executable,
                           "--layers", "0"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        print(done.stdout + done.stderr)
    return done.returncode == 0


def check(program, case):
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder)
        (run / "empty.toml").touch()
        longshore(program, "train", str(run / "empty.toml"), *keys_of(case, run))
        rows = [json.loads(line) for line in (directory_of(case) / "train.jsonl").open()]
        run_file, export = str(run / "config.toml"), str(run / "hf")
        theirs = loss_of_transformers(export, rows)
        ours = loss_of_longshore(program, run_file, export)
        checkpoint = loss_of_longshore(program, run_file, "auto")
        before = loss_of_longshore(program, run_file, "model")
        logits = states_agree(program, export)
    off, moved = abs(theirs - ours) / ours, abs(theirs - before) / before
    config = json.loads((directory_of(case) / "config.json").read_text())
    exact = "bfloat16" not in (config.get("dtype"), config.get("torch_dtype"))
    good = logits and off <= TOLERANCE and moved > 1e-3
    good = good and (abs(checkpoint - ours) <= TOLERANCE * ours or not exact)
    print(f"{case:14} transformers {theirs:.6f}, eval of the export {ours:.6f}, of the checkpoint "
          f"{checkpoint:.6f}, before training {before:.6f}; "
          f"logits {'the same' if logits else 'OTHERS'}: {'as it should' if good else 'WRONG'}")
    return good


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    cases = sys.argv[2:] or sorted(path.name for root in ROOTS for path in root.iterdir())
    results = [check(sys.argv[1], case) for case in cases]
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
