#!/usr/bin/env python3
"""What scripts/release makes and refuses, in a repository of a few files whose scripts/test, build
and wheel are stand-ins; and what scripts/wheel --check says of wheels of a file of the system."""
import hashlib
import importlib.machinery
import importlib.util
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest
import unittest.mock
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True


def load(name):
    loader = importlib.machinery.SourceFileLoader(name, str(ROOT / "scripts" / name))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, loader))
    loader.exec_module(module)
    return module


release, notices, wheel = load("release"), load("notices"), load("wheel")

CHANGELOG = """# Changelog

## Unreleased

## 1.2.3 - 2026-12-01

- It does more.

## 1.2.2 - 2026-11-01

- It does something.
"""
FILES = {
    ".gitignore": "/build/\n",
    "CMakeLists.txt": "project(longshore VERSION 1.2.3 LANGUAGES CXX)\n",
    "CITATION.cff": "cff-version: 1.2.0\nversion: 1.2.3\n",
    "CHANGELOG.md": CHANGELOG,
    "README.md": "Install longshore-1.2.3-2.11torch.whl.\n",
    "docs/page.md": "A page.\n",
    "python/longshore/_program.py": '\nVERSION = "0.0.0"  # replaced\n',
    "scripts/test": "#!/bin/sh\n[ ! -e build/tests_fail ]\n",
    "scripts/build": "#!/bin/sh\necho built \"$@\"\n",
    "scripts/wheel": """#!/bin/sh
if [ "$1" = --check ]; then [ ! -e build/check_fails ]; exit; fi
mkdir -p "$4"
echo wheel >"$4/longshore-1.2.3$(cat build/suffix 2>/dev/null)-2.11torch-py3-none-any.whl"
""",
    "scripts/notices": "#!/bin/sh\necho '{}' >\"$2\"\n",
}


class Repository(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name) / "clone"
        for name, text in FILES.items():
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            path.chmod(0o755 if name.startswith("scripts/") else 0o644)
        for name in ("release", "container", "Containerfile"):
            shutil.copy(ROOT / "scripts" / name, self.root / "scripts" / name)
        self.git("init", "-q")
        self.commit("v1.2.3")
        (self.root / "build").mkdir()

    def git(self, *words):
        plain = ["-c", "user.name=A", "-c", "user.email=a@b", "-c", "commit.gpgSign=false",
                 "-c", "tag.gpgSign=false"]
        subprocess.run(["git", *plain, *words], cwd=self.root, check=True, capture_output=True)

    def commit(self, *tags):
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", "x")
        for tag in tags:
            self.git("tag", "-f", "-a", tag, "-m", tag)

    def release(self, *words):
        return subprocess.run([sys.executable, self.root / "scripts/release", *words],
                              capture_output=True, text=True, check=False, timeout=300)

    def refused(self, *said, words=("--tests-passed",)):
        done = self.release(*words)
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        for one in ("release: ", *said):
            self.assertIn(one, done.stderr)
        self.assertFalse(list((self.root / "build").glob("*longshore*")))


class Made(Repository):
    def test_it_makes_every_file_of_a_release_and_says_how_to_publish_them(self):
        done = self.release()
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        made = self.root / "build/longshore-1.2.3"
        names = sorted(path.name for path in made.iterdir())
        wheel_name = "longshore-1.2.3-2.11torch-py3-none-any.whl"
        self.assertEqual(names, ["NOTES.md", "SHA256SUMS", wheel_name,
                                 "longshore-1.2.3-container.tar.gz", "longshore-1.2.3.cdx.json",
                                 "longshore-1.2.3.tar.gz"])
        self.assertEqual((made / "NOTES.md").read_text(), "- It does more.\n")
        sums = dict(line.split("  ")[::-1]
                    for line in (made / "SHA256SUMS").read_text().splitlines())
        for name in set(names) - {"SHA256SUMS"}:
            self.assertEqual(sums[name], hashlib.sha256((made / name).read_bytes()).hexdigest())
        with tarfile.open(made / "longshore-1.2.3.tar.gz") as archive:
            self.assertIn("longshore-1.2.3/CMakeLists.txt", archive.getnames())
        with tarfile.open(made / "longshore-1.2.3-container.tar.gz") as archive:
            folder = "longshore-1.2.3-container"
            self.assertEqual(sorted(archive.getnames()), [
                folder, f"{folder}/Containerfile", f"{folder}/{wheel_name}"])
        for command in ("git push origin v1.2.3", "gh release create v1.2.3"):
            self.assertIn(command, done.stdout)

    def test_the_same_commit_gives_the_same_bytes(self):
        for name in ("one", "two"):
            done = self.release("--tests-passed", "--to", self.root / "build" / name)
            self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual((self.root / "build/one/SHA256SUMS").read_text(),
                         (self.root / "build/two/SHA256SUMS").read_text())


class Refused(Repository):
    def test_files_that_are_not_committed(self):
        (self.root / "new.txt").write_text("x")
        self.refused("new.txt", "commit or remove")

    def test_tests_that_fail_unless_they_have_passed_before(self):
        (self.root / "build/tests_fail").touch()
        self.refused("scripts/test ended with 1", words=())
        self.assertEqual(self.release("--tests-passed").returncode, 0)

    def test_a_commit_without_its_tag_or_with_another_one(self):
        self.git("tag", "-d", "v1.2.3")
        self.refused("no tag", "v1.2.3")
        self.git("tag", "-a", "v1.2.4", "-m", "x")
        self.refused("the tags v1.2.4", "v1.2.3")

    def test_a_version_that_is_not_in_the_changelog(self):
        for text in (CHANGELOG.replace("1.2.3 - 2026-12-01", "1.2.4 - 2026-12-01"),
                     CHANGELOG.replace("1.2.3 - 2026-12-01", "1.2.3"),
                     CHANGELOG.replace("- It does more.\n", "")):
            (self.root / "CHANGELOG.md").write_text(text)
            self.commit("v1.2.3")
            self.refused("CHANGELOG.md", "## 1.2.3 - YEAR-MONTH-DAY")

    def test_changes_that_no_version_has(self):
        text = CHANGELOG.replace("Unreleased\n", "Unreleased\n\n- x\n")
        (self.root / "CHANGELOG.md").write_text(text)
        self.commit("v1.2.3")
        self.refused("under 'Unreleased'")

    def test_versions_that_differ(self):
        for name, text in (("CITATION.cff", "version: 1.2.2\n"),
                           ("docs/page.md", "longshore-1.2.2-x"),
                           ("python/longshore/_program.py", '\nVERSION = "1.2.2"  # x\n')):
            (self.root / name).write_text(text)
            self.commit("v1.2.3")
            self.refused(f"{name}: ", "version 1.2.3")
            (self.root / name).write_text(FILES[name])

    def test_a_wheel_without_cuda_or_that_fails_its_check(self):
        (self.root / "build/suffix").write_text("+cpu")
        self.refused("no wheel of 1.2.3 with CUDA")
        (self.root / "build/suffix").unlink()
        (self.root / "build/check_fails").touch()
        self.refused("scripts/wheel ended with 1")

    def test_a_folder_that_is_there(self):
        taken = self.root / "build/taken"
        taken.mkdir()
        self.refused("is there already", words=("--tests-passed", "--to", taken))

    def test_a_folder_among_the_sources(self):
        self.refused("among the files of the repository",
                     words=("--tests-passed", "--to", self.root / "made"))


class Context(Repository):
    def test_the_context_of_a_build_without_cuda_says_where_its_torch_is_from(self):
        for suffix, said in (("", "\nARG PIP_OPTIONS=\n"),
                             ("+cpu", "\nARG PIP_OPTIONS=\"--extra-index-url "
                                      "https://download.pytorch.org/whl/cpu\"\n")):
            (self.root / "build/suffix").write_text(suffix)
            context = self.root / f"build/context{suffix}"
            done = subprocess.run([self.root / "scripts/container", "--context", context],
                                  cwd=self.root, capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn(said, (context / "Containerfile").read_text())
            self.assertEqual(len(list(context.glob("*.whl"))), 1)


class ThisRepository(unittest.TestCase):
    def test_its_versions_agree(self):
        self.assertEqual(release.other_versions(release.project_version()), [])

    def test_the_list_of_software_has_every_pinned_wheel_and_crate(self):
        for file in ("libtorch.txt", "cuda.txt", "tools.txt"):
            text = (ROOT / "scripts/deps" / file).read_text()
            self.assertEqual(len(notices.pinned(file)), text.count("=="), file)
        lock = (ROOT / "src/Cargo.lock").read_text()
        self.assertEqual(len(notices.crate_sums()), lock.count("\nchecksum = "))
        name, version = next(iter(notices.crate_sums()))
        crate = {"name": name, "version": version, "license": "MIT/Apache-2.0"}
        with unittest.mock.patch.multiple(notices, crates=lambda: [crate],
                                          debian_version=lambda package: "1:2.3+x"):
            found = {one["purl"]: one for one in notices.sbom()["components"]}
        self.assertEqual(found[f"pkg:cargo/{name}@{version}"]["licenses"],
                         [{"expression": "MIT OR Apache-2.0"}])
        self.assertIn("pkg:deb/debian/libtbb-dev@1%3A2.3%2Bx", found)
        self.assertEqual(found["pkg:pypi/torch@2.11.0"]["scope"], "optional")
        self.assertEqual(found["pkg:pypi/cmake@3.31.10"]["scope"], "excluded")


class WheelCheck(unittest.TestCase):
    def check(self, tag, *words, file="/usr/bin/env", written=None):
        """A wheel whose program is a file of the system, which links libc alone."""
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / f"longshore-1.2.3-2.11torch-py3-none-{tag}.whl"
            with zipfile.ZipFile(path, "w") as archive:
                archive.write(file, "longshore/bin/longshore")
                archive.writestr("longshore-1.2.3.dist-info/WHEEL",
                                 f"Wheel-Version: 1.0\nTag: py3-none-{written or tag}\nBuild: x\n")
            return subprocess.run([ROOT / "scripts/wheel", "--check", path, *words],
                                  capture_output=True, text=True, check=False)

    def test_a_wheel_is_what_its_tag_says(self):
        asked = wheel.symbol_versions("/usr/bin/env")["GLIBC"]
        right = self.check("manylinux_2_41_x86_64", "--glibc", "2.41")
        self.assertEqual(right.returncode, 0, right.stderr)
        old = self.check("manylinux_2_17_x86_64")
        self.assertEqual(old.returncode, 1)
        self.assertIn(f"asks for GLIBC_2.{asked[1]}; the tag allows at most 2.17", old.stderr)
        self.assertIn("newer than 2.36", self.check("manylinux_2_39_x86_64").stderr)
        self.assertIn("no tag of a manylinux level", self.check("linux_x86_64").stderr)
        other = self.check("manylinux_2_41_x86_64", "--glibc", "2.41",
                           written="manylinux_2_36_x86_64")
        self.assertIn("another tag than the file's name", other.stderr)

    def test_every_library_is_in_the_wheel_or_of_the_system_or_of_torch(self):
        done = self.check("manylinux_2_41_x86_64", "--glibc", "2.41", file="/usr/bin/git")
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, r"longshore/bin/longshore needs lib\S+, which is neither")


if __name__ == "__main__":
    unittest.main()
