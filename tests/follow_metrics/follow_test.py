#!/usr/bin/env python3
"""scripts/follow_metrics with stand-ins for the trackers' packages: what they are told of runs that
go on, are cut, torn, killed and resumed."""
import importlib.machinery
import importlib.util
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts/follow_metrics"
sys.dont_write_bytecode = True
loader = importlib.machinery.SourceFileLoader("follow_metrics", str(SCRIPT))
follow = importlib.util.module_from_spec(importlib.util.spec_from_loader("follow_metrics", loader))
loader.exec_module(follow)

# These stand-ins have the names that follow_metrics uses of each package, and write calls to CALLS.
STAND_INS = {
    "wandb": """
import json, os
def note(*call):
    with open(os.environ["CALLS"], "a") as file:
        file.write(json.dumps(call) + "\\n")
class Run:
    def log(self, values, step): note("log", step, values)
    def finish(self, exit_code): note("finish", exit_code)
def init(project, name, config):
    note("init", project, name, config)
    return Run()
""",
    "mlflow": """
import json, os
from types import SimpleNamespace as Bag
def note(*call):
    with open(os.environ["CALLS"], "a") as file:
        file.write(json.dumps(call) + "\\n")
entities = Bag(Metric=lambda key, value, timestamp, step: [key, value, timestamp, step])
def set_experiment(name):
    note("experiment", name)
    return Bag(experiment_id="7")
class MlflowClient:
    def create_run(self, experiment, run_name):
        note("run", experiment, run_name)
        return Bag(info=Bag(run_id="r"))
    def log_param(self, run, key, value): note("param", run, key, value)
    def log_batch(self, run, metrics): note("batch", run, metrics)
    def set_terminated(self, run, status): note("end", run, status)
""",
    "trackio": """
import json, os
def note(*call):
    with open(os.environ["CALLS"], "a") as file:
        file.write(json.dumps(call) + "\\n")
class Run:
    def log(self, values, step): note("log", step, values)
    def finish(self): note("finish")
def init(project, name, config):
    note("init", project, name, config)
    return Run()
"""}


def step(number, loss, when=0.0):
    return {"kind": "step", "step": number, "time": 100.0 + number + when, "loss": loss,
            "lr": 0.5, "seconds": 2.0, "tokens_per_second": 8.0,
            "stall_seconds": {"h2d": 0.25}, "memory_bytes": {"host_rss": 4096}, "skipped": False}


class FakeTracker:
    def __init__(self, calls, name, config):
        self.calls = calls
        self.calls.append(("begin", name))

    def log(self, number, _time, values):
        loss = values.get("train/loss", values.get("eval/loss"))
        self.calls.append((number, loss))

    def finish(self, status):
        self.calls.append(("finish", status))


class TagsTest(unittest.TestCase):
    def test_every_tag_is_that_of_the_schema(self):
        command = [os.environ["LONGSHORE"], "config", "schema", "--metrics"]
        printed = subprocess.run(command, capture_output=True, text=True, check=True)
        schema = json.loads(printed.stdout)
        tags = {}
        for kind in schema["oneOf"]:
            found = {key: value["x-tag"] for key, value in kind["properties"].items()
                     if "x-tag" in value}
            if found:
                tags[kind["properties"]["kind"]["const"]] = found
        self.assertEqual(tags, follow.TAGS)


class FollowTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.run_dir = pathlib.Path(folder.name) / "run"
        self.run_dir.mkdir()
        self.metrics = self.run_dir / "metrics.jsonl"
        self.calls = []
        self.follower = follow.Follower(
            self.run_dir, lambda name, config: FakeTracker(self.calls, name, config), "mine")

    def write(self, *lines, torn="", mode="a"):
        with open(self.metrics, mode) as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)
            file.write(torn)

    def status(self, status, **more):
        (self.run_dir / "run.json").write_text(json.dumps({"status": status, **more}))

    def copied(self):
        self.calls.clear()
        self.follower.copy()
        return list(self.calls)

    def test_new_lines_come_once_and_a_torn_line_when_it_is_whole(self):
        self.assertEqual(self.copied(), [])  # the run has not begun
        self.write({"kind": "start", "time": 1.0}, step(1, 3.0), torn=json.dumps(step(2, 2.5))[:30])
        self.assertEqual(self.copied(), [("begin", "mine"), (1, 3.0)])
        self.assertEqual(self.copied(), [])
        self.write(torn=json.dumps(step(2, 2.5))[30:] + "\n")
        self.write({"kind": "eval", "step": 2, "time": 9.0, "loss": 2.25, "perplexity": 9.5})
        self.assertEqual(self.copied(), [(2, 2.5), (2, 2.25)])

    def test_what_is_null_is_left_out_and_what_no_run_writes_passed_over(self):
        self.write(step(1, None), ["a", "list"], {"kind": "step", "step": "two", "time": 1.0},
                   {"kind": "step", "step": 3}, {"kind": "later-kind", "step": 4, "time": 1.0})
        self.write(torn="no json\n\xff\n")
        self.assertEqual(self.copied(), [("begin", "mine"), (1, None)])
        self.assertNotIn("train/loss", follow.values_of(step(1, None)))
        self.assertNotIn("train/loss", follow.values_of(step(1, float("nan"))))

    def test_steps_given_up_end_their_record_and_a_whole_one_begins(self):
        self.write(step(1, 3.0), step(2, 2.0), step(3, 1.0))
        self.copied()
        # The run is killed after step 3 and resumes from the checkpoint of step 1.
        self.write(step(1, 3.0), {"kind": "start", "time": 2.0}, step(2, 2.1, when=60), mode="w")
        self.assertEqual(self.copied(), [("finish", "abandoned"), ("begin", "mine-2"), (1, 3.0),
                                         (2, 2.1)])
        self.write(step(3, 1.1, when=60))
        self.assertEqual(self.copied(), [(3, 1.1)])

    def test_a_cut_is_noticed_though_the_file_is_longer_again(self):
        self.write(step(1, 3.0), step(2, 2.0))
        self.copied()
        self.write(step(1, 3.0), *(step(n, 1.0, when=60) for n in range(2, 9)), mode="w")
        self.assertEqual(self.copied()[:3], [("finish", "abandoned"), ("begin", "mine-2"),
                                             (1, 3.0)])

    def test_an_ending_that_is_cut_off_gives_no_step_up(self):
        self.write(step(1, 3.0), {"kind": "end", "time": 3.0, "status": "done"})
        self.copied()
        self.write(step(1, 3.0), {"kind": "start", "time": 4.0}, step(2, 2.0), mode="w")
        self.assertEqual(self.copied(), [(2, 2.0)])

    def test_a_run_that_vanishes_and_begins_anew_is_another(self):
        self.write(step(1, 3.0))
        self.copied()
        self.metrics.unlink()
        self.assertEqual(self.copied(), [("finish", "abandoned")])
        self.write(step(1, 3.5))
        self.assertEqual(self.copied(), [("begin", "mine-2"), (1, 3.5)])

    def test_it_ends_with_the_run_however_that_ends(self):
        self.write(step(1, 3.0))
        child = subprocess.Popen(["true"])
        child.wait()  # its id is free
        for status, more, said in (
                ("done", {}, "done"), ("stopped", {}, "stopped"), ("failed", {}, "failed"),
                ("running", {"pid": child.pid, "host": socket.gethostname()}, "killed")):
            self.status(status, **more)
            self.calls.clear()
            follower = follow.Follower(self.run_dir, self.follower.make_tracker, "mine")
            self.assertEqual(follower.follow(0.0, once=False), said)
            self.assertEqual(self.calls, [("begin", "mine"), (1, 3.0), ("finish", said)])

    def test_a_run_that_goes_on_is_known_by_its_process(self):
        self.assertEqual(follow.status_of(self.run_dir), "running")  # no run.json yet
        self.status("running", pid=os.getpid(), host=socket.gethostname())
        self.assertEqual(follow.status_of(self.run_dir), "running")
        self.status("running", pid=2**22 + 1, host="another-" + socket.gethostname())
        self.assertEqual(follow.status_of(self.run_dir), "running")
        (self.run_dir / "run.json").write_text("[1, 2")
        self.assertEqual(follow.status_of(self.run_dir), "running")


class TrackersTest(unittest.TestCase):
    """Each tracker's package is called with the names and the order that it has."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        self.run_dir = self.root / "run"
        self.run_dir.mkdir()
        (self.run_dir / "config.toml").write_text("[optimizer]\nlr = 1e-05\n[data]\ntrain = ['a']")
        (self.run_dir / "run.json").write_text('{"status": "done"}')
        (self.run_dir / "metrics.jsonl").write_text(json.dumps(step(1, 2.0)) + "\n")

    def calls(self, tracker, *arguments):
        modules = self.root / tracker
        modules.mkdir()
        (modules / f"{tracker}.py").write_text(STAND_INS[tracker])
        calls = self.root / f"{tracker}.calls"
        done = subprocess.run(
            [sys.executable, str(SCRIPT), str(self.run_dir), "--to", tracker, *arguments],
            env={**os.environ, "PYTHONPATH": str(modules), "CALLS": str(calls)},
            capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        return [json.loads(line) for line in calls.read_text().splitlines()]

    VALUES = {"train/loss": 2.0, "train/lr": 0.5, "speed/tokens_per_second": 8.0,
              "speed/step_seconds": 2.0, "stall_seconds/h2d": 0.25, "memory_bytes/host_rss": 4096}
    CONFIG = {"optimizer.lr": 1e-05, "data.train": ["a"]}

    def test_wandb(self):
        self.assertEqual(self.calls("wandb", "--project", "p", "--name", "n"),
                         [["init", "p", "n", self.CONFIG], ["log", 1, self.VALUES], ["finish", 0]])

    def test_trackio(self):
        self.assertEqual(self.calls("trackio"), [["init", "longshore", "run", self.CONFIG],
                                                 ["log", 1, self.VALUES], ["finish"]])

    def test_mlflow(self):
        metrics = [[tag, value, 101000, 1] for tag, value in self.VALUES.items()]
        self.assertEqual(self.calls("mlflow"), [
            ["experiment", "longshore"], ["run", "7", "run"],
            ["param", "r", "optimizer.lr", "1e-05"], ["param", "r", "data.train", "['a']"],
            ["batch", "r", metrics], ["end", "r", "FINISHED"]])

    def test_a_package_that_is_missing_and_a_run_that_is_not_there_are_said(self):
        empty = self.root / "empty"
        empty.mkdir()
        (empty / "trackio.py").write_text("raise ImportError('No module named trackio')")
        missing = subprocess.run(
            [sys.executable, str(SCRIPT), str(self.run_dir), "--to", "trackio"],
            env={**os.environ, "PYTHONPATH": str(empty)}, capture_output=True, text=True,
            check=False)
        self.assertIn("pip install trackio", missing.stderr)
        nowhere = subprocess.run([sys.executable, str(SCRIPT), "/nowhere", "--to", "wandb"],
                                 capture_output=True, text=True, check=False)
        self.assertEqual((missing.returncode, nowhere.returncode), (1, 1))
        self.assertIn("/nowhere: no such directory", nowhere.stderr)


if __name__ == "__main__":
    unittest.main()
