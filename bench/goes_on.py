#!/usr/bin/env python3
"""Whether one build goes on where another stopped: bench/goes_on.py BEFORE AFTER [FOLDER]

For every state format, and on two ranks, BEFORE trains a small model to its end; then BEFORE is
killed with SIGKILL on the way, with everything on a drive, and AFTER goes on from that state; and
AFTER goes on from a checkpoint of BEFORE, with the state on a drive and in memory. LoRA over a base
in NF4, on one and two ranks, goes on from a checkpoint in memory: AFTER packs the base again, and
its weights must be those of the checkpoint. Losses, norms and the files of the last checkpoint must
equal those of the run that BEFORE ended itself. Ends with 1 where they differ. The last line says
whether AFTER trained on the prepared data of BEFORE or made it again.
"""
import argparse
import dataclasses
import hashlib
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import runs

MODEL = {"tie_word_embeddings": True, "num_attention_heads": 8, "num_key_value_heads": 4,
         "hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 6, "vocab_size": 4096}
RUN = """
[run]
dir = "{folder}/run"
[model]
path = "{root}/model"
init = "{init}"
[data]
train = ["{root}/data.jsonl"]
cache = "{root}/cache"
format = "tokens"
max_tokens = 64
packing = false
[train]
steps = 8
sequences_per_step = 4
micro_batch = 2
max_grad_norm = 0.5
[optimizer]
lr = 1e-3
weight_decay = 0.1
[checkpoint]
every_steps = {every}
export = "never"
[device]
kind = "cpu"
threads = 1
[offload]
state_format = "{state_format}"
"""
NF4 = """[adapter]
kind = "lora"
base = "nf4"
"""
ON_DRIVES = """parameters = "nvme"
optimizer = "nvme"
activations = "nvme"
nvme = ["{folder}/drive"]
"""


@dataclasses.dataclass(frozen=True)
class Case:
    name: str
    state_format: str = "split-bf16"
    ranks: int = 1
    nf4: bool = False


CASES = [
    *(Case(state_format, state_format) for state_format in ("fp32", "split", "split-bf16",
                                                            "split-int8")),
    Case("2-ranks", ranks=2),
    Case("lora-nf4", nf4=True),
    Case("lora-nf4-2-ranks", nf4=True, ranks=2),
]


def children_of(process):
    tasks = pathlib.Path(f"/proc/{process.pid}/task").iterdir()
    return [int(word) for task in tasks for word in (task / "children").read_text().split()]


class Run:
    def __init__(self, root, name, case, on_drives=True, every=0):
        self.folder = root / f"{case.name}-{name}"
        self.ranks = case.ranks
        (self.folder / "drive").mkdir(parents=True)
        text = RUN + (ON_DRIVES if on_drives else "") + (NF4 if case.nf4 else "")
        self.file = self.folder / "run.toml"
        self.file.write_text(text.format(folder=self.folder, root=root, every=every,
                                         init="pretrained" if case.nf4 else "random",
                                         state_format=case.state_format))

    def command(self, binary, *arguments):
        launch = ["launch", "--nproc", str(self.ranks), "--"] if self.ranks > 1 else []
        return [binary, *launch, "train", str(self.file), *arguments]

    def train(self, binary, *arguments):
        runs.run(self.command(binary, *arguments))

    def train_until(self, binary, reached):
        """All ranks are killed as soon as `reached()` says so."""
        with subprocess.Popen(self.command(binary), stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL) as process:
            while not reached() and process.poll() is None:
                time.sleep(0.002)
            if process.poll() is not None:
                sys.exit(f"{self.file}: the run ended before it could be killed")
            # The launcher waits for the ranks that are killed below it, and then ends itself.
            for pid in children_of(process) if self.ranks > 1 else [process.pid]:
                os.kill(pid, signal.SIGKILL)

    def steps(self):
        return [(step["step"], step["loss"], step["grad_norm"])
                for step in runs.steps_of(self.folder / "run")]

    def checkpoint(self, step):
        found = list((self.folder / "run/checkpoints").glob(f"step-*{step}"))
        return found[0] if found else None

    def outcome(self):
        files = {path.name: hashlib.sha256(path.read_bytes()).hexdigest()
                 for path in self.checkpoint(8).iterdir() if path.suffix != ".json"}
        return self.steps(), files


def compare(root, case, before, after):
    whole = Run(root, "whole", case, on_drives=not case.nf4)
    whole.train(before)
    outcomes = {}
    if not case.nf4:
        killed = Run(root, "killed", case)
        killed.train_until(before, lambda: len(killed.steps()) >= 3)
        cut = len(killed.steps())
        killed.train(after)
        outcomes[f"state on the drive, killed in step {cut} or {cut + 1}"] = killed.outcome()
    for on_drives in (False,) if case.nf4 else (True, False):
        one = Run(root, f"checkpoint-{on_drives}", case, on_drives, every=4)
        one.train_until(before, lambda one=one: one.checkpoint(4) is not None)
        shutil.rmtree(one.folder / "drive")
        (one.folder / "drive").mkdir()
        one.train(after, f"--checkpoint.resume={one.checkpoint(4)}")
        where = "on the drive" if on_drives else "in memory"
        outcomes[f"checkpoint of step 4, state {where}"] = one.outcome()
    good = True
    for name, outcome in outcomes.items():
        equal = outcome == whole.outcome()
        good = good and equal
        print(f"{case.name}: {name}: {'equal' if equal else 'DIFFERS'}", flush=True)
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("before")
    parser.add_argument("after")
    parser.add_argument("folder", nargs="?", help="on the drive to use (default: a temporary one)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="longshore-goes-on-", dir=options.folder) as folder:
        root = pathlib.Path(folder)
        runs.write_model(root / "model", MODEL)
        runs.write_rows(root / "data.jsonl", MODEL["vocab_size"], tokens=64)
        runs.write_weights(options.before, Run(root, "weights", CASES[0], on_drives=False).file,
                           root / "model")
        prepared = set((root / "cache").glob("*.tok"))
        good = [compare(root, case, options.before, options.after) for case in CASES]
        made_again = set((root / "cache").glob("*.tok")) - prepared
        print("prepared data:", "made again" if made_again else "reused")
    sys.exit(0 if all(good) else 1)


if __name__ == "__main__":
    main()
