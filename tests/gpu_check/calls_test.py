#!/usr/bin/env python3
"""The two calls of scripts/gpu_check over stand-ins for everything that they start: every part has
an outcome, what hangs ends with all that it started, and the archive is there meanwhile."""
import dataclasses
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import unittest

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE))

import rehearsal_test as rehearsal  # noqa: E402  (which finds the check's own modules)
import inventory  # noqa: E402
import journal as journals  # noqa: E402
import machine  # noqa: E402
import parts  # noqa: E402
import process  # noqa: E402
import stand_in_program  # noqa: E402
import training  # noqa: E402
from job import Job  # noqa: E402

BINARIES = ("test_base", "test_kernels", "test_device", "test_pinned", "test_model", "test_offload",
            "test_engine", "test_parity")
H200 = {"flops": 788e12, "h2d": 50e9, "d2h": 50e9, "dram": 150e9}


class StandInMachine(rehearsal.StandInSetup):
    def __init__(self, root):
        super().__init__(root)
        self.bench = root / "bench"
        for name in BINARIES:
            shutil.copy(HERE / "stand_in.py", self.bin / name)
        (self.bench / "peers").mkdir(parents=True, exist_ok=True)
        for path in ("bin/longshore", "bench/peers/gpu_speeds.py", "bench/peers/fsdp2_offload.py"):
            shutil.copy(HERE / "stand_in_program.py", root / path)
        self.environment = {**os.environ, **machine.ENVIRONMENT, "STAND_IN_WELL": "1",
                            "STAND_IN_PIDS": str(root / "pids")}


class Calls(unittest.TestCase):
    def setUp(self):
        self.root = pathlib.Path(tempfile.mkdtemp(prefix="gpu-check-"))
        self.setup = StandInMachine(self.root)
        self.journal = journals.Journal(self.root / "out", False, self.setup.describe(),
                                        self.root / "copied")
        grown, inventory.GROWN_GIB = inventory.GROWN_GIB, 0
        self.addCleanup(setattr, inventory, "GROWN_GIB", grown)
        self.addCleanup(shutil.rmtree, self.root, ignore_errors=True)

    def run_part(self, part):
        outcome = parts.run(part, self.setup, self.journal, time.monotonic() + 3600)
        self.journal.part(part.name, outcome)
        return outcome

    def expect_gone(self):
        numbers = (self.root / "pids").read_text().split()
        self.assertEqual(len(numbers), 2)
        for number in numbers:
            self.assertFalse(process.is_alive(number), number)

    def test_every_part_of_both_calls_has_an_outcome(self):
        for part in parts.FIRST + parts.SECOND:
            outcome = self.run_part(part)
            allowed = ["passed"] + (["not run: no compute-sanitizer", "failed"]
                                    if part.name == "sanitizer" else [])
            self.assertIn(outcome["status"], allowed, f"{part.name}: {outcome}")
        self.expect_gone()  # what the last training run started
        measured = {name: part.get("measured") for name, part in self.journal.parts().items()}
        self.assertEqual(measured["train-8b-64k"][0]["tokens_per_step"], 65536)
        self.assertEqual(measured["optimizer"][-1]["h2d_gb_per_second"], 50.0)
        with tarfile.open(self.root / "copied/archive.tar.gz") as tar:
            names = tar.getnames()
        self.assertIn("summary.md", names)
        self.assertIn("logs/train-8b-24-trace.json", names)

    def test_what_hangs_ends_with_all_that_it_started(self):
        self.setup.environment["STAND_IN_HANGS"] = "check"
        part = next(part for part in parts.FIRST if part.name == "gpu-check")
        outcome = self.run_part(dataclasses.replace(part, seconds=rehearsal.HANG_SECONDS))
        self.assertEqual(outcome["status"], "stopped", outcome)
        self.expect_gone()

    def test_the_archive_is_copied_while_a_part_runs(self):
        copied = self.root / "copied/archive.tar.gz"

        def waits(_):
            end = time.monotonic() + 120
            while not copied.exists() and time.monotonic() < end:
                time.sleep(0.01)
            with tarfile.open(copied) as tar:
                return {"status": "passed", "files": tar.getnames()}

        refresh, journals.REFRESH_SECONDS = journals.REFRESH_SECONDS, 0.05
        self.addCleanup(setattr, journals, "REFRESH_SECONDS", refresh)
        self.journal.keep_publishing()
        outcome = self.run_part(parts.Part("waits", "for its own archive", False, waits))
        self.assertEqual(outcome["status"], "passed", outcome)
        self.assertIn("journal.jsonl", outcome["files"])

    def test_a_tight_cap_is_what_the_plan_needs(self):
        job = Job(self.setup, self.journal, "train-1b-tight", time.monotonic() + 60)
        file, planned = training.write_run(job, training.Run("1b"), self.root / "run")
        self.assertEqual(planned, stand_in_program.PLANNED_BYTES)
        self.assertIn(f'device_memory = "{planned}B"', file.read_text())

    def test_memory_is_touched_in_whole_steps(self):
        script = f"""
import sys
sys.path.insert(0, {str(rehearsal.GPU)!r})
import inventory
inventory.BLOCK, inventory.LEFT_GIB = 1 << 20, 0
inventory.touch(20 << 20)
"""
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True,
                              check=True)
        touched = [int(line.split()[0]) for line in done.stdout.splitlines()]
        self.assertEqual(touched, [8 << 20, 16 << 20])


class Roofline(unittest.TestCase):
    def row(self, name):
        page = (ROOT / "docs/measurements/gpu_roofline.md").read_text()
        line = next(line for line in page.splitlines() if line.startswith(f"| {name} |"))
        return [float(cell) for cell in line.split("|")[2:-1]]

    def test_it_is_the_page_s(self):
        found = [training.roofline("8b", H200, rows)[0] for rows in (2, 4, 8)]
        for ours, theirs in zip(found, self.row("roofline, s"), strict=True):
            self.assertAlmostEqual(ours, theirs, delta=0.006)

    def test_the_goal_of_peers_is_the_page_s(self):
        page = (ROOT / "docs/measurements/README.md").read_text()
        goal = re.search(r"FSDP2 with CPU offload \(goal (\d+) x\)", page)
        self.assertEqual(float(goal[1]), training.GOAL_OF_PEERS)


class Names(unittest.TestCase):
    def test_every_part_has_one_name_and_fits_its_call(self):
        names = [part.name for part in parts.PARTS]
        self.assertEqual(len(names), len(set(names)))
        self.assertEqual(names[:2], ["inventory", "gpu-check"])

    def test_the_page_names_parts_that_there_are(self):
        page = (ROOT / "docs/measurements/README.md").read_text()
        table = page[page.index("| what | code | part |"):page.index("Other things that were not")]
        names = [part.name for part in parts.PARTS]
        for line in table.splitlines()[2:]:
            for name in re.findall(r"`([\w*-]+)`", line.split("|")[3] if "|" in line else ""):
                self.assertTrue(any(re.fullmatch(name.replace("*", ".*"), each) for each in names),
                                name)


if __name__ == "__main__":
    unittest.main()
