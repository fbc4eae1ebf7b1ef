"""The parts of a check: what each runs and how its outcome is read. 9 minutes at most each."""
import dataclasses
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import time

import training

LIMIT_SECONDS = 540
NO_GPU = "not run: no GPU"
# Suites that need one, as tests/CMakeLists.txt has them. Tests of other suites may have the word in
# their own names; those for machines without a GPU are skipped where there is one.
GPU = "Gpu*.*:*/Gpu*.*:*Gpu.*"
NOT_GPU = f"-Long*.*:*/Long*.*:{GPU}"


@dataclasses.dataclass
class Part:
    name: str
    text: str
    needs_gpu: bool
    work: object  # called with (setup, deadline); returns a dict, "status" in it
    gpus: int = 1


class Stopped(Exception):
    pass


def call(setup, command, deadline, log):
    """Runs a command in a process group of its own until the deadline; output goes to `log`."""
    setup.scratch.mkdir(parents=True, exist_ok=True)
    with open(log, "ab") as output:
        process = subprocess.Popen([str(word) for word in command], stdout=output, stderr=output,
                                   env=setup.environment, cwd=setup.scratch,
                                   start_new_session=True)
        try:
            return process.wait(timeout=max(1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise Stopped(" ".join(str(word) for word in command)) from None


def run_tests(setup, deadline, selection, gpu):
    """selection: (binary, filter) pairs. A test of the GPU that was skipped did not pass."""
    ran, skipped, failures = 0, 0, []
    setup.scratch.mkdir(parents=True, exist_ok=True)
    for binary, tests in selection:
        found = setup.scratch / f"{binary}.json"
        found.unlink(missing_ok=True)
        log = setup.scratch / f"{binary}.log"
        log.unlink(missing_ok=True)
        code = call(setup, [setup.bin / binary, f"--gtest_filter={tests}",
                            f"--gtest_output=json:{found}"], deadline, log)
        if not found.exists():
            tail = log.read_text(errors="replace").splitlines()[-5:]
            failures.append(f"{binary} ended with {code}: {' '.join(tail)}")
            continue
        for suite in json.loads(found.read_text())["testsuites"]:
            for test in suite["testsuite"]:
                name = f"{binary} {suite['name']}.{test['name']}"
                ran += 1
                if test.get("result") == "SKIPPED":
                    skipped += 1
                for failure in test.get("failures", []):
                    failures.append(f"{name}: {failure['failure'].splitlines()[0:4]}")
        if code != 0 and not failures:
            failures.append(f"{binary} ended with {code}")
    if gpu and skipped:
        failures.append(f"{skipped} tests were skipped")
    if ran == 0 and not failures:
        failures.append("no test was found")
    return {"status": "failed" if failures else "passed", "tests": ran - skipped,
            "skipped": skipped, "failures": failures[:20]}


def tests(*selection, gpu=True):
    return lambda setup, deadline: run_tests(setup, deadline, selection, gpu)


def find_sanitizer():
    for folder in (os.environ.get("CUDA_HOME", ""), "/usr/local/cuda"):
        path = pathlib.Path(folder or "/nonexistent") / "bin/compute-sanitizer"
        if path.exists():
            return path
    return shutil.which("compute-sanitizer")


def sanitize(setup, deadline):
    tool = find_sanitizer()
    if tool is None:
        return {"status": "not run: no compute-sanitizer"}
    measured, failures = [], []
    for check in ("memcheck", "racecheck", "initcheck", "synccheck"):
        for binary, which in (("test_kernels", GPU), ("test_device", "Gpu.*-*Cap:*Larger*")):
            log = setup.scratch / f"{check}-{binary}.log"
            log.unlink(missing_ok=True)
            call(setup, [tool, "--tool", check, "--error-exitcode", "9", setup.bin / binary,
                         f"--gtest_filter={which}"], deadline, log)
            text = log.read_text(errors="replace")
            found = re.search(r"ERROR SUMMARY: (\d+) error|(\d+) hazards? displayed", text)
            errors = int(next(group for group in found.groups() if group)) if found else None
            measured.append({"tool": check, "tests": binary, "findings": errors})
            if errors != 0:
                failures.append(f"{check} of {binary}: {errors} findings; {log.name}")
    return {"status": "failed" if failures else "passed", "failures": failures,
            "measured": measured}


def program_json(setup, deadline, words):
    """What `longshore WORDS` prints, as JSON."""
    log = setup.scratch / ("-".join(words) + ".log")
    log.unlink(missing_ok=True)
    code = call(setup, [setup.bin / "longshore", *words], deadline, log)
    text = log.read_text(errors="replace")
    if code != 0:
        raise RuntimeError(f"longshore {' '.join(words)} ended with {code}: {text[-500:]}")
    return json.loads(text[text.index("{"):])


def measure_copies(setup, deadline):
    rows = program_json(setup, deadline, ["bench", "copies", "--json"])["rows"]
    worst = min(row["share_of_best"] for row in rows)
    return {"status": "passed" if worst >= 0.95 else "failed", "measured": rows,
            "failures": [] if worst >= 0.95 else [f"{worst:.1%} of the best cudaMemcpy, goal 95 %"]}


PARTS = [
    Part("cpu-basics", "files, formats, kernels' references, pinned memory", False,
         tests(("test_base", "-Long*"), ("test_kernels", NOT_GPU),
               ("test_device", NOT_GPU), ("test_pinned", NOT_GPU), gpu=False)),
    Part("cpu-model", "model ops against LibTorch's and transformers' goldens", False,
         tests(("test_model", NOT_GPU), ("test_fsdp", NOT_GPU), gpu=False)),
    Part("cpu-parity", "whole runs against transformers on the CPU", False,
         tests(("test_parity", f"*Trajectory*-{GPU}"), gpu=False)),
    Part("device", "streams, events, arena, copies, the allocator's cap", True,
         tests(("test_device", GPU))),
    Part("kernels", "every kernel and attention against its reference on the CPU", True,
         tests(("test_kernels", GPU), ("test_model", GPU))),
    Part("sanitizer", "compute-sanitizer over the small tests: 0 findings", True, sanitize),
    Part("parity", "whole runs on the GPU against transformers, fp32 and bf16", True,
         tests(("test_parity", "*GpuTrajectory*"))),
    Part("bits", "what must not change a bit, on the GPU", True,
         tests(("test_parity", "*GpuSameBits*"))),
    Part("gathers", "gathers by NCCL and through the host", True,
         tests(("test_parity", "GpuRanks*")), gpus=2),
    Part("memory", "the plan's cap, and what going over it says", True,
         tests(("test_parity", "GpuMemory*"))),
    Part("copies", "H2D and D2H of the arena, GB/s, beside the best cudaMemcpy", True,
         measure_copies),
    Part("train-1b", "step time, Llama-shaped 1B, caps of 24 and 16 GB", True,
         lambda setup, deadline: training.measure(setup, deadline, "1b", call)),
    Part("train-3b", "the same, 3B", True,
         lambda setup, deadline: training.measure(setup, deadline, "3b", call)),
    Part("train-8b", "the same, 8B", True,
         lambda setup, deadline: training.measure(setup, deadline, "8b", call)),
    Part("fsdp2-1b", "tokens/s beside PyTorch FSDP2 with CPU offload, 1B", True,
         lambda setup, deadline: training.compare(setup, deadline, "1b", call)),
    Part("fsdp2-3b", "the same, 3B", True,
         lambda setup, deadline: training.compare(setup, deadline, "3b", call)),
]


def run(part, setup):
    begin = time.monotonic()
    if part.needs_gpu and setup.gpu is None:
        outcome = {"status": NO_GPU}
    elif part.needs_gpu and setup.gpu["count"] < part.gpus:
        outcome = {"status": f"not run: {setup.gpu['count']} GPU, needs {part.gpus}"}
    else:
        setup.scratch.mkdir(parents=True, exist_ok=True)
        try:
            outcome = part.work(setup, begin + LIMIT_SECONDS)
        except Stopped as stopped:
            outcome = {"status": "stopped", "failures": [f"after {LIMIT_SECONDS} s: {stopped}"]}
        except (OSError, RuntimeError, ValueError, KeyError) as error:
            outcome = {"status": "failed", "failures": [f"{type(error).__name__}: {error}"]}
    outcome["seconds"] = round(time.monotonic() - begin, 1)
    outcome["text"] = part.text
    return outcome
