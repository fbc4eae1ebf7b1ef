#!/usr/bin/env python3
"""What scripts say of themselves, and what they refuse before anything is fetched or built."""
import pathlib
import subprocess
import sys
import unittest

SCRIPTS = pathlib.Path(__file__).resolve().parents[2] / "scripts"


def run(script, *words):
    return subprocess.run(["/bin/bash", SCRIPTS / script, *words], capture_output=True,
                          text=True, check=False, timeout=300)


def quickstart(*words):
    return run("quickstart", *words)


class QuickstartTest(unittest.TestCase):
    def test_help_says_its_own_options_and_does_nothing(self):
        for word in ("--help", "-h"):
            done = quickstart("--train.steps=3", word)
            self.assertEqual(done.returncode, 0)
            self.assertEqual(done.stderr, "")
            for option in ("--preset NAME", "--program FILE", "--in FOLDER",
                           "--SECTION.KEY=VALUE", "--help"):
                self.assertIn(option, done.stdout)
            self.assertNotIn("==", done.stdout)

    def test_unknown_words_are_refused_before_anything_is_done(self):
        for words, said in ((["--stpes=3"], "'--stpes=3' is unknown"),
                            (["20"], "'20' is unknown"),
                            (["--in", "x", "-v"], "'-v' is unknown"),
                            (["--preset"], "--preset wants a value"),
                            (["--in="], "--in wants a value"),
                            (["--train.steps"], "--train.steps wants a value"),
                            (["--run.dir=x"], "--in FOLDER"),
                            (["--preset", "tset"], "no preset 'tset'"),
                            (["--program", "nowhere/longshore"], "nowhere/longshore is no program"),
                            (["--program", "sh", "--preset", "test"], "leave out --preset")):
            done = quickstart(*words)
            self.assertEqual(done.returncode, 2, words)
            self.assertIn("quickstart: ", done.stderr)
            self.assertIn(said, done.stderr)
            self.assertIn("--help", done.stderr)
            self.assertEqual(done.stdout, "")


class TestScriptTest(unittest.TestCase):
    def test_help_says_its_own_options_and_starts_nothing(self):
        for word in ("--help", "-h"):
            done = run("test", word)
            self.assertEqual(done.returncode, 0)
            self.assertEqual(done.stderr, "")
            for option in ("--touched [COMMIT]", "--help"):
                self.assertIn(option, done.stdout)
            self.assertNotIn("==", done.stdout)

    def test_unknown_words_are_refused_before_anything_is_done(self):
        for words, said in ((["--tuoched"], "'--tuoched' is unknown"),
                            (["20"], "'20' is unknown"),
                            (["--touched", "HEAD", "x"], "'x' is unknown"),
                            (["--touched", "no-such-commit"], "no commit 'no-such-commit'")):
            done = run("test", *words)
            self.assertEqual(done.returncode, 2, words)
            self.assertIn(said, done.stderr)
            self.assertIn("--help", done.stderr)
            self.assertEqual(done.stdout, "")


class SourceTreeTest(unittest.TestCase):
    def test_the_package_of_the_source_tree_says_how_to_get_the_program(self):
        script = "import longshore; longshore.plan('run.toml')"
        done = subprocess.run([sys.executable, "-c", script],
                              capture_output=True, text=True, check=False, timeout=300,
                              cwd=SCRIPTS.parent / "python")
        self.assertEqual(done.returncode, 1)
        self.assertIn("LibTorchError: there is no program in", done.stderr)
        self.assertIn("scripts/build && scripts/wheel", done.stderr)


if __name__ == "__main__":
    unittest.main()
