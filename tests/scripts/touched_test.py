#!/usr/bin/env python3
"""Which tests scripts/dev/touched selects for a change, over trees of a few lines."""
import importlib.machinery
import importlib.util
import pathlib
import re
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True
loader = importlib.machinery.SourceFileLoader("touched", str(ROOT / "scripts/dev/touched"))
touched = importlib.util.module_from_spec(importlib.util.spec_from_loader("touched", loader))
loader.exec_module(touched)

TREE = {
    "src/base/hash.h": "",
    "src/base/hash.cpp": '#include "base/hash.h"\n',
    "src/model/unit.h": '#include "base/hash.h"\n',
    "src/model/unit.cpp": '#include "model/unit.h"\n#include "model/rope.h"\n',
    "src/model/rope.h": "",
    "src/model/rope.cpp": '#include "model/rope.h"\n',
    "src/model/families.h": "",
    "src/model/new_families.cpp": '#include "model/families.h"\n#include "base/hash.h"\n',
    "src/text/words_c/include/words_c.h": "",
    "src/text/words_c/src/lib.rs": "",
    "trainer/run.h": '#include "model/unit.h"\n#include "words_c.h"\n',
    "tests/base/hash_test.cpp": '#include "base/hash.h"\nTEST(Hash, A) {}\nTEST(Hash, B) {}\n',
    "tests/model/rope_test.cpp": '#include "model/rope.h"\nTEST(Rope, A) {}\n',
    "tests/model/unit_test.cpp": '#include "model/unit.h"\nTEST_P(Unit, A) {}\n',
    "tests/model/families_test.cpp": '#include "model/families.h"\nTEST_F(Families, A) {}\n',
    "tests/model/golden_test.cpp": 'auto path = "/model/golden/";\nTEST(Golden, A) {}\n',
    "tests/model/golden/llama.json": "",
    "tests/model/rows.bin": "",
    "tests/parity/train_test.cpp": '#include "trainer/run.h"\nTEST(Train, A) {}\n',
    "tests/tidy/tidy_test.cpp": "TEST(Tidy, A) {}\n",
    "tests/scripts/words_test.py": "",
    "SECURITY.md": "",
}


def suites(*changed):
    chosen = touched.select(TREE, changed)
    return {program: sorted(found) for program, found in chosen.suites.items() if program != "tidy"}


class Selection(unittest.TestCase):
    def test_a_source_reaches_the_tests_that_include_its_header_over_any_number_of_files(self):
        self.assertEqual(suites("src/model/rope.cpp"), {"model": ["Rope", "Unit"]})
        self.assertEqual(suites("src/base/hash.cpp"),
                         {"base": ["Hash"], "model": ["Families", "Unit"]})

    def test_a_source_without_a_header_of_its_name_belongs_to_those_it_includes_of_its_folder(self):
        self.assertEqual(suites("src/model/new_families.cpp"), {"model": ["Families"]})

    def test_a_crate_is_reached_by_its_header(self):
        self.assertEqual(suites("src/text/words_c/src/lib.rs"), {"parity": ["Train"]})

    def test_whole_runs_are_selected_only_for_what_is_near_and_named_otherwise(self):
        self.assertEqual(suites("trainer/run.h"), {"parity": ["Train"]})
        self.assertIn("Train", suites("src/model/unit.h")["parity"])
        chosen = touched.select(TREE, ["src/base/hash.cpp"])
        self.assertEqual(dict(chosen.far), {"parity": {"Train"}})

    def test_data_reaches_the_tests_that_name_it_or_else_its_whole_program(self):
        self.assertEqual(suites("tests/model/golden/llama.json"), {"model": ["Golden"]})
        self.assertEqual(suites("tests/model/rows.bin"),
                         {"model": ["Families", "Golden", "Rope", "Unit"]})

    def test_what_nothing_reads_and_what_everything_reads_is_named(self):
        chosen = touched.select(TREE, ["SECURITY.md", "cmake/Cuda.cmake", "src/CMakeLists.txt"])
        self.assertEqual(chosen.nowhere, ["SECURITY.md"])
        self.assertEqual(chosen.everywhere, ["cmake/Cuda.cmake", "src/CMakeLists.txt"])
        self.assertEqual(chosen.targets(), ["test_tidy"])

    def test_a_file_that_was_deleted_is_no_error(self):
        self.assertEqual(suites("src/model/gone.cpp"), {})

    def test_scripts_reach_their_own_tests(self):
        chosen = touched.select(TREE, ["scripts/test"])
        self.assertTrue(re.fullmatch(chosen.expression(), "scripts.Words"))
        self.assertEqual(touched.select(TREE, ["python/x.py"]).far_entries, {"wheel.Installed"})

    def test_the_expression_names_entries_of_suites_instances_and_single_tests(self):
        expression = touched.select(TREE, ["src/model/rope.h"]).expression()
        for entry in ("model.Rope", "model.All/Unit", "stand_in_model.Rope", "model.Unit/0",
                      "parity.Train.A" if "parity" in expression else "tidy.Tidy"):
            self.assertTrue(re.fullmatch(expression, entry), entry)
        for entry in ("model.RopeTable", "text.Rope", "model.Golden", "plain_text.Rope"):
            self.assertIsNone(re.fullmatch(expression, entry), entry)

    def test_the_tables_name_what_is_in_this_repository(self):
        for folder in touched.SCRIPTED:
            self.assertTrue((ROOT / folder).is_dir(), folder)
        for paths in touched.SCRIPTED_USES.values():
            for path in paths:
                self.assertTrue((ROOT / path).exists(), path)
        cmake = (ROOT / "tests/CMakeLists.txt").read_text()
        for program in touched.STAND_INS:
            self.assertIn(f"longshore_stand_in({program}", cmake)
        self.assertEqual(cmake.count("\nlongshore_stand_in("), len(touched.STAND_INS))


if __name__ == "__main__":
    unittest.main()
