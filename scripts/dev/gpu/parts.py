"""The parts of a check, in the order of their worth: what each runs and how its outcome is read."""
import dataclasses
import os
import pathlib
import re
import shutil
import time

import gtests
import inventory
import process
import training
from job import Job

PART_SECONDS = 540
NO_GPU = "not run: no GPU"
# Suites that need one, as tests/CMakeLists.txt has them. Tests of other suites may have the word in
# their own names; those for machines without a GPU are skipped where there is one.
GPU = "Gpu*.*:*/Gpu*.*:*Gpu.*"
NOT_GPU = f"-Long*.*:*/Long*.*:{GPU}"
OPS = "*FusedOpsGpu*:RowOpsGpu*"
SMOKE = "Gpu.CopiesThereAndBackInOrderAndCounts:Gpu.LibTorchKeepsToTheCap"
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
    tool = find_sanitizer()
    if tool is None:
        return {"status": "not run: no compute-sanitizer"}
    measured, failures = [], []
    small = (("test_kernels", GPU), ("test_model", OPS), ("test_offload", GPU),
             ("test_device", "Gpu.*-*Cap:*Larger*"))
    for check in ("memcheck", "racecheck", "initcheck", "synccheck"):
        for binary, which in small:
            name = f"{check}-{binary}"
            job.call([tool, "--tool", check, "--error-exitcode", "9", job.setup.bin / binary,
                      f"--gtest_filter={which}"], name)
            found = re.search(r"ERROR SUMMARY: (\d+) error|(\d+) hazards? displayed",
                              job.tail(name, 4000))
            errors = int(next(group for group in found.groups() if group)) if found else None
            measured.append({"tool": check, "tests": binary, "findings": errors})
            if errors != 0:
                failures.append(f"{check} of {binary}: {errors} findings; {job.log(name).name}")
    return {"status": "failed" if failures else "passed", "failures": failures,
            "measured": measured}


def measure_copies(job):
    rows = job.program_json(["bench", "copies", "--json"])["rows"]
    worst = min(row["share_of_best"] for row in rows)
    return {"status": "passed" if worst >= 0.95 else "failed", "measured": rows,
            "failures": [] if worst >= 0.95 else [f"{worst:.1%} of the best cudaMemcpy, goal 95 %"]}


def train(size, cap):
    return lambda job: training.measure(job, size, cap)


def compare(peer, size):
    return lambda job: training.compare(job, peer, size)


PARTS = [
    Part("inventory", "what the machine is and has", False, inventory.take, seconds=120),
    Part("smoke", "one copy there and back, and the cap", True,
         tests(("test_device", SMOKE)), seconds=60),
    Part("kernels", "every kernel against its reference on the CPU", True,
         tests(("test_kernels", GPU), ("test_model", OPS), ("test_offload", GPU),
               ("test_engine", GPU))),
    Part("attention", "LibTorch's kernels as we call them, against the CPU", True,
         tests(("test_model", "*AttentionGpu*"))),
    Part("parity-three", "whole runs of three families against transformers, fp32 and bf16", True,
         tests(("test_parity", "*GpuTrajectory*/llama:*GpuTrajectory*/gpt2:"
                               "*GpuTrajectory*/qwen3_moe"))),
    Part("copies", "H2D and D2H of the arena, GB/s, beside the best cudaMemcpy", True,
         measure_copies),
    Part("device", "streams, events, arena, the allocator's cap", True,
         tests(("test_device", GPU))),
    Part("memory", "the plan's cap, and what going over it says", True,
         tests(("test_parity", "GpuMemory*"))),
    Part("train-1b-24", "step time and a timeline, Llama-shaped 1B, a cap of 24 GiB", True,
         train("1b", 24)),
    Part("train-1b-tight", "the same at the least cap that the plan takes", True,
         train("1b", None)),
    Part("bits", "what must not change a bit, on the GPU", True,
         tests(("test_parity", "*GpuSameBits*"))),
    Part("parity", "whole runs of all families", True, tests(("test_parity", "*GpuTrajectory*"))),
    Part("train-8b-24", "step time, 8B, a cap of 24 GiB", True, train("8b", 24)),
    Part("train-3b-24", "step time, 3B, a cap of 24 GiB", True, train("3b", 24)),
    Part("fsdp2-1b", "tokens/s beside PyTorch FSDP2 with CPU offload, 1B", True,
         compare("fsdp2", "1b")),
    Part("fsdp2-3b", "the same, 3B", True, compare("fsdp2", "3b")),
    Part("train-1b-16", "step time, 1B, a cap of 16 GiB", True, train("1b", 16)),
    Part("train-8b-16", "step time, 8B, a cap of 16 GiB", True, train("8b", 16)),
    Part("gathers", "gathers by NCCL and through the host", True,
         tests(("test_parity", "GpuRanks*")), gpus=2),
    Part("sanitizer", "compute-sanitizer over the small tests: 0 findings", True, sanitize),
    Part("cpu-basics", "files, formats, kernels' references, pinned memory", False,
         tests(("test_base", "-Long*"), ("test_kernels", NOT_GPU),
               ("test_device", NOT_GPU), ("test_pinned", NOT_GPU), gpu=False)),
    Part("cpu-model", "model ops against LibTorch's and transformers' goldens", False,
         tests(("test_model", NOT_GPU), ("test_engine", NOT_GPU), gpu=False)),
    Part("cpu-parity", "whole runs against transformers on the CPU", False,
         tests(("test_parity", f"*Trajectory*-{GPU}"), gpu=False)),
]


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
