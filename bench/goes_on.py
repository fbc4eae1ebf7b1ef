#!/usr/bin/env python3
"""Whether one build goes on where another stopped: bench/goes_on.py BEFORE AFTER [FOLDER]

For every state format BEFORE trains a small model to its end; then BEFORE is killed with SIGKILL
on the way, with everything on a drive, and AFTER goes on from that state; and AFTER goes on from a
checkpoint of BEFORE, with the state on a drive and in memory. Losses, norms and the files of the
last checkpoint must equal those of the run that BEFORE ended itself. Ends with 1 where they differ.
"""
import argparse
import hashlib
import pathlib
import shutil
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
init = "random"
[data]
train = ["{root}/data.jsonl"]
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
ON_DRIVES = """parameters = "nvme"
optimizer = "nvme"
activations = "nvme"
nvme = ["{folder}/drive"]
"""


class Run:
    def __init__(self, root, name, state_format, on_drives=True, every=0):
        self.folder = root / f"{state_format}-{name}"
        (self.folder / "drive").mkdir(parents=True)
        text = RUN + (ON_DRIVES if on_drives else "")
        self.file = self.folder / "run.toml"
        self.file.write_text(text.format(folder=self.folder, root=root, every=every,
                                         state_format=state_format))

    def train(self, binary, *arguments):
        done = subprocess.run([binary, "train", str(self.file), *arguments], text=True,
                              stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False)
        if done.returncode != 0:
            sys.exit(done.stderr)

    def train_until(self, binary, reached):
        """Killed as soon as `reached()` says so."""
        with subprocess.Popen([binary, "train", str(self.file)], stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL) as process:
            while not reached() and process.poll() is None:
                time.sleep(0.002)
            process.kill()

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


def compare(root, state_format, before, after):
    whole = Run(root, "whole", state_format)
    whole.train(before)
    killed = Run(root, "killed", state_format)
    killed.train_until(before, lambda: len(killed.steps()) >= 3)
    cut = len(killed.steps())
    killed.train(after)
    outcomes = {f"state on the drive, killed in step {cut} or {cut + 1}": killed.outcome()}
    for on_drives in (True, False):
        one = Run(root, f"checkpoint-{on_drives}", state_format, on_drives, every=4)
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
        print(f"{state_format}: {name}: {'equal' if equal else 'DIFFERS'}", flush=True)
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
        good = [compare(root, state_format, options.before, options.after)
                for state_format in ("fp32", "split", "split-bf16", "split-int8")]
    sys.exit(0 if all(good) else 1)


if __name__ == "__main__":
    main()
