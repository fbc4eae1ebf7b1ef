#!/usr/bin/env python3
"""The page of rows of `longshore bench run`: this repository's, and pages of made-up rows."""
import contextlib
import copy
import importlib.machinery
import importlib.util
import io
import json
import pathlib
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True
loader = importlib.machinery.SourceFileLoader("machines", str(ROOT / "scripts/dev/machines"))
machines = importlib.util.module_from_spec(importlib.util.spec_from_loader("machines", loader))
loader.exec_module(machines)

GIB = 2**30
ROW = {
    "row": 1, "date": "2026-01-02", "recipe": "8b-lora", "tiny": False, "weights": "random",
    "device_memory": "24GiB", "settings": {}, "steps": 12,
    "tokens_per_second": {"planned": 2000.0, "measured": 1900.0},
    "step_seconds": {"planned": 8.2, "measured": 8.6},
    "bytes": {"device": {"cap": 24 * GIB, "planned": 20 * GIB, "peak": 19 * GIB},
              "host": {"planned": 40 * GIB, "peak": 39 * GIB},
              "drives": {"planned": 0, "taken": 0}},
    "moved": {}, "check": {"result": "equal"},
    "machine": {"gpu": "A card", "cpu": "A processor", "memory_bytes": 64 * GIB},
    "rates": None, "versions": {"longshore": "0.1.0", "commit": "0123456789ab"},
}


class Rows(unittest.TestCase):
    def run_script(self, rows, *arguments, added=None):
        """The exit code, what was said, and the page, in a folder of its own."""
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            (root / "docs/measurements").mkdir(parents=True)
            (root / machines.ROWS).write_text("".join(json.dumps(row) + "\n" for row in rows))
            more = []
            if added is not None:
                (root / "new.jsonl").write_text("".join(json.dumps(row) + "\n" for row in added))
                more = ["--add", str(root / "new.jsonl")]
            said = io.StringIO()
            with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
                code = machines.main(["--root", folder, *arguments, *more])
            page = root / machines.PAGE
            return code, said.getvalue(), page.read_text() if page.exists() else ""

    # Goal: a row becomes a line below its recipe, with plan beside measurement.
    def test_a_row_is_a_line_of_its_recipe_s_table(self):
        code, said, page = self.run_script([ROW])
        self.assertEqual((code, said), (0, ""))
        self.assertIn("## 8b-lora\n", page)
        self.assertIn("| A card | 24GiB | A processor, 64.0 GiB | 1,900 | 2,000 (-5 %) "
                      "| 20.0 / 19.0 | 40.0 / 39.0 |  "
                      "| equal | 0.1.0 (0123456789ab) | 2026-01-02 |", page)

    # Goal: machines of a recipe are ordered by their measured speed, and an unknown plan is empty.
    def test_the_fastest_machine_comes_first_and_an_unknown_time_is_left_out(self):
        fast = copy.deepcopy(ROW)
        fast["machine"]["gpu"] = "A faster card"
        fast["tokens_per_second"] = {"planned": None, "measured": 5000.0}
        _, _, page = self.run_script([ROW, fast])
        self.assertLess(page.index("A faster card"), page.index("A card"))
        self.assertIn("| 5,000 |  |", page)

    # Goal: rows that claim nothing, or show a mistake of the program, do not get on the page.
    def test_rows_that_are_no_measurement_are_refused_with_their_line(self):
        changes = {"version": {"row": 2}, "tiny": {"tiny": True},
                   "other bits": {"check": {"result": "different"}},
                   "bytes of the device": {"bytes": {**ROW["bytes"], "device": {
                       "cap": 2, "planned": 1, "peak": 2}}}}
        for words, change in changes.items():
            code, said, page = self.run_script([ROW, {**ROW, **change}])
            self.assertEqual((code, page), (1, ""), words)
            self.assertIn("machines.jsonl:2", said)
            self.assertIn(words, said)
        lacking = {name: value for name, value in ROW.items() if name != "moved"}
        self.assertIn("lacks moved", self.run_script([lacking])[1])

    # Goal: a file of rows is added once, and not at all if one of them is refused.
    def test_rows_are_added_once(self):
        other = {**ROW, "date": "2026-01-03"}
        code, said, page = self.run_script([ROW], added=[ROW, other])
        self.assertEqual(code, 0)
        self.assertIn("added 1 rows", said)
        self.assertEqual(page.count("| A card |"), 2)
        code, said, page = self.run_script([ROW], added=[other, {**ROW, "tiny": True}])
        self.assertEqual((code, page), (1, ""))
        self.assertIn("new.jsonl:2", said)

    # Goal: a page that was changed by hand is found.
    def test_check_finds_a_page_that_is_not_of_the_rows(self):
        self.assertEqual(machines.main(["--check"]), 0, "run scripts/dev/machines")
        code, said, _ = self.run_script([ROW], "--check")
        self.assertEqual(code, 1)
        self.assertIn("run scripts/dev/machines", said)


if __name__ == "__main__":
    unittest.main()
