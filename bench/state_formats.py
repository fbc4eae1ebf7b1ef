"""Trains the quick start's model from several seeds in every state format and prints the losses:

    scripts/quickstart                      # makes the model and the data
    bench/state_formats.py [--seeds N] [--steps N] [--formats fp32,split-bf16]
                           [--longshore build/release/longshore] [--section.key=value ...]

The table's loss is the one on the quick start's evaluation data at the end of the run.
"""

import argparse
import json
import shutil
import statistics
import subprocess

FORMATS = ("fp32", "split", "split-bf16", "split-int8")
RUN = "examples/quickstart/run.toml"


def train(arguments, state_format, seed):
    directory = f"runs/state-formats/{state_format}-{seed}"
    shutil.rmtree(directory, ignore_errors=True)
    length = [] if not arguments.steps else [
        f"--train.steps={arguments.steps}", "--train.epochs=0",
        f"--schedule.warmup_steps={arguments.steps // 10}"]
    subprocess.run(
        [arguments.longshore, "train", RUN, f"--run.dir={directory}", f"--run.seed={seed}",
         f"--offload.state_format={state_format}", "--checkpoint.every_steps=0",
         "--checkpoint.export=never", "--log.every_steps=1000", *length, *arguments.keys],
        check=True, capture_output=True)
    records = [json.loads(line) for line in open(f"{directory}/metrics.jsonl")]
    shutil.rmtree(f"{directory}/checkpoints", ignore_errors=True)
    return [record["loss"] for record in records if record["kind"] == "eval"][-1]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--longshore", default="build/release/longshore")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=0, help="0: all of the quick start")
    parser.add_argument("--formats", default=",".join(FORMATS), help="fp32 and others")
    arguments, arguments.keys = parser.parse_known_args()
    losses = {name: [] for name in arguments.formats.split(",")}
    for seed in range(1, arguments.seeds + 1):
        for name in losses:
            losses[name].append(train(arguments, name, seed))
            print(f"seed {seed} {name}: {losses[name][-1]:.5f}", flush=True)
    print("| state format | mean loss | against fp32 | largest difference of a seed |")
    print("|---|---|---|---|")
    for name, found in losses.items():
        mean = statistics.mean(found) / statistics.mean(losses["fp32"]) - 1
        largest = max(abs(a / b - 1) for a, b in zip(found, losses["fp32"]))
        print(f"| `{name}` | {statistics.mean(found):.4f} | {mean:+.3%} | {largest:.3%} |")


if __name__ == "__main__":
    main()
