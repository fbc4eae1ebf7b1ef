#!/usr/bin/env python3
"""Stands in for a GoogleTest binary: speaks as one, and passes, fails, skips, hangs, crashes or
prints 100 MB as its tests are named. All pass where its own name ends with "two", or with
STAND_IN_WELL=1."""
import os
import signal
import sys
import time

TESTS = {"Good": ["Passes", "Skips", "PassesToo"],
         "Bad": ["Fails", "Hangs", "Crashes", "Prints"],
         "Last": ["Passes"]}
PRINTED_BYTES = 100_000_000
WELL = os.environ.get("STAND_IN_WELL") == "1" or sys.argv[0].endswith("two")


def say(text):
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def run(suite, test):
    name = f"{suite}.{test}"
    say(f"[ RUN      ] {name}")
    outcome = "OK"
    if not WELL:
        if test == "Fails":
            say("somewhere.cpp:1: Failure")
            outcome = "FAILED"
        elif test == "Skips":
            outcome = "SKIPPED"
        elif test == "Hangs":
            while True:
                time.sleep(1)
        elif test == "Crashes":
            os.kill(os.getpid(), signal.SIGSEGV)
        elif test == "Prints":
            for _ in range(PRINTED_BYTES // 10_000):
                sys.stdout.write("x" * 9_999 + "\n")
    say(f"[{outcome:>9} ] {name} (1 ms)")
    return outcome == "FAILED"


def main():
    if "--gtest_list_tests" in sys.argv:
        for suite, tests in TESTS.items():
            say(f"{suite}.")
            for test in tests:
                say(f"  {test}")
        return 0
    wanted = next(word for word in sys.argv if word.startswith("--gtest_filter="))
    wanted = wanted.split("=", 1)[1].split(":")
    failed = [run(suite, test) for suite, tests in TESTS.items() for test in tests
              if f"{suite}.{test}" in wanted]
    return 1 if any(failed) else 0


sys.exit(main())
