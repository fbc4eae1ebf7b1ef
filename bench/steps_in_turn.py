#!/usr/bin/env python3
"""Steps of one run by two builds of longshore, in turn: bench/steps_in_turn.py BEFORE AFTER DRIVE

A model of random weights trains on the CPU with all of its state on DRIVE, a folder of the drive
that is measured: by BEFORE, by AFTER, by BEFORE again, five times each (--rounds). Prints the
seconds of each step, the median of each build's rounds (of a round: its median without the first
two steps), their ratio, and the median of the ratios of the pairs. --state optimizer leaves the
optimizer's state alone on the drive, and --state host nothing. --kind lora, nf4 (LoRA over a base
in NF4, with --state host) and experts train in another way than full. Ten pairs or more show a
difference of a few percent.
"""
import argparse
import pathlib
import shutil
import statistics

import runs

RUN = """
[run]
dir = "{run}"
[model]
path = "{model}"
init = "{init}"
[data]
train = ["{data}"]
format = "tokens"
max_tokens = {tokens}
packing = false
cache = "{cache}"
[train]
steps = {steps}
sequences_per_step = 1
[optimizer]
lr = 1e-5
[offload]
parameters = "{parameters}"
optimizer = "{optimizer}"
nvme = ["{drive}"]
[checkpoint]
every_steps = 0
export = "never"
[device]
kind = "cpu"
"""
LORA = """[adapter]
kind = "lora"
base = "{base}"
"""
BASES = {"lora": "published", "nf4": "nf4"}
EXPERTS = {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral",
           "num_local_experts": 8, "num_experts_per_tok": 2}


def prepare(folder, options):
    # The matrices of all experts together have the size of the other kinds' MLP.
    width = options.hidden // 2 if options.kind == "experts" else 4 * options.hidden
    sizes = {"tie_word_embeddings": False, "num_attention_heads": 16, "num_key_value_heads": 4,
             "hidden_size": options.hidden, "intermediate_size": width,
             "num_hidden_layers": options.layers, "vocab_size": options.vocabulary}
    runs.write_model(folder / "model", sizes | (EXPERTS if options.kind == "experts" else {}))
    runs.write_rows(folder / "data.jsonl", options.vocabulary, options.tokens)
    if options.kind == "nf4":
        write_run(folder, options)
        runs.write_weights(options.before, folder / "run.toml", folder / "model")


def write_run(folder, options):
    for used in ("run", "drive"):
        shutil.rmtree(folder / used, ignore_errors=True)
    (folder / "drive").mkdir()
    text = RUN + (LORA if options.kind in BASES else "")
    (folder / "run.toml").write_text(text.format(
        run=folder / "run", model=folder / "model", data=folder / "data.jsonl",
        drive=folder / "drive", cache=folder / "cache", tokens=options.tokens,
        steps=options.steps, base=BASES.get(options.kind),
        init="pretrained" if options.kind == "nf4" else "random",
        parameters="nvme" if options.state == "nvme" else "host",
        optimizer="host" if options.state == "host" else "nvme"))


def run(binary, folder, options):
    """The seconds of each step, and the loss after the last."""
    write_run(folder, options)
    runs.run([binary, "train", str(folder / "run.toml")])
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
    parser.add_argument("--kind", choices=("full", "lora", "nf4", "experts"), default="full")
    parser.add_argument("--state", choices=("nvme", "optimizer", "host"), default="nvme")
    options = parser.parse_args()
    if options.kind == "nf4" and options.state != "host":
        parser.error("--kind nf4 needs --state host")
    if options.steps < 3:
        parser.error("--steps must be at least 3: the first two do not count")
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
                  + " ".join(f"{s:.3f}" for s in seconds), flush=True)
    shutil.rmtree(folder)
    before, after = (statistics.median(medians[name]) for name in ("before", "after"))
    pairs = [second / first for first, second in zip(medians["before"], medians["after"])]
    print(f"median of {options.rounds}: before {before:.3f} s, after {after:.3f} s, "
          f"ratio {after / before:.3f}, of the pairs {statistics.median(pairs):.3f}; last loss "
          + ("the same in all" if len(losses) == 1 else f"differs: {sorted(losses)}"))


if __name__ == "__main__":
    main()
