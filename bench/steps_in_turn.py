#!/usr/bin/env python3
"""Steps of one run by two builds of longshore, in turn: bench/steps_in_turn.py BEFORE AFTER DRIVE

A model of random weights trains with all of its state on DRIVE, a folder of the drive that is
measured: by BEFORE, by AFTER, by BEFORE again, five times each (--rounds). Prints the seconds of
each step, the median of each build's rounds (of a round: its median without the first two steps),
and their ratio. --parameters host leaves the optimizer's state alone on the drive.
"""
import argparse
import pathlib
import shutil
import statistics
import subprocess

import runs

RUN = """
[run]
dir = "{run}"
[model]
path = "{model}"
init = "random"
[data]
train = ["{data}"]
format = "tokens"
max_tokens = {tokens}
packing = false
[train]
steps = {steps}
sequences_per_step = 1
[optimizer]
lr = 1e-5
[offload]
parameters = "{parameters}"
optimizer = "nvme"
nvme = ["{drive}"]
[checkpoint]
every_steps = 0
export = "never"
[device]
kind = "cpu"
"""


def prepare(folder, options):
    runs.write_model(folder / "model", {
        "tie_word_embeddings": False, "num_attention_heads": 16, "num_key_value_heads": 4,
        "hidden_size": options.hidden, "intermediate_size": 4 * options.hidden,
        "num_hidden_layers": options.layers, "vocab_size": options.vocabulary})
    runs.write_rows(folder / "data.jsonl", options.vocabulary, options.tokens)


def run(binary, folder, options):
    """The seconds of each step, and the loss after the last."""
    for used in ("run", "drive"):
        shutil.rmtree(folder / used, ignore_errors=True)
    (folder / "drive").mkdir()
    (folder / "run.toml").write_text(RUN.format(
        run=folder / "run", model=folder / "model", data=folder / "data.jsonl",
        drive=folder / "drive", tokens=options.tokens, steps=options.steps,
        parameters=options.parameters))
    subprocess.run([binary, "train", str(folder / "run.toml")], check=True,
                   stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    steps = runs.steps_of(folder / "run")
    return [step["seconds"] for step in steps], steps[-1]["loss"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("before")
    parser.add_argument("after")
    parser.add_argument("drive", type=pathlib.Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--vocabulary", type=int, default=16384)
    parser.add_argument("--parameters", choices=("host", "nvme"), default="nvme")
    options = parser.parse_args()
    folder = options.drive / "steps_in_turn"
    shutil.rmtree(folder, ignore_errors=True)
    prepare(folder, options)
    medians = {"before": [], "after": []}
    losses = set()
    for round_number in range(options.rounds):
        for name in medians:
            seconds, loss = run(getattr(options, name), folder, options)
            medians[name].append(statistics.median(seconds[2:]))
            losses.add(loss)
            print(f"round {round_number + 1} {name}: "
                  + " ".join(f"{s:.2f}" for s in seconds), flush=True)
    shutil.rmtree(folder)
    before, after = (statistics.median(medians[name]) for name in ("before", "after"))
    print(f"median of {options.rounds}: before {before:.2f} s, after {after:.2f} s, "
          f"ratio {after / before:.3f}; last loss "
          + ("the same in all" if len(losses) == 1 else f"differs: {sorted(losses)}"))


if __name__ == "__main__":
    main()
