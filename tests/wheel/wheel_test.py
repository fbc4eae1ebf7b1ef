#!/usr/bin/env python3
"""The wheel of a build, installed into an empty environment: the program starts with the LibTorch
that it finds, trains, and says what is wrong where torch is another one or missing; so does
`import longshore`. No network: torch is the one that the build was made with.

    wheel_test.py BUILD_FOLDER LIBTORCH_SITE
"""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import textwrap
import unittest
import venv
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD, SITE = (pathlib.Path(argument).resolve() for argument in sys.argv[1:3])
RUN_FILE = """
[run]
dir = "run"
[model]
path = "model"
[data]
train = ["text.txt"]
cache = "cache"
max_tokens = 32
overlength = "split"
[train]
steps = 3
sequences_per_step = 2
[precision]
compute = "fp32"
"""


def run(*command, **options):
    return subprocess.run([str(word) for word in command], capture_output=True, text=True,
                          check=False, **options)


class Environment:
    """An environment of Python, with the wheel's files as an installer puts them."""

    def __init__(self, folder, wheel):
        venv.create(folder, with_pip=False)
        self.python = folder / "bin/python"
        [self.site] = folder.glob("lib/python*/site-packages")
        with zipfile.ZipFile(wheel) as archive:
            for entry in archive.infolist():
                path = pathlib.Path(archive.extract(entry, self.site))
                path.chmod(entry.external_attr >> 16 & 0o777)
        self.program = folder / "bin/longshore"
        self.program.write_text(f"#!{self.python}\n" + "from longshore._program import main\n"
                                "main()\n")
        self.program.chmod(0o755)

    def link_torch(self):
        """As if it were installed beside the package."""
        for path in SITE.iterdir():
            (self.site / path.name).symlink_to(path.resolve())

    def longshore(self, *arguments, **options):
        return run(self.program, *arguments, **options)

    def __call__(self, program, **options):
        return run(self.python, "-c", textwrap.dedent(program), **options)


class WheelTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.root = pathlib.Path(cls.folder.name)
        made = run(ROOT / "scripts/wheel", "--preset", BUILD.name, "--to", cls.root)
        if made.returncode != 0:
            raise AssertionError(made.stdout + made.stderr)
        [cls.wheel] = cls.root.glob("*.whl")
        cls.empty = Environment(cls.root / "empty", cls.wheel)
        cls.beside = Environment(cls.root / "beside", cls.wheel)
        cls.beside.link_torch()
        cls.elsewhere = Environment(cls.root / "elsewhere", cls.wheel)
        (cls.elsewhere.site / "torch.pth").write_text(str(SITE))
        for environment in (cls.empty, cls.beside, cls.elsewhere):
            work = environment.site.parents[2]
            (work / "run.toml").write_text(RUN_FILE)
            (work / "text.txt").write_text("".join(f"line {n}\n" for n in range(200)))

    def checked(self, done):
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def test_it_names_its_torch_and_the_glibc_it_needs(self):
        with zipfile.ZipFile(self.wheel) as archive:
            names = archive.namelist()
            [metadata] = [name for name in names if name.endswith("/METADATA")]
            self.assertIn("\nRequires-Dist: torch==2.11.0\n", archive.read(metadata).decode())
            tag = re.search(r"-2\.11torch-py3-none-manylinux_2_(\d+)_x86_64\.whl$", self.wheel.name)
            binary = archive.extract("longshore/bin/longshore", self.root / "binary")
        symbols = run("objdump", "-T", binary).stdout
        newest = max(int(number) for number in re.findall(r"GLIBC_2\.(\d+)", symbols))
        self.assertGreaterEqual(int(tag[1]), newest)
        # The wheel must not contain libraries that torch or the system provides.
        for name in names:
            self.assertIsNone(re.search(r"lib(torch|c10|cu|nccl|nv|gomp|stdc|c\.)", name), name)
        for name in ("longshore/lib/libtbb.so.12", "longshore/presets/tiny-cpu.toml",
                     "longshore/py.typed"):
            self.assertIn(name, names)
        with zipfile.ZipFile(self.wheel) as archive:
            shared = {name.split(".data/data/share/")[1]: archive.read(name).decode()
                      for name in names if ".data/data/" in name}
        self.assertEqual(sorted(shared), ["bash-completion/completions/longshore",
                                          "fish/vendor_completions.d/longshore.fish",
                                          "zsh/site-functions/_longshore"])
        for name, text in shared.items():
            for word in ("train", "report", "train.steps"):
                self.assertIn(word, text, name)

    def test_neither_program_looks_for_libraries_in_the_current_directory(self):
        for program in (BUILD / "longshore", self.beside.site / "longshore/bin/longshore"):
            [folders] = re.findall(r"runpath: \[(.*)\]", run("readelf", "-d", program).stdout)
            for folder in folders.split(":"):
                self.assertRegex(folder, r"^(/|\$ORIGIN/)", program)
        self.checked(run(ROOT / "scripts/wheel", "--check", self.wheel, "--glibc", "2.41"))

    def test_the_program_starts_itself_again_before_any_library_is_initialised(self):
        variables = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
        for policy in ({}, {"OMP_WAIT_POLICY": "ACTIVE"}, {"OMP_WAIT_POLICY": "PASSIVE"}):
            done = self.beside.longshore("version",
                                         env={**variables, **policy, "OMP_DISPLAY_ENV": "true"})
            self.checked(done)
            # OpenMP prints this when it is initialised: once, with threads that wait.
            self.assertEqual(re.findall(r"OMP_WAIT_POLICY = '(\w+)'", done.stderr), ["PASSIVE"])

    def test_it_says_what_it_is_whose_and_under_which_licences(self):
        with zipfile.ZipFile(self.wheel) as archive:
            [info] = {name.split("/")[0] for name in archive.namelist() if ".dist-info/" in name}
            texts = {name.split("/", 1)[1]: archive.read(name).decode()
                     for name in archive.namelist() if name.startswith(f"{info}/")}
        first = re.search(r"^[^#\s].*$", (ROOT / "README.md").read_text(), re.MULTILINE)[0]
        first = first.split(":")[0]
        metadata, body = texts["METADATA"].split("\n\n", 1)
        fields = [line.split(": ", 1) for line in metadata.split("\n")]
        self.assertIn(["Summary", first], fields)
        self.assertIn(["Author", "The Longshore developers"], fields)
        self.assertIn(["License-Expression", "Apache-2.0"], fields)
        self.assertIn(["Classifier", "Operating System :: POSIX :: Linux"], fields)
        self.assertEqual(re.findall(r"\]\((?!https?:).*?\)", body), [], "links to nowhere")
        named = {value for field, value in fields if field == "License-File"}
        self.assertEqual(named, {name.split("/")[1] for name in texts
                                 if name.startswith("licenses/")})
        self.assertIn("Apache License", texts["licenses/LICENSE"])
        notices = texts["licenses/THIRD_PARTY_NOTICES.txt"]
        for part in ("oneTBB", "liburing", "Highway", "CLI11", "JSON for Modern C++", "toml++",
                     "xxHash", "LibTorch", "Rust crate tokenizers ", "Rust crate parquet ",
                     "Rust crate saphyr-parser ",
                     "Permission is hereby granted"):
            self.assertIn(part, notices)
        version = self.beside("import longshore; print(longshore.__version__)")
        self.assertIn(["Version", self.checked(version).strip()], fields)
        cited = re.search(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)[1]
        self.assertIn(cited, [version.stdout.strip(), version.stdout.strip().split("+")[0]])
        self.assertIn("\nBuild: 2.11torch\n", texts["WHEEL"])

    def test_the_follower_is_a_command_of_it(self):
        with zipfile.ZipFile(self.wheel) as archive:
            [points] = [archive.read(name).decode() for name in archive.namelist()
                        if name.endswith("/entry_points.txt")]
        self.assertIn("\nlongshore-follow = longshore.follow_metrics:main\n", points)
        follow = "import sys; from longshore.follow_metrics import main; main()"
        said = run(self.beside.python, "-c", follow, "nowhere", "--to", "wandb")
        self.assertEqual(said.returncode, 1, said.stderr)
        self.assertIn("nowhere: no such directory; give the run's run.dir", said.stderr)

    def test_the_program_finds_torch_beside_it_without_being_told(self):
        binary = self.beside.site / "longshore/bin/longshore"
        lean = {"PATH": "/usr/bin:/bin"}
        self.assertIn("LibTorch 2.11.0", self.checked(run(binary, "version", env=lean)))
        loaded = run("ldd", binary, env=lean).stdout
        self.assertNotIn("not found", loaded)
        for library in ("libtbb.so.12", "libhwy.so.1", "liburing.so.2"):
            self.assertIn(f"{self.beside.site}/longshore/bin/../lib/{library}", loaded)

    def test_the_quick_start_runs_from_it(self):
        work = self.root / "quickstart"
        said = self.checked(run(ROOT / "scripts/quickstart", "--program", self.elsewhere.program,
                                "--in", work, "--train.steps=6", "--schedule.warmup_steps=2"))
        self.assertNotIn("Set-up", said)
        self.assertIn(f"{self.elsewhere.program} plan my.toml", said)
        for name in ("hf/model.safetensors", "report.html", "metrics.jsonl"):
            self.assertTrue((work / "runs/quickstart" / name).exists(), name)

    def test_facts_are_printed_as_json(self):
        work = self.elsewhere.site.parents[2]
        self.checked(self.elsewhere.longshore("init-model", "json-model", cwd=work))
        keys = ("run.toml", "--model.path=json-model", "--run.dir=json-run")

        def json_of(*words, code=0):
            done = self.elsewhere.longshore(*words, cwd=work)
            self.assertEqual(done.returncode, code, done.stdout + done.stderr)
            return json.loads(done.stdout)

        self.assertEqual(json_of("version", "--json")["libtorch"], "2.11.0")
        valid = json_of("check", "run", *keys, "--json")
        self.assertEqual([valid["valid"], valid["problems"], valid["family"]], [True, [], "llama"])
        wrong = json_of("check", "run", *keys, "--json", "--data.train=nowhere.txt", code=5)
        self.assertFalse(wrong["valid"])
        self.assertIn("nowhere.txt", wrong["problems"][0]["text"])
        self.assertEqual(wrong["problems"][0]["exit_code"], 5)
        prepared = json_of("prepare", *keys, "--json")
        self.assertEqual([prepared["path"], prepared["format"]], ["text.txt", "text"])
        self.checked(self.elsewhere.longshore("train", *keys, cwd=work))
        exported = json_of("export", *keys, "--json", "--to", "json-hf")
        self.assertEqual([exported["directory"], exported["step"]], ["json-hf", 3])
        self.assertEqual(json_of("ckpt", "prune", *keys, "--json"), [])

    def test_python_goes_from_a_model_to_an_export(self):
        work = self.beside.site.parents[2]
        self.checked(self.beside.longshore("init-model", "api-model", cwd=work))
        done = self.beside("""
            import json, longshore
            keys = {"run.dir": "api-run", "data.cache": "cache", "data.max_tokens": 32,
                    "data.overlength": "split", "train.steps": 3, "train.sequences_per_step": 2,
                    "eval.split": 0.1, "precision.compute": "fp32"}
            said = [longshore.init("api.toml", model="api-model", data="text.txt",
                                   overrides=keys)["path"], longshore.check("api.toml")["valid"]]
            wrong = longshore.check("api.toml", overrides={"data.train": "nowhere.txt"})
            said += [wrong["valid"], wrong["problems"][0]["exit_code"]]
            with longshore.start("api.toml") as run:
                steps = [record["step"] for record in run if record["kind"] == "step"]
            said += [steps, run.result().status["status"]]
            tuned, model = (longshore.eval("api.toml", weights=weights)
                            for weights in ("auto", "model"))
            said += [tuned["step"], tuned["loss"] < model["loss"]]
            prompts = ["[a, b]", '--"line" \u00e9']
            answers = longshore.generate("api.toml", prompts=prompts, max_new_tokens=2)
            said += [[answer["prompt"] for answer in answers] == prompts]
            said += [longshore.export("api.toml", to="api-hf")["step"]]
            longer = {"train.steps": 1000000, "schedule.name": "constant"}
            with longshore.start("api.toml", overrides=longer, quiet=True) as run:
                for record in run:
                    if record["kind"] == "start":
                        said += [record["resumed_from"]]
                    if record["kind"] == "step":
                        run.stop()
            said += [run.result().status["status"]]
            try:
                longshore.eval("api.toml", overrides={"eval.split": 0})
            except longshore.ConfigError as error:
                said += [error.exit_code, str(error)]
            print(json.dumps(said))
            """, cwd=work)
        said = json.loads(self.checked(done).splitlines()[-1])
        self.assertEqual(said[:-1], ["api.toml", True, False, 5, [1, 2, 3], "done", 3, True, True,
                                     3, 3, "stopped", 2])
        self.assertIn("data.eval and eval.sets are empty", said[-1])

    def test_python_plans_trains_and_reads_metrics(self):
        work = self.beside.site.parents[2]
        self.checked(self.beside.longshore("init-model", "model", cwd=work))
        done = self.beside("""
            import json, longshore
            plan = longshore.plan("run.toml")
            small = longshore.plan("run.toml", overrides={"offload.device_memory": "64KiB"})
            run = longshore.train("run.toml", overrides={"train.steps": 2, "run.dir": "two",
                                                         "data.train": ["text.txt"]})
            lines = longshore.read_metrics(run.directory)
            try:
                longshore.train("run.toml", overrides={"optimizer.lr": "much"})
            except longshore.LongshoreError as error:
                refused = [error.exit_code, str(error)]
            gone = longshore.train("run.toml", overrides={"data.train": ["nowhere.txt"]},
                                   check=False)
            with open("two/metrics.jsonl", "a") as file:
                file.write('{"kind": "st')
            print(json.dumps([plan["fits"], small["fits"], run.exit_code, str(run.directory),
                              run.status["status"], [line["kind"] for line in lines],
                              len(longshore.read_metrics("two", kind="step")), refused,
                              gone.exit_code, gone.status,
                              (longshore.presets() / "tiny-cpu.toml").exists() and
                              len(list(longshore.recipes().glob("*_*.toml"))) > 5]))
            """, cwd=work)
        said = json.loads(self.checked(done).splitlines()[-1])
        self.assertEqual(said[:7], [True, False, 0, "two", "done",
                                    ["start", "step", "step", "checkpoint", "end"], 2])
        self.assertEqual(said[7][0], 2)
        self.assertIn("optimizer.lr", said[7][1])
        self.assertEqual(said[8:], [5, {}, True])

    def test_a_missing_or_another_torch_is_said(self):
        done = self.empty.longshore("version")
        self.assertEqual(done.returncode, 1)
        self.assertIn("error: there is no torch beside", done.stderr)
        self.assertIn("pip install torch==2.11.0", done.stderr)
        other = self.root / "other"
        (other / "torch").mkdir(parents=True)
        (other / "torch/__init__.py").write_text("raise SystemExit('torch was imported')")
        (other / "torch-2.9.1.dist-info").mkdir()
        (other / "torch-2.9.1.dist-info/METADATA").write_text("Name: torch\nVersion: 2.9.1+cu128\n")
        paths = {**os.environ, "PYTHONPATH": str(other)}
        done = self.empty.longshore("version", env=paths)
        self.assertEqual(done.returncode, 1)
        self.assertIn(f"torch 2.9.1+cu128 is in {other}/torch; longshore needs torch 2.11.0",
                      done.stderr)
        (other / "torch-2.9.1.dist-info/METADATA").write_text("Name: torch\nVersion: 2.11.0+cpu\n")
        done = self.empty.longshore("version", env=paths)
        with_cuda = "libc10_cuda" in run("readelf", "-d", BUILD / "longshore").stdout
        # A build without CUDA starts the program, which finds no LibTorch in that folder.
        self.assertIn("is one without CUDA" if with_cuda else "libtorch_cpu.so", done.stderr)
        (other / "torch-2.9.1.dist-info/METADATA").write_text("Name: torch\nVersion: 2.9.1\n")
        done = self.empty("import longshore; longshore.plan('run.toml')", env=paths)
        self.assertIn("LibTorchError", done.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
