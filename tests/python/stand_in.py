#!/usr/bin/env python3
"""Stands in for the program `longshore`: appends its arguments to the file calls.jsonl of the
working directory. `config dump` prints a run directory, `train` runs the run file as Python, and
every other command prints the file answer.json."""
import json
import os
import pathlib
import signal
import sys
import time

PATIENCE_SECONDS = 60
METRICS = pathlib.Path("run/metrics.jsonl")


def write(**record):
    """Appends a record, as one write."""
    with open(METRICS, "ab", buffering=0) as file:
        file.write((json.dumps({"time": time.time(), **record}) + "\n").encode())


def status(**members):
    pathlib.Path("run/run.json").write_text(json.dumps({**members, "pid": os.getpid()}))


def wait_for(name):
    """Waits for a file that the test makes."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not pathlib.Path(name).exists():
        if time.monotonic() > end:
            sys.exit(f"error: {name} did not come")
        time.sleep(0.01)


def take_signals():
    """From now on SIGTERM and SIGINT are noted and do nothing else; returns their list."""
    received = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _frame: received.append(int(number)))
    return received


def go_on_until_stopped(received):
    """Waits for SIGTERM, saves, and ends with 128 + 15. The file `saved` lists the signals."""
    while signal.SIGTERM not in received:
        time.sleep(0.01)
    write(kind="checkpoint", step=1)
    pathlib.Path("saved").write_text(json.dumps(sorted(received)))
    sys.exit(128 + signal.SIGTERM)


def main():
    words = sys.argv[1:]
    with open("calls.jsonl", "a", encoding="utf-8") as file:
        file.write(json.dumps(words) + "\n")
    if words[:2] == ["config", "dump"]:
        print('[run]\nname = "x"\ndir = "run"\n\n[data]\ndir = "other"')
    elif words[0] == "train":
        METRICS.parent.mkdir(exist_ok=True)
        exec(pathlib.Path(words[1]).read_text(), globals())  # the test's own lines
    else:
        print(pathlib.Path("answer.json").read_text())


if __name__ == "__main__":
    main()
