#!/usr/bin/env python3
"""The package python/longshore over a stand-in for the program: arguments, records of runs that go
on, resume, fail, are stopped or left, and messages that would fill a pipe. tests/wheel has the
program itself."""
import contextlib
import io
import json
import os
import pathlib
import pickle
import signal
import subprocess
import sys
import tempfile
import textwrap
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
STAND_IN = pathlib.Path(__file__).resolve().with_name("stand_in.py")
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "python"))
import longshore  # noqa: E402
from longshore import _command, _program  # noqa: E402

try:
    import tomllib
except ImportError:  # before Python 3.11
    tomllib = None

# What makes a Python of its own use the stand-in. A shell's background processes ignore SIGINT.
PREAMBLE = f"""
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.dont_write_bytecode = True
sys.path.insert(0, {str(ROOT / "python")!r})
import longshore
from longshore import _program
_program.program = lambda: [sys.executable, {str(STAND_IN)!r}]
_program.environment = lambda: None
"""
LONG_RUN = """
received = take_signals()
print("up", file=sys.stderr, flush=True)
write(kind="start")
write(kind="step", step=1, loss=2.5)
go_on_until_stopped(received)
"""


class StandInTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(folder.name)
        for name, value in (("program", lambda: [sys.executable, str(STAND_IN)]),
                            ("environment", lambda: None)):
            self.addCleanup(setattr, _program, name, getattr(_program, name))
            setattr(_program, name, value)
        pathlib.Path("answer.json").write_text('{"loss": 2.5}')

    def tearDown(self):
        with self.assertRaises(ChildProcessError, msg="a process was left"):
            os.waitpid(-1, os.WNOHANG)

    def run_file(self, program):
        pathlib.Path("run.toml").write_text(textwrap.dedent(program))
        return "run.toml"

    def start(self, program, **options):
        return longshore.start(self.run_file(program), **options)

    def calls(self):
        return [json.loads(line) for line in pathlib.Path("calls.jsonl").read_text().splitlines()]


class Arguments(StandInTest):
    def test_values_are_written_as_toml_reads_them(self):
        value = {"text": 'a "b"\\\n\t\x7f\0 \N{GRINNING FACE} \u00e9', "path": pathlib.Path("a/b"),
                 "numbers": [1, -2, 0.5, 1e-05, 1e300, float("inf")], "flags": (True, False),
                 "inner": {"a key": [], "two": {"x": "y"}}}
        text = _command.toml(value)
        self.assertNotIn("\n", text)
        self.assertNotIn("\x7f", text)
        if tomllib:
            read = tomllib.loads("value = " + text)["value"]
            self.assertEqual(read, {**value, "path": "a/b", "flags": [True, False]})
        self.assertEqual(_command.toml(float("-inf")), "-inf")
        for wrong in (None, [None], object(), {1, 2}):
            with self.assertRaises(TypeError):
                _command.toml(wrong)

    def test_keys_are_arguments_and_one_without_a_section_is_refused(self):
        longshore.eval(pathlib.Path("a.toml"), "b.toml",
                       overrides={"train.steps": 3, "run.dir": pathlib.Path("x"),
                                  "data.train": ["\u00e9.txt"]})
        self.assertEqual(self.calls(), [["eval", "a.toml", "b.toml", "--train.steps=3",
                                         '--run.dir="x"', '--data.train=["\u00e9.txt"]',
                                         "--from=auto", "--json", "--quiet"]])
        with self.assertRaisesRegex(ValueError, "'json' is no key of the run file"):
            longshore.plan("a.toml", overrides={"json": True})
        with self.assertRaisesRegex(ValueError, "name a run file"):
            longshore.plan()

    def test_each_function_calls_its_command_and_returns_the_object(self):
        answer = {"loss": 2.5}
        self.assertEqual(longshore.plan("r"), answer)
        self.assertEqual(longshore.check("r"), answer)
        self.assertEqual(longshore.init("r", model="m", data=["a", "b"], recipe="x", adapter=True,
                                        overrides={"run.dir": "d"}), answer)
        self.assertEqual(longshore.init("r", model="m", data=pathlib.Path("a"), convert="y.yaml",
                                        goal="small", machine="m", replace=True), answer)
        self.assertEqual(longshore.export("r", to=pathlib.Path("t"), weights="model", merged=True,
                                          fp32=True, allow_nonfinite=True), answer)
        self.assertEqual(longshore.export("r", format="published"), answer)
        self.assertEqual(self.calls(), [
            ["plan", "r", "--json", "--quiet"],
            ["check", "run", "r", "--json", "--quiet"],
            ["init", "r", "--model=m", "--data=a", "--data=b", "--recipe=x", "--adapter",
             '--run.dir="d"', "--json", "--quiet"],
            ["init", "r", "--model=m", "--data=a", "--goal=small", "--machine=m", "--from=y.yaml",
             "--replace", "--json", "--quiet"],
            ["export", "r", "--to=t", "--from=model", "--merged", "--fp32", "--allow-nonfinite",
             "--json", "--quiet"],
            ["export", "r", "--from=auto", "--format=published", "--json", "--quiet"]])

    def test_prompts_reach_the_program_whatever_their_characters_are(self):
        pathlib.Path("answer.json").write_text('{"text": "a\u2028b"}\n{"text": "c"}')
        said = longshore.generate("r", prompts=["--x.y=1", "", "[a, b]\n"], chat=True, system="s",
                                  max_new_tokens=3, temperature=0.5, top_k=2, top_p=0.9)
        self.assertEqual([one["text"] for one in said], ["a\u2028b", "c"])
        self.assertEqual(self.calls(), [[
            "generate", "r", "--chat", "--system=s", "--from=auto", "--max-new-tokens=3",
            "--temperature=0.5", "--top-k=2", "--top-p=0.9", "--json", "--prompt=--x.y=1",
            "--prompt", "", "--prompt=[a, b]\n", "--quiet"]])
        longshore.generate("r", prompts="abc")
        self.assertEqual(self.calls()[-1], ["generate", "r", "--from=auto", "--json",
                                            "--prompt=abc", "--quiet"])
        with self.assertRaisesRegex(ValueError, "give a prompt"):
            longshore.generate("r", prompts=[])

    def test_sampling_is_asked_for_alike_for_prompts_and_for_files(self):
        sampling = {"min_p": 0.1, "stop": ["\n\n", "--end"], "samples": 2, "logprobs": True,
                    "sequences": 8}
        words = ["--min-p=0.1", "--samples=2", "--logprobs", "--sequences=8", "--stop=\n\n",
                 "--stop=--end"]
        longshore.generate("r", prompts="abc", **sampling)
        self.assertEqual(self.calls()[-1], ["generate", "r", "--from=auto", *words, "--json",
                                            "--prompt=abc", "--quiet"])
        pathlib.Path("answer.json").write_text("")
        self.assertIsNone(longshore.generate_file("r", prompts="a.jsonl", chat=True, system="s",
                                                  answers=pathlib.Path("b.jsonl"), **sampling))
        self.assertEqual(self.calls()[-1], ["generate", "r", "--in=a.jsonl", "--out=b.jsonl",
                                            "--chat", "--system=s", "--from=auto", *words,
                                            "--quiet"])
        longshore.generate_file("r", prompts="a", answers="b", stop="x")
        self.assertEqual(self.calls()[-1], ["generate", "r", "--in=a", "--out=b", "--from=auto",
                                            "--stop=x", "--quiet"])

    def test_several_ranks_are_launched(self):
        with contextlib.redirect_stderr(io.StringIO()):
            longshore.train("r", ranks=2, quiet=True, overrides={"train.steps": 1})
        self.assertEqual(self.calls()[-1], ["launch", "--nproc=2", "--quiet", "--", "train", "r",
                                            "--train.steps=1", "--quiet"])


class Failures(StandInTest):
    def failure(self, program):
        with self.assertRaises(longshore.LongshoreError) as caught, \
                contextlib.redirect_stderr(io.StringIO()):
            longshore.train(self.run_file(program))
        return caught.exception

    def test_an_exit_code_has_its_exception_with_the_errors_of_the_program(self):
        error = self.failure("""
            print("loading", file=sys.stderr)
            print("error: a.toml:1: one\\n  more of it\\nerror: two", file=sys.stderr)
            print("warning: launch: rank 0 ended", file=sys.stderr)
            sys.exit(2)""")
        self.assertIs(type(error), longshore.ConfigError)
        self.assertEqual(error.exit_code, 2)
        self.assertEqual(str(error), "a.toml:1: one\n  more of it\ntwo")
        self.assertTrue(error.text.startswith("loading\n"))
        copy = pickle.loads(pickle.dumps(error))
        self.assertEqual((type(copy), str(copy), copy.text, copy.exit_code),
                         (type(error), str(error), error.text, 2))

    def test_without_an_error_on_the_terminal_the_status_or_the_code_says_why(self):
        error = self.failure('status(message="stopped by SIGUSR1"); sys.exit(138)')
        self.assertIs(type(error), longshore.StoppedError)
        self.assertEqual(str(error), "stopped by SIGUSR1")
        pathlib.Path("run/run.json").unlink()
        self.assertEqual(str(self.failure("sys.exit(7)")), "longshore ended with exit code 7")
        killed = self.failure("os.kill(os.getpid(), signal.SIGKILL)")
        self.assertIs(type(killed), longshore.LongshoreError)
        self.assertEqual((killed.exit_code, str(killed)), (137, "longshore was ended by SIGKILL"))

    def test_a_status_of_an_earlier_process_is_not_that_of_a_refused_start(self):
        pathlib.Path("run").mkdir()
        pathlib.Path("run/run.json").write_text('{"status": "done", "message": "old"}')
        result = longshore.train(self.run_file("sys.exit(5)"), check=False)
        self.assertEqual((result.exit_code, result.status), (5, {}))
        self.assertEqual(str(result.directory), "run")

    def test_a_command_that_prints_nothing_has_failed(self):
        pathlib.Path("answer.json").write_text("")
        with self.assertRaisesRegex(longshore.LongshoreError, "exit code 0"):
            longshore.plan("r")


class Records(StandInTest):
    def test_they_come_while_the_run_goes_on_and_a_line_only_when_it_is_whole(self):
        run = self.start("""
            write(kind="start")
            write(kind="step", step=1)
            with open(METRICS, "ab", buffering=0) as file:
                file.write(b'{"kind": "step", "st')
                wait_for("go")
                file.write(b'ep": 2}\\n')
            wait_for("on")
            write(kind="end")""")
        self.assertEqual(next(run)["kind"], "start")
        self.assertEqual(next(run)["step"], 1)
        pathlib.Path("go").touch()
        self.assertEqual(next(run)["step"], 2)
        pathlib.Path("on").touch()
        self.assertEqual([record["kind"] for record in run], ["end"])
        self.assertEqual(list(run), [])
        self.assertEqual(run.result().exit_code, 0)

    def test_a_resumed_run_gives_those_of_its_own_process(self):
        pathlib.Path("run").mkdir()
        lines = [{"kind": "start", "time": 1.0}, {"kind": "step", "step": 1},
                 {"kind": "event", "text": "start"}, {"kind": "step", "step": 2}]
        old = "".join(json.dumps(line) + "\n" for line in lines)
        pathlib.Path("run/metrics.jsonl").write_text(old)
        with self.start("""
                wait_for("go")
                lines = METRICS.read_text().splitlines(keepends=True)
                os.truncate(METRICS, len("".join(lines[:2])))
                write(kind="event", text="before the start")
                write(kind="start", resumed_from=1)
                write(kind="step", step=2)""") as run:
            pathlib.Path("go").touch()
            records = list(run)
        self.assertEqual([record["kind"] for record in records], ["start", "step"])
        self.assertEqual(len(longshore.read_metrics("run")), 5)

    def test_a_loop_over_a_run_that_fails_raises_after_its_records(self):
        seen = []
        with self.assertRaises(longshore.DataError) as caught, \
                contextlib.redirect_stderr(io.StringIO()):
            for record in self.start("""
                    write(kind="start")
                    status(status="failed")
                    print("error: torn", file=sys.stderr)
                    sys.exit(5)"""):
                seen.append(record["kind"])
        self.assertEqual((seen, str(caught.exception)), (["start"], "torn"))

    def test_messages_of_any_length_pass_and_their_end_is_kept(self):
        shown = io.StringIO()
        with contextlib.redirect_stderr(shown), self.assertRaises(longshore.DataError) as caught:
            longshore.train(self.run_file("""
                for number in range(20000):
                    print(f"line {number:05} \u00e9 of a run", file=sys.stderr)
                print("error: the last", file=sys.stderr, flush=True)
                sys.exit(5)"""))
        self.assertEqual(len(shown.getvalue().splitlines()), 20001)
        self.assertIn("line 00000 \u00e9 of a run\n", shown.getvalue())
        self.assertEqual(str(caught.exception), "the last")
        self.assertLessEqual(len(caught.exception.text.encode()), 65536)
        self.assertIn("line 19999", caught.exception.text)

    def test_a_process_that_a_run_leaves_behind_holds_nobody_up(self):
        error = None
        with contextlib.redirect_stderr(io.StringIO()):
            try:
                longshore.train(self.run_file("""
                    import subprocess
                    left = subprocess.Popen([sys.executable, "-c",
                                             "import time; time.sleep(1000)"])
                    pathlib.Path("left").write_text(str(left.pid))
                    print("error: torn", file=sys.stderr, flush=True)
                    os._exit(5)"""))
            except longshore.DataError as caught:
                error = caught
            finally:
                os.kill(int(pathlib.Path("left").read_text()), signal.SIGKILL)
        self.assertEqual(str(error), "torn")


class Stopping(StandInTest):
    def setUp(self):
        super().setUp()
        self.enter(contextlib.redirect_stderr(io.StringIO()))

    def enter(self, context):
        context.__enter__()
        self.addCleanup(context.__exit__, None, None, None)

    def saved(self):
        """The signals that the run got until it saved, and forgets them; None where it did not."""
        path = pathlib.Path("saved")
        if not path.exists():
            return None
        signals = json.loads(path.read_text())
        path.unlink()
        return signals

    def test_leaving_the_loop_or_the_block_stops_the_run_which_saves(self):
        for record in self.start(LONG_RUN):
            self.assertEqual(record["kind"], "start")
            break
        self.assertEqual(self.saved(), [signal.SIGTERM])
        with self.assertRaises(ZeroDivisionError), self.start(LONG_RUN) as run:
            next(run)
            print(1 / 0)
        self.assertEqual(self.saved(), [signal.SIGTERM])

    def test_a_run_that_was_asked_to_stop_has_not_failed(self):
        kinds = []
        with self.start(LONG_RUN) as run:
            for record in run:
                kinds.append(record["kind"])
                if record["kind"] == "step":
                    run.stop()
            run.stop()
            self.assertEqual(run.result().exit_code, 143)
        self.assertEqual(kinds, ["start", "step", "checkpoint"])

    def test_a_run_that_another_process_stops_has(self):
        with self.start(LONG_RUN) as run:
            next(run)
            next(run)
            os.kill(run._child.pid, signal.SIGTERM)
            with self.assertRaises(longshore.StoppedError):
                run.result()
            self.assertEqual(run.result(check=False).exit_code, 143)

    def python(self, program):
        """A Python of its own, which leads a process group."""
        child = subprocess.Popen([sys.executable, "-c", PREAMBLE + textwrap.dedent(program)],
                                 stderr=subprocess.PIPE, text=True, start_new_session=True)
        self.addCleanup(child.stderr.close)
        return child

    def test_ctrl_c_stops_the_run_which_gets_one_interrupt_alone(self):
        self.run_file(LONG_RUN)
        for program in ("longshore.train('run.toml')", "list(longshore.start('run.toml'))",
                        "run = longshore.start('run.toml'); run.result()"):
            for to_the_group in (True, False):
                child = self.python(program)
                # Python passes this line on once it has the run.
                self.assertEqual(child.stderr.readline(), "up\n")
                (os.killpg if to_the_group else os.kill)(child.pid, signal.SIGINT)
                _, said = child.communicate(timeout=60)
                self.assertIn("KeyboardInterrupt", said)
                self.assertEqual(self.saved(), [2, 15] if to_the_group else [15], said)

    def test_the_end_of_the_interpreter_stops_the_run(self):
        self.run_file(LONG_RUN)
        child = self.python("""
            run = longshore.start('run.toml')
            next(run), next(run)""")
        _, said = child.communicate(timeout=60)
        self.assertEqual(child.returncode, 0, said)
        self.assertEqual(self.saved(), [signal.SIGTERM])


if __name__ == "__main__":
    unittest.main()
