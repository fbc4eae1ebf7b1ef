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


def stop_as_a_run():
    """From now on SIGTERM saves and ends with 128 + 15; the file signals lists all signals."""
    def note(number, _frame):
        with open("signals", "a", encoding="utf-8") as file:
            file.write(f"{number}\n")
        if number == signal.SIGTERM:
            write(kind="checkpoint", step=1)
            pathlib.Path("saved").touch()
            sys.exit(128 + number)
    signal.signal(signal.SIGTERM, note)
    signal.signal(signal.SIGINT, note)


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
