#!/usr/bin/env python3
"""Whether plans are as fast beside each other as their forecasts say: the winner of a search and
ten others, really run.

    bench/plan_order.py LONGSHORE FOLDER [--others 10] [--rounds 3] [--seed 1]

A small model on one rank of one thread, with a drive. `plan --search` finds the fastest plan;
others are drawn among the values of the keys that it varies. Every round runs each of them once, in
turn; the median of the rounds counts. Prints JSON: planned and measured seconds of a step, and of
how many pairs, that were planned to differ by a tenth or more, the order is the planned one.
"""
import argparse
import itertools
import json
import pathlib
import random
import shutil
import sys

import plan_time

BASE = {"model": "small-llama", "ranks": 1, "data.max_tokens": 128, "train.sequences_per_step": 8,
        "train.micro_batch": 1, "offload.state_format": "split-bf16",
        "optimizer.overlap": "forward", "fsdp.units": "block", "fsdp.recompute": "unit",
        "fsdp.prefetch": 1, "offload.activations": "device", "offload.optimizer": "nvme",
        "offload.parameters": "host"}
VARIED = {"fsdp.units": ["block", "half", "piece"], "fsdp.recompute": ["unit", "none"],
          "fsdp.prefetch": [0, 1, 2, 3], "train.micro_batch": [1, 2, 4, 8],
          "offload.activations": ["device", "host", "nvme"],
          "offload.optimizer": ["host", "nvme"], "offload.parameters": ["host", "nvme"]}
DIFFERENT = 1.1


def winner(bench):
    file = bench.run_file(BASE)
    bench.call("check", "machine", "--units", "--json", file)
    point = json.loads(bench.call("plan", "--search", "--json", file))[0]
    return {**BASE, **{key: json.loads(value) for key, value in point["changes"].items()}}


def others(count, seed, found):
    generator, made = random.Random(seed), [found]
    while len(made) <= count:
        choice = {**BASE, **{key: generator.choice(values) for key, values in VARIED.items()}}
        impossible = (choice["offload.parameters"] == "nvme"
                      and choice["offload.optimizer"] == "host")
        if not impossible and choice not in made:
            made.append(choice)
    return made[1:]


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary")
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--others", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    bench = plan_time.Bench(options.binary, options.folder.resolve())
    plan_time.KEYS["data.max_tokens"] = [BASE["data.max_tokens"]]
    bench.prepare([BASE["model"]])
    found = winner(bench)
    choices = [found, *others(options.others, options.seed, found)]
    rounds = [[] for _ in choices]
    for turn in range(options.rounds):
        for i, choice in enumerate(choices):
            rounds[i].append(bench.measure(choice))
            one = rounds[i][-1]
            print(f"round {turn}, plan {i}: planned {1e3 * one['planned_seconds']:.1f} ms, "
                  f"measured {1e3 * one['measured_seconds']:.1f}", file=sys.stderr, flush=True)
    plans = [plan_time.over_rounds(those) for those in rounds]
    pairs = [(a, b) for a, b in itertools.combinations(plans, 2)
             if max(a["planned_seconds"], b["planned_seconds"])
             >= DIFFERENT * min(a["planned_seconds"], b["planned_seconds"])]
    agree = sum((a["planned_seconds"] < b["planned_seconds"])
                == (a["measured_seconds"] < b["measured_seconds"]) for a, b in pairs)
    faster = sum(plan["measured_seconds"] < plans[0]["measured_seconds"] for plan in plans)
    shutil.rmtree(bench.folder)
    print(json.dumps({"winner": plans[0], "others": plans[1:], "pairs": len(pairs),
                      "pairs_agree": agree, "faster_than_the_winner": faster}, indent=1))


if __name__ == "__main__":
    main()
