#!/usr/bin/env python3
"""Figures name their records: those of this repository, and a copy in which one was changed."""
import importlib.machinery
import importlib.util
import pathlib
import shutil
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True
loader = importlib.machinery.SourceFileLoader("records", str(ROOT / "scripts/dev/records"))
records = importlib.util.module_from_spec(importlib.util.spec_from_loader("records", loader))
loader.exec_module(records)

README = """# A page

Steps reach 8 400 tokens/s. <!-- record: run -->

A cap of `24GiB`, on a 24 GB GPU.

```
12 s
```
"""
TABLE = """<!-- record: run -->

| run | tokens/s | off |
|---|---|---|
| 8B | 8,421 | 5 % |
"""
TOML = """[run]
command = "longshore train"
machine = "a machine"
commit = "0123abcd"
figures = { "tokens/s" = [8421.25] }
tables = ["%s"]
"""


class ThisRepository(unittest.TestCase):
    def test_every_figure_agrees_with_its_record(self):
        self.assertEqual(records.check(ROOT), [])

    def test_a_figure_that_was_changed_in_a_copy_is_found(self):
        with tempfile.TemporaryDirectory() as folder:
            copy = pathlib.Path(folder)
            shutil.copytree(ROOT / "docs", copy / "docs")
            text = (ROOT / "README.md").read_text()
            self.assertIn(" 8 400 tokens/s", text)
            (copy / "README.md").write_text(text.replace(" 8 400 tokens/s", " 8 600 tokens/s"))
            page = copy / "docs/measurements/gpu/README.md"
            text = page.read_text()
            self.assertIn("| 3.891 | 8,421 |", text)
            page.write_text(text.replace("| 3.891 | 8,421 |", "| 3.891 | 8,521 |"))
            problems = records.check(copy)
        self.assertTrue(any(one.startswith("README.md:") and "8 600 tokens/s" in one
                            for one in problems), problems)
        self.assertTrue(any(one.startswith("docs/measurements/gpu/README.md:")
                            and "8,521 tokens/s" in one for one in problems), problems)


class Rules(unittest.TestCase):
    def check(self, readme=README, table=TABLE, toml=TOML):
        rows = [line for line in TABLE.split("\n") if line.startswith("| 8B")]
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            (root / "docs/measurements").mkdir(parents=True)
            (root / "README.md").write_text(readme)
            (root / "docs/page.md").write_text(table)
            (root / records.RECORDS).write_text(toml.replace("%s", records.digest(rows)))
            return records.check(root)

    def assert_one(self, problems, *words):
        self.assertEqual(len(problems), 1, problems)
        for word in words:
            self.assertIn(word, problems[0])

    def test_what_agrees_passes_and_code_and_names_of_things_claim_nothing(self):
        self.assertEqual(self.check(), [])

    def test_a_figure_without_a_record_is_named_with_its_line_and_what_to_do(self):
        self.assert_one(self.check(readme=README + "\nIt took 12 s.\n"), "README.md:11", "12 s",
                        "<!-- record: ID -->")
        self.assert_one(self.check(table=TABLE + "\nA table:\n\n| GiB |\n|---|\n| 12 |\n| 3.4 |\n"),
                        "docs/page.md:9", "12 GiB", "<!-- no record: REASON -->")

    def test_a_figure_that_is_not_the_record_s_is_refused_and_its_rounding_is_not(self):
        self.assert_one(self.check(readme=README.replace("8 400", "8 500")),
                        "README.md:3", "8 500 tokens/s", "8421.25")
        for said in ("8 421", "8 420", "8,421.3", "8 000"):
            self.assertEqual(self.check(readme=README.replace("8 400", said)), [], said)

    def test_a_number_of_a_table_without_a_recorded_unit_is_held_by_the_digest(self):
        problems = self.check(table=TABLE.replace("5 %", "4 %"))
        self.assertTrue(any("docs/page.md:3" in one and "longshore train" in one
                            for one in problems), problems)

    def test_what_was_not_measured_says_why(self):
        unmarked = "\nIt takes 12 s.\n"
        self.assertEqual(self.check(readme=README + unmarked.replace(
            ".\n", ". <!-- no record: estimate of plan -->\n")), [])
        self.assert_one(self.check(readme=README + unmarked.replace(
            ".\n", ". <!-- no record: as we like -->\n")), "gives no reason", "estimate")

    def test_records_are_complete_and_used(self):
        self.assert_one(self.check(toml=TOML.replace('commit = "0123abcd"\n', "")),
                        "[run]", "'commit' is missing")
        other = '[other]\ncommand = "a"\nmachine = "b"\ncommit = "c"\n'
        self.assert_one(self.check(toml=TOML + other), "[other]", "no page names it")
        self.assert_one(self.check(toml=TOML + "speed = 3\n"), "'speed' is unknown")
        self.assert_one(self.check(toml=TOML.replace("%s", '%s", "00')), "no table has the digest")
        self.assert_one(self.check(readme=README.replace("record: run", "record: rnu")),
                        "README.md:3", "no record 'rnu'")

    def test_a_bare_number_below_a_unit_or_beside_one_is_a_figure(self):
        block = records.Block("docs/page.md", 1, [
            "| what | planned s | 90 % | rows |", "|---|---|---|---|",
            "| a | 1.5 (1.4 to 1.6) | 1.02 | 12 |",
            "| products, TFLOP/s | 520 to 802 | 3 | 4 |"], "")
        self.assertEqual(block.figures(), [("1.5", "s"), ("520", "TFLOP/s"),
                                           ("3", "TFLOP/s"), ("4", "TFLOP/s")])


if __name__ == "__main__":
    unittest.main()
