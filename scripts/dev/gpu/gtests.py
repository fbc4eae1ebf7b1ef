"""Runs GoogleTest binaries test by test: a test that hangs, crashes or fails takes no other along.

After a failure the rest gets a new process, for one illegal access makes all later calls of its
process fail. Every outcome is told when it is there.
"""
import re
import subprocess
import time

import process

START_SECONDS = 120  # LibTorch's GPU kernels take long to load the first time
MOST_LOST = 3  # processes in a row that end before a test begins
MARK = re.compile(r"\[ +(RUN|OK|FAILED|SKIPPED) +\] ([^\s,]+)")
OUTCOMES = {"OK": "passed", "FAILED": "failed", "SKIPPED": "skipped"}


def list_tests(setup, binary, selection):
    command = [str(setup.bin / binary), "--gtest_list_tests", f"--gtest_filter={selection}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=START_SECONDS,
                          env=setup.environment, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{binary} lists no tests, it ended with {done.returncode}: "
                           f"{(done.stdout + done.stderr)[-400:]}")
    names, suite = [], ""
    for line in done.stdout.splitlines():
        word = line.split("#")[0].strip()
        if not line.startswith(" "):
            suite = word if word.endswith(".") else ""
        elif suite and word:
            names.append(suite + word)
    return names


class Turn:
    """One process over the tests that are left."""

    def __init__(self, deadline, test_seconds, tell):
        self.deadline, self.test_seconds, self.tell = deadline, test_seconds, tell
        self.now = None
        self.begin = time.monotonic()
        self.limit = self.begin + max(START_SECONDS, test_seconds)
        self.done = []
        self.over = False  # a test failed: what the process says until it is ended is not heard

    def line(self, text):
        mark = MARK.match(text)
        if mark is None or self.over:
            return self.over
        word, name = mark.groups()
        if word == "RUN":
            self.now = name
            self.begin = time.monotonic()
            self.limit = self.begin + self.test_seconds
            self.tell(name, "started", 0.0)
            return False
        if name != self.now:
            return False  # the list at the end
        return self.finish(OUTCOMES[word])

    def finish(self, outcome):
        self.tell(self.now, outcome, time.monotonic() - self.begin)
        self.done.append(self.now)
        self.now = None
        self.limit = time.monotonic() + self.test_seconds
        self.over = outcome == "failed"
        return self.over

    def ends(self):
        return min(self.limit, self.deadline)


def run_rest(job, binary, names, number, tell):
    """Runs the tests until one of them ends the process; returns those that have an outcome."""
    turn = Turn(job.deadline, job.setup.test_seconds, tell)
    command = [job.setup.bin / binary, f"--gtest_filter={':'.join(names)}", "--gtest_color=no"]
    try:
        code = process.run(command, turn.ends, job.log(f"{binary}-{number}"),
                           job.setup.environment, job.setup.scratch, turn.line)
    except process.Stopped:
        if time.monotonic() >= job.deadline:
            raise
        if turn.now is None:
            turn.now = next(name for name in names if name not in turn.done)
        turn.finish("hung")
        return turn.done
    if turn.now is not None:
        turn.finish(f"crashed ({code})")
    elif len(turn.done) < len(names) and not turn.done:
        # It ended before a test began: nobody knows whose fault it was.
        turn.now = names[0]
        turn.finish(f"ended with {code} before it began")
    return turn.done


def run(job, selection):
    """selection: (binary, filter) pairs. Outcomes are told to the job as they come; those of an
    earlier call stand. Returns test -> outcome."""
    outcomes, known = {}, job.known()
    for binary, tests in selection:
        names = list_tests(job.setup, binary, tests)
        if not names:
            raise RuntimeError(f"{binary} has no test {tests}")

        def note(name, outcome, seconds, binary=binary):
            test = f"{binary} {name}"
            if outcome != "started":
                outcomes[test] = outcome
            job.tell(test, outcome, seconds)

        for name in names:
            if f"{binary} {name}" in known:
                outcomes[f"{binary} {name}"] = known[f"{binary} {name}"]
        rest = [name for name in names if f"{binary} {name}" not in known]
        number = lost = 0
        while rest:
            done = run_rest(job, binary, rest, number, note)
            lost = lost + 1 if outcomes[f"{binary} {done[0]}"].startswith("ended") else 0
            if lost == MOST_LOST:
                raise RuntimeError(f"{binary} ends before a test begins: "
                                   f"{job.tail(f'{binary}-{number}')}")
            rest = [name for name in rest if name not in done]
            number += 1
    return outcomes
