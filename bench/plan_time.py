#!/usr/bin/env python3
"""Steps as plans say they take, beside steps that were really run, with computation on the CPU.

    bench/plan_time.py LONGSHORE FOLDER [--plans 60] [--rounds 2] [--seed 1] [--model NAME ...]

Draws plans: model, ranks (one or two, of one thread each), units, recompute, prefetch, the tiers of
state, parameters and activation checkpoints, updates, micro-batches and state format.
`check machine --rates` measures the machine once, with the drive of FOLDER; then, for each plan in
turn, `check machine --units` runs the model's units, `plan --json` says how long a step takes, and
`train` takes steps. That is the first plan of a model on this machine: what earlier runs taught is
thrown away before it. Then plan and train once more, with what the first run taught. All plans are
measured in turn, round by round, and the medians of the rounds count: a machine that is slow for a
while is so for a round. Prints JSON, with the bytes that were planned and those that were taken;
messages go to standard error.
"""
import argparse
import itertools
import json
import os
import pathlib
import random
import shutil
import statistics
import subprocess
import sys
import time

import runs

STEPS = 7  # of a run; the first two (allocation, no pending update) are not counted
WARM = 2
VOCABULARY = 512
KEYS = {
    "model": ["small-llama", "small-qwen3", "small-gpt2", "tiny-deep"],
    "ranks": [1, 2],
    "fsdp.strategy": ["full_shard", "shard_grad_op", "no_shard"],
    "fsdp.units": ["block", "half", "piece"],
    "fsdp.recompute": ["unit", "none"],
    "fsdp.prefetch": [0, 1, 2, 3],
    "fsdp.gather": ["collective", "host"],
    "offload.activations": ["device", "host", "nvme"],
    "offload.optimizer": ["host", "nvme"],
    "offload.parameters": ["host", "nvme"],
    "offload.state_format": ["fp32", "split", "split-bf16", "split-int8"],
    "optimizer.overlap": ["forward", "backward", "none"],
    "train.micro_batch": [1, 2, 4],
    "train.sequences_per_step": [4, 6],
    "data.max_tokens": [64, 128],
}


def can_be_run(choice):
    if choice["offload.parameters"] == "nvme" and choice["offload.optimizer"] == "host":
        return False
    alone = choice["ranks"] == 1
    if alone:
        return choice["fsdp.strategy"] == "full_shard" and choice["fsdp.gather"] == "collective"
    if choice["fsdp.gather"] == "host":
        return (choice["offload.optimizer"] == "host" and choice["fsdp.strategy"] != "no_shard"
                and choice["offload.state_format"] == "fp32")
    return True


def draw(count, seed):
    """Choices, each the one of 40 with most pairs of values that no other has."""
    generator = random.Random(seed)

    def one():
        while True:
            choice = {key: generator.choice(values) for key, values in KEYS.items()}
            if choice["ranks"] == 1:
                choice.update({"fsdp.strategy": "full_shard", "fsdp.gather": "collective"})
            if can_be_run(choice):
                return choice

    covered = set()
    for _ in range(count):
        best = max((one() for _ in range(40)),
                   key=lambda choice: len(pairs(choice) - covered))
        covered |= pairs(best)
        yield best


def pairs(choice):
    return set(itertools.combinations(sorted((key, str(v)) for key, v in choice.items()), 2))


class Bench:
    def __init__(self, binary, folder, rate_options=(), prefix=()):
        self.prefix = prefix  # command words before each program, such as `ip netns exec`
        self.binary = str(pathlib.Path(binary).resolve())
        self.folder = folder
        self.cache = folder / "cache"
        self.drive = folder / "drive"
        self.rate_options = rate_options
        self.environment = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE"}

    def call(self, *words, ranks=1):
        command = [self.binary, *words]
        if ranks > 1:
            command = [self.binary, "launch", "--nproc", str(ranks), "--", *words]
        command = [*self.prefix, *command]
        done = subprocess.run(command, capture_output=True, text=True, env=self.environment)
        if done.returncode != 0:
            sys.exit(f"{' '.join(command)}: exit code {done.returncode}\n{done.stderr[-3000:]}")
        return done.stdout

    def prepare(self, models):
        shutil.rmtree(self.folder, ignore_errors=True)
        self.drive.mkdir(parents=True)
        generator = random.Random(7)
        for tokens in KEYS["data.max_tokens"]:
            rows = [json.dumps({"input_ids": [generator.randrange(4, 200) for _ in range(tokens)]})
                    for _ in range(64)]
            (self.folder / f"rows-{tokens}.jsonl").write_text("\n".join(rows) + "\n")
        for model in models:
            self.call("init-model", "--preset", model, "--vocabulary", str(VOCABULARY),
                      str(self.folder / model))
        self.call("check", "machine", "--rates", "--json", f"--data.cache={self.cache}",
                  f'--offload.nvme=["{self.drive}"]', *self.rate_options)

    def run_file(self, choice):
        """As a file, so that check machine, plan and train read the same."""
        sections = {
            "run": {"dir": str(self.folder / "run")},
            "model": {"path": str(self.folder / choice["model"])},
            "data": {"train": [str(self.folder / f"rows-{choice['data.max_tokens']}.jsonl")],
                     "format": "tokens", "add_eos": False, "cache": str(self.cache)},
            "train": {"steps": STEPS, "max_grad_norm": 0.0},
            "precision": {"compute": "fp32"},
            "checkpoint": {"every_steps": 0, "export": "never", "resume": "never"},
            "offload": {"nvme": [str(self.drive)], "threads": 1},
            "device": {"kind": "cpu", "threads": 1},
        }
        for key, value in choice.items():
            if "." in key:
                section, name = key.split(".")
                sections.setdefault(section, {})[name] = value
        text = ""
        for section, keys in sections.items():
            text += f"[{section}]\n" + "".join(f"{name} = {json.dumps(value)}\n"
                                               for name, value in keys.items())
        path = self.folder / "run.toml"
        path.write_text(text)
        return str(path)

    def measure(self, choice):
        """The first plan of a model, and its run."""
        for learned in (self.cache / "machines").glob("*-run-*.json"):
            learned.unlink()
        self.call("check", "machine", "--units", "--json", self.run_file(choice))
        return self.plan_and_train(choice)

    def plan_and_train(self, choice):
        for folder in (self.folder / "run", self.drive):
            shutil.rmtree(folder, ignore_errors=True)
        self.drive.mkdir()
        file, ranks = self.run_file(choice), choice["ranks"]
        of_ranks = ["--ranks", str(ranks), "--ranks-per-node", str(ranks)] if ranks > 1 else []
        plan = json.loads(self.call("plan", "--json", *of_ranks, file))
        if not plan["time"]["known"]:
            sys.exit(f"no time is planned: {plan['time']['unknown']}")
        load = os.getloadavg()[0]
        self.call("train", file, ranks=ranks)
        steps = runs.steps_of(self.folder / "run")[WARM:]
        seconds = [step["seconds"] for step in steps]
        memory = [step["memory_bytes"] for step in steps]
        return {"keys": choice, "planned_seconds": plan["time"]["step_seconds"],
                "measured_seconds": statistics.median(seconds), "fastest_seconds": min(seconds),
                "slowest_seconds": max(seconds), "lanes_planned": plan["time"]["lane_seconds"],
                "wall": plan["time"]["wall"], "load": round(load, 1),
                "device_planned": plan["device"]["total_bytes"],
                "device_peak": max(one["device_peak"] for one in memory),
                "host_planned": plan["host"]["total_bytes"],
                "host_pinned": max(one["host_pinned"] for one in memory)}


def over_rounds(those):
    """One plan, measured several times: medians, the fastest and slowest step, the most bytes."""
    one = dict(those[0])
    for name, value in one.items():
        values = [other[name] for other in those]
        if name in ("planned_seconds", "measured_seconds"):
            one[name] = statistics.median(values)
        elif name == "fastest_seconds":
            one[name] = min(values)
        elif isinstance(value, (int, float)):
            one[name] = max(values)
    return one


def off_by(one):
    return one["measured_seconds"] / one["planned_seconds"] - 1


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary")
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--plans", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--hurried", action="store_true", help="rates in seconds: to try it out")
    parser.add_argument("--model", nargs="*", default=KEYS["model"])
    options = parser.parse_args()
    KEYS["model"] = options.model
    hurried = ("--seconds", "0.05") if options.hurried else ()
    bench = Bench(options.binary, options.folder.resolve(), hurried)
    begun = time.monotonic()
    bench.prepare(KEYS["model"])
    choices = list(draw(options.plans, options.seed))
    measured = [[] for _ in choices]
    for turn in range(options.rounds):
        for i, choice in enumerate(choices):
            first = bench.measure(choice)
            second = bench.plan_and_train(choice)
            measured[i].append((first, second))
            said = ", ".join(f"planned {1e3 * one['planned_seconds']:.1f} ms, measured "
                             f"{1e3 * one['measured_seconds']:.1f}, {100 * off_by(one):+.1f} %"
                             for one in (first, second))
            print(f"round {turn}, plan {i}, {time.monotonic() - begun:.0f} s: {said}; {choice}",
                  file=sys.stderr, flush=True)
    shutil.rmtree(bench.folder)
    print(json.dumps({"seconds": round(time.monotonic() - begun), "rounds": options.rounds,
                      "plans": [over_rounds([first for first, _ in those]) for those in measured],
                      "second_plans": [over_rounds([second for _, second in those])
                                       for those in measured]}, indent=1))


if __name__ == "__main__":
    main()
