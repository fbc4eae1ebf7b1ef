#!/usr/bin/env python3
"""A run on a disk that fills up at many places, refuses a write once, becomes read-only or
vanishes, and under a clock that jumps: it says what happened, nothing that was good is lost, and
with room again the same command ends with the bits of a run that nothing befell.

    faults_test.py LONGSHORE JUMPING_CLOCK FAILING_WRITE [Faults.TEST ...]

Disks are memory file systems of a namespace of this test's own: unprivileged user namespaces, or
root, are needed. Where there are neither it ends with 77, and scripts/test says that it did not
run.
"""
import fcntl
import hashlib
import json
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
import time
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).parent))
import event_files
import json_schema

LONGSHORE, JUMPING_CLOCK, FAILING_WRITE = (pathlib.Path(argument).resolve()
                                           for argument in sys.argv[1:4])
WHOLE_DISK = 64 << 20
PAGE = 4096
PLACES = 20
NOT_RUN = 77
# The steps of a new run, of a finished run, and of the run that resumes it.
NEW_STEPS, DONE_STEPS, MORE_STEPS = 6, 4, 8
NO_EVALUATION = ("--eval.split=0", "--eval.every_steps=0")
LONG = ("--train.steps=150", *NO_EVALUATION, "--log.tensorboard=false")
RUN_FILE = """
[run]
dir = "{disk}/run"
[model]
path = "{model}"
[data]
train = ["{text}"]
cache = "{disk}/cache"
max_tokens = 32
overlength = "split"
[train]
steps = 6
sequences_per_step = 2
[precision]
compute = "fp32"
[checkpoint]
every_steps = 2
keep = 2
[eval]
split = 0.1
every_steps = 3
sequences = 2
[log]
tensorboard = true
"""


def call(*command):
    subprocess.run([str(word) for word in command], check=True)


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def tree(folder):
    """What lies in a folder, with hashes."""
    return {str(path.relative_to(folder)): sha256(path) for path in sorted(folder.rglob("*"))
            if path.is_file()}


class Disk:
    """A file system of so many bytes."""

    def __init__(self, folder, size=WHOLE_DISK):
        self.path = folder
        self.path.mkdir(exist_ok=True)
        call("mount", "-t", "tmpfs", "-o", f"size={size // PAGE * PAGE}", "disk", folder)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        call("umount", "-l", self.path)

    def resize(self, size=WHOLE_DISK):
        call("mount", "-o", f"remount,size={size // PAGE * PAGE}", self.path)

    def used(self):
        facts = os.statvfs(self.path)
        return (facts.f_blocks - facts.f_bfree) * facts.f_frsize

    @property
    def run(self):
        return self.path / "run"


class MostUsed(threading.Thread):
    """Looks at a disk until it is left: the most bytes seen on it."""

    def __init__(self, disk):
        super().__init__()
        self.disk, self.most, self.done = disk, 0, threading.Event()

    def run(self):
        while not self.done.wait(0.0005):
            self.most = max(self.most, self.disk.used())

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.done.set()
        self.join()


def lines_of(run, kind):
    path = run / "metrics.jsonl"
    if not path.exists():
        return []
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [line for line in lines if line["kind"] == kind]


def checkpoints(run):
    folder = run / "checkpoints"
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def step_of(checkpoint):
    return int(checkpoint.split("-")[-1])


class Faults(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        root = pathlib.Path(cls.folder.name)
        cls.disk_path, cls.model, cls.text = root / "disk", root / "model", root / "text.txt"
        cls.done = root / "done"
        cls.text.write_text("".join(f"line {n} of the text\n" for n in range(200)))
        cls.file = root / "run.toml"
        cls.file.write_text(RUN_FILE.format(disk=cls.disk_path, model=cls.model, text=cls.text))
        made = cls.longshore("init-model", "--preset", "tiny-llama", cls.model)
        assert made.returncode == 0, made.stderr

    @staticmethod
    def environment():
        """No cache of the user's, which would be on another disk."""
        return {**os.environ, "XDG_CACHE_HOME": "/nonexistent"}

    @classmethod
    def longshore(cls, *arguments, **environment):
        return subprocess.run([str(word) for word in (LONGSHORE, *arguments)], capture_output=True,
                              env={**cls.environment(), **environment}, text=True, check=False)

    def train(self, *keys, **environment):
        return self.longshore("train", self.file, *keys, **environment)

    def trained(self, *keys, **environment):
        result = self.train(*keys, **environment)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result

    def course(self, run):
        """What a run did, without times: the numbers of its steps, and its weights."""
        steps = [(line["step"], line["loss"], line["grad_norm"], line["lr"], line["tokens"])
                 for line in lines_of(run, "step")]
        return {"steps": steps, "weights": sha256(run / "hf/model.safetensors"),
                "evaluations": [(line["step"], line["loss"]) for line in lines_of(run, "eval")],
                "checkpoints": checkpoints(run)}

    def check_events(self, run):
        """Every step that TensorBoard shows is the record's, and no file is torn."""
        losses = {line["step"]: line["loss"] for line in lines_of(run, "step")}
        for step, loss in event_files.scalars(run / "tensorboard")["train/loss"].items():
            self.assertEqual(struct.pack("<f", losses[step]), struct.pack("<f", loss), step)

    def check_failure(self, result, run, reason="No space left on device"):
        """One error that says why, with its exit code; run.json says the same if it could."""
        said = result.stderr
        self.assertIn(result.returncode, (1, 3, 6), said)
        last = [line for line in said.splitlines() if line.startswith("error: ")]
        self.assertEqual(len(last), 1, said)
        self.assertTrue(reason in last[0] or " free" in last[0], said)
        self.assertIn(str(self.disk_path), last[0])
        for word in ("internal error", "terminate called", "exception"):
            self.assertNotIn(word, said)
        if (run / "run.json").exists():
            status = json.loads((run / "run.json").read_text())
            self.assertIn(status["status"], ("failed", "running", "done"))
            if status["status"] == "failed":
                self.assertEqual(status["exit_code"], result.returncode)

    def check_kept(self, run, said, before):
        """Every checkpoint that was announced and not pruned since is there and valid, and so is
        what an earlier run left."""
        announced = [line["step"] for line in lines_of(run, "checkpoint")]
        steps = [step_of(name) for name in checkpoints(run) if not name.endswith(".writing")]
        if announced:
            self.assertIn(max(announced), steps, said)
        if before:
            checked = self.longshore("ckpt", "verify", self.file)
            self.assertEqual(checked.returncode, 0, checked.stdout + checked.stderr + said)
        if before:
            weights = sha256(run / "hf/model.safetensors")
            if weights != before["weights"]:
                self.assertEqual(max(steps), MORE_STEPS, said)

    def full_at(self, size, expected, before=None):
        """A run whose disk has so many bytes; then the same with room. False where it fitted."""
        keys = [f"--train.steps={MORE_STEPS}"] if before else []
        with Disk(self.disk_path) as disk:
            if before:
                shutil.copytree(self.done, disk.path, dirs_exist_ok=True)
            disk.resize(max(size, disk.used()))
            result = self.train(*keys)
            if result.returncode == 0:
                self.assertEqual(self.course(disk.run), expected)
                return False
            self.check_failure(result, disk.run)
            self.check_kept(disk.run, result.stderr, before)
            announced = [line["step"] for line in lines_of(disk.run, "checkpoint")]
            disk.resize()
            again = self.trained(*keys)
            start = lines_of(disk.run, "start")[-1]
            self.assertGreaterEqual(start["resumed_from"], max(announced, default=0))
            self.assertEqual(self.course(disk.run), expected, result.stderr + again.stderr)
            self.check_events(disk.run)
            left = [name for name in tree(disk.path) if ".tmp" in name or ".partial" in name]
            self.assertEqual(left, [])
            return True

    def test_a_disk_that_is_full_at_twenty_places_loses_nothing(self):
        with Disk(self.disk_path) as disk, MostUsed(disk) as first:
            self.trained()
            new = self.course(disk.run)
            self.check_events(disk.run)
        with Disk(self.disk_path) as disk:
            self.trained(f"--train.steps={DONE_STEPS}")
            shutil.copytree(disk.path, self.done)
            done, begin = self.course(disk.run), disk.used()
            with MostUsed(disk) as second:
                self.trained(f"--train.steps={MORE_STEPS}")
            more = self.course(disk.run)
        self.assertEqual([step for step, *_ in more["steps"]], list(range(1, MORE_STEPS + 1)))
        failed = 0
        for place in range(PLACES // 2):
            share = (place + 0.5) / (PLACES // 2)
            with self.subTest(run="from nothing", share=share):
                failed += self.full_at(int(share * first.most), new)
            with self.subTest(run="that goes on", share=share):
                size = begin + int(share * (second.most - begin))
                failed += self.full_at(size, more, done)
        # At the last of the sizes everything that a run needs may have fitted.
        self.assertGreaterEqual(failed, PLACES - 2)

    def test_a_disk_without_room_for_one_checkpoint_is_refused_before_the_run(self):
        """At the start, by `check run` and by `plan`, and warned of where `keep` does not fit."""
        with Disk(self.disk_path) as disk:
            self.trained()
            one = sum(path.stat().st_size
                      for path in sorted((disk.run / "checkpoints").iterdir())[0].iterdir())
        commands = (("check", "run"), ("plan",), ("train",))
        with Disk(self.disk_path, one // 2):
            for command in commands:
                with self.subTest(command=command):
                    result = self.longshore(*command, self.file)
                    self.assertEqual(result.returncode, 3, result.stderr)
                    self.assertIn("run.dir: a checkpoint takes ", result.stderr)
                    self.assertNotIn("step 1/", result.stderr)
        with Disk(self.disk_path, 2 * one):
            for command in commands[:2]:
                with self.subTest(command=command):
                    result = self.longshore(*command, self.file)
                    self.assertEqual(result.returncode, 0, result.stderr)
                    self.assertIn("(checkpoint.keep)", result.stderr)

    def interrupted(self, disk, deed, *keys):
        """A run that something happens to behind its third step. What it prints goes into a pipe
        that is too short for the whole run and is not read meanwhile: it cannot be done already."""
        read, write = os.pipe()
        fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, PAGE)
        command = [str(word) for word in (LONGSHORE, "train", self.file, *keys)]
        with subprocess.Popen(command, stderr=write, env=self.environment()) as process:
            os.close(write)
            said = b""
            while b"step 3/" not in said:
                part = os.read(read, 1)
                self.assertTrue(part, said)
                said += part
            try:
                deed(disk)
            except BaseException:
                process.kill()  # it would wait for the pipe, and this for its end
                raise
            while part := os.read(read, PAGE):
                said += part
            process.wait(timeout=600)
        os.close(read)
        return subprocess.CompletedProcess(command, process.returncode, "", said.decode())

    def expect_long(self):
        """What the run of LONG does when nothing happens."""
        if not hasattr(Faults, "long"):
            with Disk(self.disk_path) as disk:
                self.trained(*LONG)
                Faults.long = self.course(disk.run)
        return Faults.long

    @staticmethod
    def refusing(path, count):
        """The environment of a process whose writes to files with this path fail `count` times."""
        return {"LD_PRELOAD": str(FAILING_WRITE), "FAILING_PATH": path, "FAILING_FROM": "6",
                "FAILING_COUNT": str(count)}

    def test_a_line_of_the_record_that_fails_once_is_the_reason_that_is_said(self):
        expected = self.expect_long()
        for ranks in (1, 2):
            command = ("launch", "--nproc", ranks, "--") if ranks > 1 else ()
            with self.subTest(ranks=ranks), Disk(self.disk_path) as disk:
                result = self.longshore(*command, "train", self.file, *LONG,
                                        **self.refusing("metrics.jsonl", 1))
                self.assertEqual(result.returncode, 1, result.stderr)
                self.check_failure(result, disk.run)
                self.assertNotIn("stopped by", result.stderr)
                status = json.loads((disk.run / "run.json").read_text())
                self.assertEqual((status["status"], status["exit_code"]), ("failed", 1))
                self.assertIn("No space left on device", status["message"])
                self.assertEqual(status["saved_step"], status["step"])
                self.assertLess(status["step"], 150)
                again = self.longshore(*command, "train", self.file, *LONG)
                self.assertEqual(again.returncode, 0, again.stderr)
                self.assertEqual(len(lines_of(disk.run, "step")), 150)
                if ranks == 1:
                    self.assertEqual(self.course(disk.run)["weights"], expected["weights"])

    def test_events_that_cannot_be_written_are_said_and_end_nothing_else(self):
        with Disk(self.disk_path) as disk:
            self.trained()
            expected = self.course(disk.run)
        for count, code in ((1, 0), (1 << 30, 1)):
            with self.subTest(count=count), Disk(self.disk_path) as disk:
                result = self.train(**self.refusing("tensorboard/", count))
                self.assertEqual(result.returncode, code, result.stderr)
                self.assertIn("log.tensorboard: write ", result.stderr)
                self.assertIn("No space left on device", result.stderr)
                self.assertEqual(self.course(disk.run), expected)
                if code == 0:
                    self.check_events(disk.run)
                else:
                    self.check_failure(result, disk.run)

    def test_a_read_only_disk_is_said_and_nothing_on_it_changes(self):
        with Disk(self.disk_path) as disk:
            call("mount", "-o", "remount,ro", disk.path)
            result = self.train()
            self.check_failure(result, disk.run, "Read-only file system")
            call("mount", "-o", "remount,rw", disk.path)
            self.trained()
            before = tree(disk.path)
            call("mount", "-o", "remount,ro", disk.path)
            result = self.train(f"--train.steps={MORE_STEPS}")
            self.assertEqual(result.returncode, 1, result.stderr)
            self.assertIn("Read-only file system", result.stderr)
            self.assertEqual(tree(disk.path), before)

    def test_checkpoints_that_become_read_only_end_the_run_and_stay(self):
        expected = self.expect_long()

        def protect(disk):
            folder = disk.run / "checkpoints"
            folder.mkdir(exist_ok=True)
            call("mount", "--bind", folder, folder)
            # A file that the run has just opened below refuses this until it is closed.
            for _ in range(1000):
                if subprocess.run(["mount", "-o", "remount,bind,ro", folder], check=False,
                                  stderr=subprocess.DEVNULL).returncode == 0:
                    return
                time.sleep(0.01)
            self.fail("the folder of checkpoints does not become read-only")

        with Disk(self.disk_path) as disk:
            result = self.interrupted(disk, protect, *LONG)
            self.check_failure(result, disk.run, "Read-only file system")
            self.assertEqual(result.returncode, 6)
            self.check_kept(disk.run, result.stderr, None)
            call("umount", disk.run / "checkpoints")
            self.trained(*LONG)
            self.assertEqual(self.course(disk.run), expected)

    def test_a_run_whose_directory_vanishes_ends_and_can_begin_anew(self):
        expected = self.expect_long()
        for name, deed in (("removed", lambda disk: shutil.rmtree(disk.run)),
                           ("moved", lambda disk: disk.run.rename(disk.path / "elsewhere"))):
            with self.subTest(name), Disk(self.disk_path) as disk:
                result = self.interrupted(disk, deed, *LONG)
                self.check_failure(result, disk.run, "was removed or replaced")
                self.assertIn("; the run is saved after step ", result.stderr)
                [saved] = checkpoints(disk.run)
                self.trained(*LONG)
                self.assertEqual(lines_of(disk.run, "start")[-1]["resumed_from"], step_of(saved))
                found = self.course(disk.run)
                self.assertEqual(found["weights"], expected["weights"])
                self.assertEqual(found["steps"], expected["steps"][step_of(saved):])

    def test_what_vanishes_while_it_is_open_costs_nothing(self):
        expected = self.expect_long()
        keys = [*LONG, "--offload.optimizer=nvme", f'--offload.nvme=["{self.disk_path}/drive"]']
        aside = self.model.with_suffix(".aside")

        def take_away(disk):
            self.model.rename(aside)
            shutil.rmtree(disk.path / "cache")

        with Disk(self.disk_path) as disk:
            try:
                result = self.interrupted(disk, take_away, *keys)
            finally:
                aside.rename(self.model)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertEqual(self.course(disk.run), expected)
            again = self.trained(*keys)
            self.assertIn("nothing left to do", again.stderr)
            self.assertEqual(self.course(disk.run), expected)

    def test_a_run_whose_drive_vanishes_saves_its_last_step(self):
        expected = self.expect_long()
        keys = [*LONG, "--offload.optimizer=nvme", f'--offload.nvme=["{self.disk_path}/drive"]']
        with Disk(self.disk_path) as disk:
            result = self.interrupted(disk, lambda disk: shutil.rmtree(disk.path / "drive"), *keys)
            self.check_failure(result, disk.run, "was moved, removed or replaced under the run")
            self.trained(*keys)
            self.assertEqual(self.course(disk.run), expected)

    def test_state_on_a_drive_that_fills_up_is_kept(self):
        keys = ["--offload.optimizer=nvme", f'--offload.nvme=["{self.disk_path}/drive"]',
                *NO_EVALUATION]
        with Disk(self.disk_path) as disk, MostUsed(disk) as seen:
            self.trained(*keys)
            expected = self.course(disk.run)
        failed = 0
        for share in (0.2, 0.5, 0.8, 0.95):
            with self.subTest(share=share), Disk(self.disk_path) as disk:
                disk.resize(int(share * seen.most))
                result = self.train(*keys)
                if result.returncode != 0:
                    failed += 1
                    if result.returncode != 3 or "error: drives: " not in result.stderr:
                        self.check_failure(result, disk.run)
                committed = max((line["step"] for line in lines_of(disk.run, "commit")), default=0)
                disk.resize()
                self.trained(*keys)
                self.assertGreaterEqual(lines_of(disk.run, "start")[-1]["resumed_from"],
                                        committed if result.returncode else 0)
                # A run that resumed from the drives may have passed a checkpoint's step already.
                found = self.course(disk.run)
                self.assertEqual(found["checkpoints"][-1], expected["checkpoints"][-1])
                self.assertEqual({**found, "checkpoints": []}, {**expected, "checkpoints": []})
        self.assertGreaterEqual(failed, 3)

    def test_a_program_without_standard_streams_writes_into_no_file_of_the_run(self):
        for command in ((), ("launch", "--nproc", "2", "--")):
            with self.subTest(command=command), Disk(self.disk_path) as disk:
                words = [LONGSHORE, *command, "train", self.file]
                done = subprocess.run(["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *words],
                                      env=self.environment(), check=False)
                self.assertEqual(done.returncode, 0)
                [lock] = (disk.run / "lock").read_text().splitlines()
                self.assertRegex(lock, "^process [0-9]+ on ")
                self.assertEqual(len(lines_of(disk.run, "step")), NEW_STEPS)

    def test_a_clock_that_jumps_changes_nothing(self):
        with Disk(self.disk_path) as disk:
            self.trained("--train.steps=3")
            self.trained()
            expected = self.course(disk.run)
        with Disk(self.disk_path) as disk:
            jumping = {"LD_PRELOAD": str(JUMPING_CLOCK)}
            self.trained("--train.steps=3", **jumping)
            self.trained(**jumping)
            times = [line["time"] for line in lines_of(disk.run, "step")]
            self.assertNotEqual(times, sorted(times), "the clock did not jump")
            steps = lines_of(disk.run, "step")
            for line in steps:
                self.assertTrue(0 < line["seconds"] < 600, line)
                self.assertGreater(line["tokens_per_second"], 0)
            found = self.course(disk.run)
            self.assertEqual(found["weights"], expected["weights"])
            self.assertEqual(found["steps"], expected["steps"])
            self.check_events(disk.run)
            losses = event_files.scalars(disk.run / "tensorboard")["train/loss"]
            self.assertEqual(sorted(losses), list(range(1, NEW_STEPS + 1)))
            for command in (("report", disk.run), ("report", disk.run, "--terminal"),
                            ("ckpt", "ls", self.file)):
                done = self.longshore(*command, **jumping)
                self.assertEqual(done.returncode, 0, done.stderr)

    def test_every_line_of_the_record_is_as_the_schema_says(self):
        said = self.longshore("config", "schema", "--metrics")
        schema = json.loads(said.stdout)
        runs = {"host": (), "drives": ("--offload.optimizer=nvme", "--eval.prompts=[\"line\"]",
                                       "--eval.max_new_tokens=8",
                                       f'--offload.nvme=["{self.disk_path}/drive"]')}
        kinds = set()
        for name, keys in runs.items():
            with self.subTest(name), Disk(self.disk_path) as disk:
                self.trained(*keys)
                kinds |= self.check_lines(schema, disk.run)
        with Disk(self.disk_path) as disk:
            done = self.longshore("launch", "--nproc", "2", "--", "train", self.file)
            self.assertEqual(done.returncode, 0, done.stderr)
            kinds |= self.check_lines(schema, disk.run)
            self.assertIn("slowest_rank", lines_of(disk.run, "step")[0])
        self.assertEqual(kinds, {"start", "step", "eval", "checkpoint", "commit", "event", "end"})
        with self.assertRaises(json_schema.Mismatch):
            json_schema.check(schema, {"kind": "end", "time": 1.0, "status": "done", "steps": "6",
                                       "exit_code": 0}, known_only=True)

    def check_lines(self, schema, run):
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        for line in lines:
            json_schema.check(schema, line, known_only=True)
        return {line["kind"] for line in lines}


if __name__ == "__main__":
    if os.environ.get("LONGSHORE_FAULTS") != "inside":
        os.environ["LONGSHORE_FAULTS"] = "inside"
        mine = ["unshare", "--mount", "--propagation", "private"]
        if subprocess.run([*mine, "true"], stderr=subprocess.DEVNULL, check=False).returncode != 0:
            mine[1:1] = ["--user", "--map-root-user"]
        if subprocess.run([*mine, "true"], check=False).returncode != 0:
            print("a memory file system of one's own needs root, or namespaces for everybody "
                  "(sysctl kernel.apparmor_restrict_unprivileged_userns=0)")
            sys.exit(NOT_RUN)
        os.execvp(mine[0], [*mine, sys.executable, *sys.argv])
    unittest.main(argv=[sys.argv[0], *sys.argv[4:]])
