#!/usr/bin/env python3
"""How far Trajectory's runs, transformers in fp32 and transformers in fp64 are from each other.

    .venv/bin/python tests/parity/trajectory_spread.py [--preset test] [GOLDEN...]

Trains every golden model 20 steps by `longshore train` as Trajectory does, and once more by
transformers and torch.optim.AdamW in fp64 (rotary frequencies stay what fp32 made them). Prints
the largest relative differences of gradient norms and losses over the steps. Says where a tolerance
on the fp32 golden values asks for more than fp32 gives: two right ways of summing part there.
"""
import argparse
import contextlib
import json
import pathlib
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import torch  # noqa: E402
import transformers  # noqa: E402

import make_golden  # noqa: E402
from weights import with_weights  # noqa: E402

GOLDEN = HERE / "golden"


@contextlib.contextmanager
def all_in_fp64():
    """Models name fp32 in their norms, softmaxes and rotary tables: fp64 stands in for it."""
    kept = torch.float32, torch.Tensor.float, torch.get_default_dtype()
    torch.float32, torch.Tensor.float = torch.float64, torch.Tensor.double
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.float32, torch.Tensor.float = kept[:2]
        torch.set_default_dtype(kept[2])


def train_longshore(program, model, facts, max_grad_norm, work):
    """Losses and norms of the run that RunDriver::golden_arguments describes."""
    (work / "empty.toml").write_text("")
    adamw = facts["adamw"]
    values = {
        "model.path": str(model), "data.train": [str(model / "train.jsonl")],
        "data.format": "tokens", "data.packing": False, "data.shuffle": False,
        "data.max_tokens": 40, "data.cache": str(work / "cache"), "run.dir": str(work / "run"),
        "train.steps": facts["steps"], "train.sequences_per_step": facts["sequences_per_step"],
        "train.max_grad_norm": max_grad_norm, "optimizer.lr": adamw["lr"],
        "optimizer.betas": adamw["betas"], "optimizer.eps": adamw["eps"],
        "optimizer.weight_decay": adamw["weight_decay"], "schedule.name": "constant",
        "precision.compute": "fp32", "checkpoint.export": "never", "device.kind": "cpu",
        "device.threads": 1, "offload.threads": 1, "offload.state_format": "split",
        "log.every_steps": 1000}
    subprocess.run([program, "train", work / "empty.toml",
                    *(f"--{key}={json.dumps(value)}" for key, value in values.items())],
                   check=True, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    lines = (json.loads(line) for line in (work / "run/metrics.jsonl").open())
    steps = [line for line in lines if "grad_norm" in line]
    return [step["loss"] for step in steps], [step["grad_norm"] for step in steps]


def train_fp64(directory, facts, max_grad_norm):
    model = make_golden.load(make_golden.CASES[directory.name], str(directory)).double()
    rows = [json.loads(line) for line in (directory / "train.jsonl").open()]
    with all_in_fp64():
        return make_golden.train(model, rows, max_grad_norm, facts["adamw"])


def apart(values, reference):
    return max(abs(a - b) / b for a, b in zip(values, reference, strict=True))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--preset", default="test")
    parser.add_argument("names", nargs="*", metavar="GOLDEN")
    arguments = parser.parse_args()
    program = HERE.parents[1] / "build" / arguments.preset / "longshore"
    torch.set_num_threads(1)
    print(f"transformers {transformers.__version__}, torch {torch.__version__}\n"
          "L: longshore, fp32; T: transformers, fp32; D: transformers, fp64\n"
          f"{'':24}{'gradient norms':^27}{'losses':^27}\n"
          f"{'model':18}{'run':6}" + 2 * f"{'L-T':>9}{'T-D':>9}{'L-D':>9}", flush=True)
    for name in arguments.names or sorted(path.name for path in GOLDEN.iterdir()):
        model = with_weights(GOLDEN / name)
        facts = json.loads((model / "golden.json").read_text())
        for kind, wanted in facts["runs"].items():
            with tempfile.TemporaryDirectory() as work:
                losses, norms = train_longshore(program, model, facts, wanted["max_grad_norm"],
                                                pathlib.Path(work))
            exact_losses, exact_norms = train_fp64(model, facts, wanted["max_grad_norm"])
            figures = [apart(norms, wanted["grad_norm"]), apart(wanted["grad_norm"], exact_norms),
                       apart(norms, exact_norms), apart(losses, wanted["loss"]),
                       apart(wanted["loss"], exact_losses), apart(losses, exact_losses)]
            print(f"{name:18}{kind:6}" + "".join(f"{figure:9.1e}" for figure in figures),
                  flush=True)


if __name__ == "__main__":
    main()
