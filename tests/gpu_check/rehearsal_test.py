#!/usr/bin/env python3
"""A rehearsal of scripts/gpu_check with stand-ins for its binaries: whatever they do, and whenever
the check itself is killed, the archive is whole and tells what ran from what did not.

Waits are for lines of the journal, never for time; the one limit that is waited for is that of the
test that hangs."""
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import unittest

HERE = pathlib.Path(__file__).resolve().parent
GPU = HERE.parents[1] / "scripts/dev/gpu"
sys.path.insert(0, str(GPU))

import journal as journals  # noqa: E402
import parts  # noqa: E402

HANG_SECONDS = 15
FIRST = {"test_one Good.Passes": "passed", "test_one Good.Skips": "skipped",
         "test_one Good.PassesToo": "passed", "test_one Bad.Fails": "failed",
         "test_one Bad.Hangs": "hung", "test_one Bad.Crashes": "crashed (-11)",
         "test_one Bad.Prints": "passed", "test_one Last.Passes": "passed"}


class StandInSetup:
    def __init__(self, root):
        self.bin, self.scratch = root / "bin", root / "scratch"
        self.gpu = {"name": "Stand In 1", "memory_bytes": 1 << 30, "count": 1,
                    "driver_cuda": "13.0"}
        self.test_seconds = HANG_SECONDS
        self.environment = {"STAND_IN_WELL": "1", **os.environ}
        self.bin.mkdir(parents=True, exist_ok=True)
        for name in ("test_one", "test_two"):
            shutil.copy(HERE / "stand_in.py", self.bin / name)

    def describe(self):
        return {"gpu": self.gpu, "build": {"commit": "rehearsal"}, "cores": 1, "memory_bytes": 1,
                "system": "none", "torch": "none"}


def breaks(job):
    raise ValueError("a part that breaks")


PARTS = [parts.Part("one", "stand-ins", True, parts.tests(("test_one", "*"))),
         parts.Part("breaks", "a part that breaks", True, breaks),
         parts.Part("two-gpus", "needs two", True, breaks, gpus=2),
         parts.Part("two", "stand-ins", True, parts.tests(("test_two", "*")))]


def check(root, resume):
    """What scripts/gpu_check does with its parts, in this process."""
    setup = StandInSetup(root)
    journal = journals.Journal(root / "out", resume, setup.describe())
    for part in PARTS:
        if not journal.is_done(part.name):
            journal.part(part.name, parts.run(part, setup, journal, time.monotonic() + 3600))
    journal.publish()


def start(root, resume, well):
    environment = {**os.environ, "STAND_IN_WELL": "1" if well else "0"}
    words = [sys.executable, __file__, "--check", str(root)] + (["--resume"] if resume else [])
    return subprocess.Popen(words, env=environment, start_new_session=True)


def outcomes(root):
    """part -> test -> last outcome."""
    found = {}
    for line in journals.read_lines(root / "out/journal.jsonl"):
        if line["kind"] == "test":
            found.setdefault(line["part"], {})[line["test"]] = line["outcome"]
    return found


class Rehearsal(unittest.TestCase):
    def setUp(self):
        self.root = pathlib.Path(tempfile.mkdtemp(prefix="gpu-check-"))

    def tearDown(self):
        shutil.rmtree(self.root, ignore_errors=True)

    def archive(self):
        """name -> bytes; each read to its end."""
        with tarfile.open(self.root / "out/archive.tar.gz") as tar:
            return {member.name: tar.extractfile(member).read() for member in tar.getmembers()}

    def expect_whole(self):
        if not (self.root / "out/archive.tar.gz").exists():
            return
        found = self.archive()
        json.loads(found["summary.json"])
        self.assertIn("summary.md", found)

    def test_one_bad_test_takes_no_other_along(self):
        self.assertEqual(start(self.root, resume=False, well=False).wait(), 0)
        found = outcomes(self.root)
        self.assertEqual(found["one"], FIRST)
        self.assertEqual(found["two"], {name.replace("one", "two"): "passed" for name in FIRST})
        files = self.archive()
        summary = json.loads(files["summary.json"])
        self.assertEqual({name: part["status"] for name, part in summary["parts"].items()},
                         {"one": "failed", "breaks": "failed",
                          "two-gpus": "not run: 1 GPU, needs 2", "two": "passed"})
        self.assertEqual(summary["cut_off"], [])
        self.assertIn("test_one Bad.Hangs: hung", summary["parts"]["one"]["failures"])
        hang = [name for name in files if name.endswith(".hang.txt")]
        self.assertEqual(len(hang), 1, "what it waited for is kept")
        self.assertLess(sum(len(data) for data in files.values()), 8 << 20)
        self.assertLess((self.root / "out/archive.tar.gz").stat().st_size, 14 << 20)

    def kill_at(self, lines, resume):
        """Kills the check when its journal has that many lines; whether it was in time."""
        process = start(self.root, resume, well=True)
        path = self.root / "out/journal.jsonl"
        while process.poll() is None:
            if path.exists() and path.read_bytes().count(b"\n") >= lines:
                os.kill(process.pid, signal.SIGKILL)
                process.wait()
                return True
            time.sleep(0.001)
        return False

    def test_a_check_that_is_killed_at_any_moment_goes_on(self):
        for number, lines in enumerate((1, 2, 3, 6, 9, 14, 17, 18, 20, 26, 33)):
            self.kill_at(lines, resume=number > 0)
            self.expect_whole()
        self.assertEqual(start(self.root, resume=True, well=True).wait(), 0)
        found = outcomes(self.root)
        for part in ("one", "two"):
            self.assertEqual(len(found[part]), len(FIRST))
            for test, outcome in found[part].items():
                self.assertIn(outcome, ("passed", "started"), test)
        summary = json.loads(self.archive()["summary.json"])
        self.assertEqual(len(summary["parts"]), len(PARTS))

    def test_a_test_that_ends_the_check_twice_is_left_alone(self):
        journal = journals.Journal(self.root / "out", False, StandInSetup(self.root).describe())
        for _ in range(2):
            journal.test("one", "test_one Good.Passes", "started", 0)
        check(self.root, resume=True)
        first = outcomes(self.root)["one"]
        self.assertEqual(first["test_one Good.Passes"], "started")
        part = journals.read_lines(self.root / "out/journal.jsonl")
        failures = next(line["failures"] for line in part
                        if line["kind"] == "part" and line["part"] == "one")
        self.assertIn("test_one Good.Passes: ended the check twice", failures)

    def test_a_budget_that_is_spent_begins_nothing(self):
        setup = StandInSetup(self.root)
        journal = journals.Journal(self.root / "out", False, setup.describe())
        outcome = parts.run(PARTS[0], setup, journal, time.monotonic() - 1)
        self.assertEqual(outcome["status"], "not run: no time left")

    def test_a_torn_line_of_the_journal_is_left_out(self):
        journal = journals.Journal(self.root / "out", False, StandInSetup(self.root).describe())
        journal.test("one", "a", "passed", 1.0)
        with open(journal.path, "ab") as file:
            file.write(b'{"kind": "test", "part"')
        again = journals.Journal(self.root / "out", True, StandInSetup(self.root).describe())
        again.test("one", "b", "passed", 1.0)
        self.assertEqual(outcomes(self.root)["one"], {"a": "passed", "b": "passed"})


if __name__ == "__main__":
    if "--check" in sys.argv:
        check(pathlib.Path(sys.argv[sys.argv.index("--check") + 1]), "--resume" in sys.argv)
    else:
        unittest.main()
