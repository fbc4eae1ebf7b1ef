#!/usr/bin/env python3
"""Stands in for `longshore`, and by its name for gpu_speeds.py and the peer: answers as they do, at
once. The command that STAND_IN_HANGS names starts two processes, each in a group of its own, writes
their numbers to STAND_IN_PIDS and hangs; so does a training run, behind its steps."""
import json
import os
import pathlib
import re
import subprocess
import sys
import time

STEP_SECONDS = 1e-3
PLANNED_BYTES = 12345678901
SLEEP = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', " \
        "'import os, time; os.setpgid(0, 0); print(os.getpid(), flush=True); time.sleep(1000)'], " \
        "stdout=sys.stdout); time.sleep(1000)"


def start_children():
    child = subprocess.Popen([sys.executable, "-c", SLEEP], stdout=subprocess.PIPE,
                             process_group=0)
    grandchild = int(child.stdout.readline())
    if "STAND_IN_PIDS" in os.environ:
        pathlib.Path(os.environ["STAND_IN_PIDS"]).write_text(f"{child.pid} {grandchild}")


def after(word, count=1):
    at = sys.argv.index(word) + 1
    return sys.argv[at] if count == 1 else [each for each in sys.argv[at:] if each.isdigit()]


def train():
    text = pathlib.Path(sys.argv[2]).read_text()
    folder = pathlib.Path(re.search(r'dir = "(.*)"', text)[1])
    folder.mkdir(parents=True)
    start_children()
    pathlib.Path(after("--trace")).write_text("[]")
    with open(folder / "metrics.jsonl", "w", encoding="utf-8") as file:
        for step in range(1, 12):
            file.write(json.dumps({"kind": "step", "seconds": STEP_SECONDS}) + "\n")
            file.flush()
            print(f"step {step}/1000", flush=True)
    time.sleep(1000)


def program():
    command = sys.argv[1]
    if os.environ.get("STAND_IN_HANGS") == command:
        start_children()
        time.sleep(1000)
    if command == "train":
        train()
    answers = {
        "check": lambda: {"gpu": {"gpu": 0, "same": True, "differences": []},
                          "machine": {}}[sys.argv[2]],
        "plan": lambda: {"device": {"total_bytes": PLANNED_BYTES},
                         "forecast": {"step_seconds": STEP_SECONDS}},
        "bench": lambda: {"figures": [{"threads": int(count), "bytes_per_second": 1e9 * int(count),
                                       "share_of_bound": 0.9} for count in after("--threads", 2)]}
        if sys.argv[2] == "optimizer" else {"rows": [
            {"direction": "h2d", "copy_bytes": size << 20, "share_of_best": share}
            for size, share in ((4, 0.6), (256, 0.99))]}}
    print(json.dumps(answers[command](), indent=1))


def speeds():
    if "--beside" in sys.argv:
        subprocess.run(sys.argv[sys.argv.index("--beside") + 1:], check=True)
    pathlib.Path(sys.argv[1]).write_text(json.dumps(
        {"flops": 788e12, "h2d": 50e9, "d2h": 50e9, "dram": 150e9,
         "rows": [{"what": "q, o", "tflop_per_second": 600.0}]}))


def main():
    if sys.argv[0].endswith("gpu_speeds.py"):
        speeds()
    elif sys.argv[0].endswith("fsdp2_offload.py"):
        pathlib.Path(after("--out")).write_text(json.dumps({"system": "FSDP2",
                                                            "tokens_per_second": 10.0}))
    else:
        program()


if __name__ == "__main__":
    main()
