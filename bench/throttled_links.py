#!/usr/bin/env python3
"""Steps of several ranks as plans say they take, beside steps that were really run over a link that
is throttled: so slow that collectives decide, as between nodes. Needs root, ip and tc (iproute2).

    bench/throttled_links.py LONGSHORE FOLDER [--ranks 2 4 8] [--mbit 800] [--rounds 3]

Ranks are processes in a network namespace of their own, whose loopback lets so many Mbit/s pass, of
all ranks together. `check machine --rates` measures collectives there. Then, for each way to shard,
in turn: `check machine --units`, `plan --json`, and `train` for some steps; medians of the rounds.
A rank computes with one thread; with more ranks than cores each has its share of them. Prints
JSON.
"""
import argparse
import contextlib
import json
import pathlib
import shutil
import subprocess
import sys

import plan_time

NAMESPACE = "longshore-throttled"
BASE = {"model": "small-llama", "data.max_tokens": 128, "train.sequences_per_step": 16,
        "train.micro_batch": 1, "offload.state_format": "split-bf16",
        "optimizer.overlap": "forward", "fsdp.units": "block", "fsdp.recompute": "unit",
        "fsdp.prefetch": 1, "offload.activations": "device", "offload.optimizer": "host",
        "offload.parameters": "host", "fsdp.gather": "collective",
        "fsdp.strategy": "full_shard"}
WAYS = [{}, {"fsdp.prefetch": 2, "fsdp.recompute": "none"},
        {"fsdp.strategy": "shard_grad_op"}, {"fsdp.strategy": "no_shard"}]


def ip(*words):
    subprocess.run(["ip", *words], check=True)


@contextlib.contextmanager
def throttled(mbit):
    ip("netns", "add", NAMESPACE)
    try:
        inside = ("netns", "exec", NAMESPACE)
        ip(*inside, "ip", "link", "set", "lo", "up")
        # A burst passes at once after a pause; this one has four packets of the loopback.
        ip(*inside, "tc", "qdisc", "add", "dev", "lo", "root", "tbf", "rate", f"{mbit}mbit",
           "burst", "256kb", "latency", "50ms")
        yield ["ip", *inside]
    finally:
        ip("netns", "del", NAMESPACE)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary")
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--mbit", type=int, nargs="+", default=[800])
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    plan_time.KEYS["data.max_tokens"] = [BASE["data.max_tokens"]]
    plans = []
    for mbit in options.mbit:
        with throttled(mbit) as prefix:
            bench = plan_time.Bench(options.binary, options.folder.resolve(), prefix=prefix)
            bench.prepare([BASE["model"]])
            choices = [{**BASE, **way, "ranks": ranks} for ranks in options.ranks for way in WAYS]
            rounds = [[] for _ in choices]
            for _ in range(options.rounds):
                for choice, those in zip(choices, rounds):
                    those.append(bench.measure(choice))
                    print(f"{mbit} Mbit/s: {100 * plan_time.off_by(those[-1]):+.1f} %, {choice}",
                          file=sys.stderr, flush=True)
            plans += [{"mbit": mbit, **plan_time.over_rounds(those)} for those in rounds]
            shutil.rmtree(bench.folder)
    print(json.dumps({"plans": plans, "rounds": options.rounds}, indent=1))


if __name__ == "__main__":
    main()
