"""The parts of a check, in the order of their worth: what each runs and how its outcome is read.

A machine that is lent for minutes gets them in two calls. The first tells whether anything works
and how fast the pieces are, then whole steps of 8B; the second what takes
longer."""
import dataclasses
import json
import os
import pathlib
import re
import shutil
import sys
import time

import gtests
import inventory
import process
import training
from job import Job

PART_SECONDS = 540
BUDGETS = {"first": 400, "second": 220}  # of a call, in seconds: of commands of 420 and 240
THREADS = (5, 8, 13, 16)  # of the optimizer
FORMAT = "split-bf16"
BESIDE_ROUNDS = 150  # some seconds
UNIT_BYTES = 256 << 20  # about a block of a large model
NO_GPU = "not run: no GPU"
# Suites that need one, as tests/CMakeLists.txt has them. Tests of other suites may have the word in
# their own names; those for machines without a GPU are skipped where there is one.
GPU = "Gpu*.*:*/Gpu*.*:*Gpu.*"
NOT_GPU = f"-Long*.*:*/Long*.*:{GPU}"
OPS = "*FusedOpsGpu*:RowOpsGpu*"
MOST_FAILURES = 40


@dataclasses.dataclass
class Part:
    name: str
    text: str
    needs_gpu: bool
    work: object  # called with a Job; returns a dict, "status" in it
    gpus: int = 1
    seconds: int = PART_SECONDS


def run_tests(job, selection, gpu):
    """A test of the GPU that was skipped did not pass."""
    outcomes = gtests.run(job, selection)
    skipped = [test for test, outcome in outcomes.items() if outcome == "skipped"]
    failures = [f"{test}: {outcome}" for test, outcome in outcomes.items()
                if outcome not in ("passed", "skipped")]
    if gpu and skipped:
        failures.append(f"{len(skipped)} tests were skipped: {', '.join(skipped[:5])}")
    return {"status": "failed" if failures else "passed",
            "tests": len(outcomes) - len(skipped), "skipped": len(skipped),
            "failures": failures[:MOST_FAILURES]}


def tests(*selection, gpu=True):
    return lambda job: run_tests(job, selection, gpu)


def find_sanitizer():
    for folder in (os.environ.get("CUDA_HOME", ""), "/usr/local/cuda"):
        path = pathlib.Path(folder or "/nonexistent") / "bin/compute-sanitizer"
        if path.exists():
            return path
    return shutil.which("compute-sanitizer")


def sanitize(job):
    """Our kernels alone: over LibTorch's it would take minutes and find what is not ours."""
    tool = find_sanitizer()
    if tool is None:
        return {"status": "not run: no compute-sanitizer"}
    code = job.call([tool, "--tool", "memcheck", "--error-exitcode", "9",
                     job.setup.bin / "test_kernels", f"--gtest_filter={GPU}"], "memcheck")
    found = re.search(r"ERROR SUMMARY: (\d+) error", job.tail("memcheck", 4000))
    errors = int(found[1]) if found else None
    failures = [] if errors == 0 and code == 0 else [f"memcheck: {errors} errors, exit code {code}"]
    return {"status": "failed" if failures else "passed", "failures": failures,
            "measured": [{"tool": "memcheck", "tests": "test_kernels", "findings": errors}]}


def compare_gpu(job):
    """What every run asks before its first step on a GPU."""
    code, found = job.answer(["check", "gpu", "--gpu", "0", "--json"], "gpu-check")
    if found is None:
        raise RuntimeError(f"check gpu ended with {code}: {job.tail('gpu-check')}")
    failures = found["differences"] + ([] if code in (0, 10) else [f"exit code {code}"])
    return {"status": "passed" if found["same"] and not failures else "failed",
            "failures": failures[:MOST_FAILURES]}


def bench_optimizer(job):
    """The update alone at several thread counts, then at the best of them beside copies both ways,
    as in a step."""
    cores = os.cpu_count() or 1
    counts = sorted({min(count, cores) for count in (*THREADS, max(1, cores - 3))})
    words = ["bench", "optimizer", "--json", "--format", FORMAT]
    alone = job.program_json([*words, "--threads", *counts], "alone")["figures"]
    rows = [{"threads": row["threads"], "gb_per_second": row["bytes_per_second"] / 1e9,
             "share_of_bound": row["share_of_bound"]} for row in alone]
    best = max(rows, key=lambda row: row["gb_per_second"])["threads"]
    copies = job.setup.scratch / "copies.json"
    copies.unlink(missing_ok=True)
    beside = job.program_json(
        [*words, "--threads", best, "--rounds", BESIDE_ROUNDS], "beside-copies",
        before=[sys.executable, job.setup.bench / "peers/gpu_speeds.py", copies, "--beside"])
    moved = json.loads(copies.read_text())
    rows.append({"threads": best, "beside": "copies both ways",
                 "gb_per_second": beside["figures"][0]["bytes_per_second"] / 1e9,
                 "h2d_gb_per_second": moved["h2d"] / 1e9, "d2h_gb_per_second": moved["d2h"] / 1e9})
    return {"status": "passed", "measured": rows}


def measure_copies(job):
    """The goal is for copies of a unit's size; a lane waits for the GPU after each."""
    rows = job.program_json(["bench", "copies", "--json"], "copies")["rows"]
    worst = min(row["share_of_best"] for row in rows if row["copy_bytes"] >= UNIT_BYTES)
    return {"status": "passed" if worst >= 0.95 else "failed", "measured": rows,
            "failures": [] if worst >= 0.95 else [f"{worst:.1%} of the best cudaMemcpy, goal 95 %"]}


def train(size, cap, **more):
    return lambda job: training.measure(job, training.Run(size, cap, **more))


def compare(peer, size, rows_of_peer):
    return lambda job: training.compare(job, peer, size, rows_of_peer)


FIRST = [
    Part("inventory", "what the machine is and has", False, inventory.take, seconds=60),
    Part("gpu-check", "what every run asks first: copies, kernels, attention, a tiny model", True,
         compare_gpu, seconds=90),
    Part("speeds", "a block's products and attention, the head, links, by torch alone", True,
         training.speeds, seconds=75),
    Part("kernels", "every kernel against its reference on the CPU", True,
         tests(("test_kernels", GPU), ("test_model", OPS), ("test_offload", GPU),
               ("test_engine", GPU)), seconds=90),
    Part("attention", "LibTorch's kernels as we call them, against the CPU", True,
         tests(("test_model", "*AttentionGpu*")), seconds=60),
    Part("rates", "the machine's speeds and a block's, and the step time that the plan then has",
         True, lambda job: training.forecast(job, training.Run("8b", 24, micro_batch=4)),
         seconds=110),
    Part("train-8b-24-by-4", "step time of 8B, four rows at a time, a cap of 24 GiB", True,
         train("8b", 24, steps=4, micro_batch=4), seconds=120),
    Part("parity-three", "whole runs of three families against transformers, fp32 and bf16", True,
         tests(("test_parity", "SelfCheckChild*:*GpuTrajectory*/llama:"
                               "*GpuTrajectory*/qwen3_5_text:*GpuTrajectory*/qwen3_moe")),
         seconds=150),
    Part("train-8b-lora-24-by-4", "step time of LoRA over a frozen 8B, four rows at a time", True,
         train("8b", 24, steps=4, micro_batch=4, adapter=True), seconds=90),
    Part("fsdp2-1b", "tokens/s beside PyTorch FSDP2 with CPU offload, 1B", True,
         compare("fsdp2", "1b", 1), seconds=90),
    Part("bits", "what must not change a bit on the GPU, llama", True,
         tests(("test_parity", "*GpuSameBits.*/llama")), seconds=60),
]
SECOND = [
    Part("memory", "the plan's cap, and what going over it says", True,
         tests(("test_parity", "*GpuMemory*")), seconds=150),
    Part("train-8b-24", "step time and a timeline, 8B, a cap of 24 GiB", True,
         train("8b", 24, steps=5), seconds=180),
    Part("train-1b-24", "step time and a timeline, Llama-shaped 1B, a cap of 24 GiB", True,
         train("1b", 24), seconds=90),
    Part("adapters", "whole runs of LoRA and DoRA against PEFT", True,
         tests(("test_parity", "*GpuAdapterTrajectory*")), seconds=150),
    Part("preference", "whole runs of losses over pairs against TRL", True,
         tests(("test_parity", "*GpuPreference*")), seconds=90),
    Part("train-8b-lora-24", "step time of LoRA over a frozen 8B, a cap of 24 GiB", True,
         train("8b", 24, steps=5, adapter=True), seconds=90),
    Part("train-8b-24-unclipped", "step time of 8B without clipping, updated in backward", True,
         train("8b", 24, steps=4, micro_batch=4, clipping=False), seconds=100),
    Part("optimizer", "the update at several thread counts, and beside copies", True,
         bench_optimizer, seconds=60),
    Part("device", "streams, events, arena, the allocator's cap", True,
         tests(("test_device", GPU)), seconds=60),
    Part("host-memory", "memory touched and let go: what the machine then says that it has", True,
         inventory.grow, seconds=40),
    Part("train-8b-16k", "8B with 16,384 tokens a step", True,
         train("8b", 24, rows=4, steps=4, micro_batch=4), seconds=100),
    Part("train-8b-64k", "8B with 65,536 tokens a step, activation checkpoints on the host", True,
         train("8b", 24, rows=16, steps=4, micro_batch=4, activations="host"), seconds=120),
    Part("copies", "H2D and D2H of the arena, GB/s, beside the best cudaMemcpy", True,
         measure_copies, seconds=60),
    Part("parity", "whole runs of all families", True, tests(("test_parity", "*GpuTrajectory*"))),
    Part("sanitizer", "memcheck over our kernels: 0 findings", True, sanitize),
]
LATER = [
    Part("train-1b-tight", "1B at the very bytes that its plan has", True, train("1b", None)),
    Part("all-bits", "what must not change a bit on the GPU, all families", True,
         tests(("test_parity", "*GpuSameBits*"))),
    Part("train-3b-24", "step time, 3B, a cap of 24 GiB", True, train("3b", 24)),
    Part("fsdp2-3b", "tokens/s beside PyTorch FSDP2 with CPU offload, 3B", True,
         compare("fsdp2", "3b", 1)),
    Part("train-1b-16", "step time, 1B, a cap of 16 GiB", True, train("1b", 16)),
    Part("train-8b-16", "step time, 8B, a cap of 16 GiB", True, train("8b", 16)),
    Part("gathers", "gathers by NCCL and through the host", True,
         tests(("test_parity", "GpuRanks*")), gpus=2),
    Part("cpu-basics", "files, formats, kernels' references, pinned memory", False,
         tests(("test_base", "-Long*"), ("test_kernels", NOT_GPU),
               ("test_device", NOT_GPU), ("test_pinned", NOT_GPU), gpu=False)),
    Part("cpu-model", "model ops against LibTorch's and transformers' goldens", False,
         tests(("test_model", NOT_GPU), ("test_engine", NOT_GPU), gpu=False)),
    Part("cpu-parity", "whole runs against transformers on the CPU", False,
         tests(("test_parity", f"*Trajectory*-{GPU}"), gpu=False)),
]
CALLS = {"first": FIRST, "second": SECOND}
PARTS = FIRST + SECOND + LATER


def run(part, setup, journal, until):
    """`until`: the end of the budget, of time.monotonic()."""
    begin = time.monotonic()
    if part.needs_gpu and setup.gpu is None:
        outcome = {"status": NO_GPU}
    elif part.needs_gpu and setup.gpu["count"] < part.gpus:
        outcome = {"status": f"not run: {setup.gpu['count']} GPU, needs {part.gpus}"}
    elif begin >= until:
        outcome = {"status": "not run: no time left"}
    else:
        limit = min(part.seconds, until - begin)
        try:
            outcome = part.work(Job(setup, journal, part.name, begin + limit))
        except process.Stopped as stopped:
            outcome = {"status": "stopped", "failures": [f"after {limit:.0f} s: {stopped}"]}
        except Exception as error:  # what a part meets must not end the others
            outcome = {"status": "failed", "failures": [f"{type(error).__name__}: {error}"]}
    outcome["seconds"] = round(time.monotonic() - begin, 1)
    outcome["text"] = part.text
    return outcome
