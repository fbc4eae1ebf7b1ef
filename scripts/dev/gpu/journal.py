"""The results of a check: lines in a journal that is only added to, a page and a summary made from
it, and one archive of all that was found. A check that is killed at any moment leaves whole
files."""
import io
import json
import os
import re
import shutil
import tarfile
import threading
import time

MOST_ARCHIVE_BYTES = 14 << 20
KEPT_LOG_BYTES = 1 << 20  # of a file, where all together are too many
REFRESH_SECONDS = 10


def slug(gpu):
    if gpu is None:
        return "no-gpu"
    return re.sub(r"[^a-z0-9]+", "-", gpu["name"].lower()).strip("-")


def replace(path, data):
    temporary = path.with_suffix(path.suffix + ".new")
    temporary.write_bytes(data)
    temporary.replace(path)


class Journal:
    """Lines are {"kind": "machine" | "test" | "part", ...}. Any thread adds them. With `copy_to`
    the archive is also copied to that folder whenever it was made."""

    def __init__(self, directory, resume, machine, copy_to=None):
        self.directory, self.copy_to = directory, copy_to
        self.lock = threading.RLock()
        directory.mkdir(parents=True, exist_ok=True)
        self.path = directory / "journal.jsonl"
        self.archived = 0.0
        if self.path.exists() and not resume:
            self.set_aside()
        self.logs = directory / "logs"
        self.logs.mkdir(exist_ok=True)
        self.lines = read_lines(self.path)
        first = next((line for line in self.lines if line["kind"] == "machine"), None)
        if first is not None and first["machine"]["build"] != machine["build"]:
            raise SystemExit(f"gpu_check: {self.path} is of another build; give another --out, or "
                             "leave --resume out")
        # After a torn line a new one begins.
        torn = self.path.exists() and not self.path.read_bytes().endswith(b"\n")
        self.file = open(self.path, "ab", buffering=0)
        if torn and self.path.stat().st_size > 0:
            self.file.write(b"\n")
        if first is None:
            self.add({"kind": "machine", "machine": machine, "time": time.strftime("%F %T")})

    def set_aside(self):
        number = 1
        while (self.directory / f"before-{number}").exists():
            number += 1
        older = self.directory / f"before-{number}"
        older.mkdir()
        for path in list(self.directory.iterdir()):
            if not path.name.startswith("before-"):
                path.rename(older / path.name)

    def add(self, line):
        with self.lock:
            self.lines.append(line)
            self.file.write(json.dumps(line).encode() + b"\n")
            os.fsync(self.file.fileno())

    def test(self, part, name, outcome, seconds):
        self.add({"kind": "test", "part": part, "test": name, "outcome": outcome,
                  "seconds": round(seconds, 2)})
        hasty = outcome not in ("started", "passed", "skipped")
        if hasty or time.monotonic() - self.archived > REFRESH_SECONDS:
            self.publish()

    def part(self, name, outcome):
        self.add({"kind": "part", "part": name, **outcome})
        self.publish()

    def parts(self):
        """The last outcome of each part, in the order of their first ones."""
        return {line["part"]: line for line in self.lines if line["kind"] == "part"}

    def is_done(self, part):
        return self.parts().get(part, {"status": "stopped"})["status"] in ("passed", "failed")

    def tests(self, part):
        """test -> outcome; one that was begun twice and never ended took the check with it."""
        outcomes, begun = {}, {}
        for line in self.lines:
            if line["kind"] != "test" or line["part"] != part:
                continue
            if line["outcome"] == "started":
                begun[line["test"]] = begun.get(line["test"], 0) + 1
            else:
                outcomes[line["test"]] = line["outcome"]
        for test, times in begun.items():
            if test not in outcomes and times > 1:
                outcomes[test] = "ended the check twice"
        return outcomes

    def cut_off(self):
        """Tests that were begun and have no outcome."""
        found = {}
        for line in self.lines:
            if line["kind"] == "test":
                found[(line["part"], line["test"])] = line["outcome"]
        return [f"{part}: {test}" for (part, test), outcome in found.items()
                if outcome == "started"]

    def publish(self):
        with self.lock:
            replace(self.directory / "summary.json", summary(self).encode())
            replace(self.directory / "summary.md", page(self).encode())
            whole = self.directory / "archive.tar.gz"
            replace(whole, archive(self.directory))
            if self.copy_to is not None:
                self.copy_to.mkdir(parents=True, exist_ok=True)
                shutil.copy(whole, self.copy_to / "archive.tar.gz.new")
                (self.copy_to / "archive.tar.gz.new").replace(self.copy_to / "archive.tar.gz")
            self.archived = time.monotonic()

    def keep_publishing(self):
        """Every few seconds, in a thread that ends with the program: a part that is measured tells
        nothing for minutes."""
        def work():
            while True:
                time.sleep(REFRESH_SECONDS)
                if time.monotonic() - self.archived < REFRESH_SECONDS:
                    continue
                try:
                    self.publish()
                except OSError as error:  # a full disk, for instance; parts go on
                    print(f"the archive was not made: {error}", flush=True)
        threading.Thread(target=work, daemon=True).start()


def read_lines(path):
    if not path.exists():
        return []
    lines = []
    for text in path.read_bytes().split(b"\n"):
        try:
            line = json.loads(text)
        except ValueError:
            continue  # torn: the check was killed in the middle of it
        if isinstance(line, dict) and "kind" in line:
            lines.append(line)
    return lines


def files_of(directory):
    return [path for path in sorted(directory.rglob("*"))
            if path.is_file() and path.suffix != ".new" and path.name != "archive.tar.gz"
            and not path.relative_to(directory).parts[0].startswith("before-")]


def pack(directory, most_of_a_file):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz", compresslevel=6) as tar:
        for path in files_of(directory):
            try:
                data = path.read_bytes()
            except FileNotFoundError:
                continue
            if len(data) > most_of_a_file and path.parent != directory:
                half = most_of_a_file // 2
                data = data[:half] + b"\n... cut ...\n" + data[-half:]
            info = tarfile.TarInfo(str(path.relative_to(directory)))
            info.size, info.mtime = len(data), int(time.time())
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def archive(directory):
    most = KEPT_LOG_BYTES * 16
    while True:
        data = pack(directory, most)
        if len(data) < MOST_ARCHIVE_BYTES or most < 1024:
            return data
        most //= 4


def summary(journal):
    return json.dumps({"parts": journal.parts(), "cut_off": journal.cut_off()}, indent=1) + "\n"


def head_of(machine):
    gpu = machine["gpu"]
    lines = [f"# GPU check: {gpu['name'] if gpu else 'no GPU'}", ""]
    if gpu:
        lines.append(f"{gpu['memory_bytes'] / 2**30:.1f} GiB, {gpu['count']} in the machine, "
                     f"driver for CUDA {gpu['driver_cuda']}; ")
    lines.append(f"{machine['cores']} cores, {machine['memory_bytes'] / 2**30:.0f} GiB of memory, "
                 f"{machine['system']}; LibTorch {machine['torch']}; "
                 f"build {machine['build']['commit']}.")
    return lines


def page(journal):
    machine = next(line for line in journal.lines if line["kind"] == "machine")
    lines = head_of(machine["machine"]) + [
        "", f"Begun {machine['time']}.", "", "| part | outcome | seconds | tests | what |",
        "|---|---|---|---|---|"]
    parts = journal.parts()
    for name, part in parts.items():
        lines.append(f"| {name} | {part['status']} | {part.get('seconds', '')} | "
                     f"{part.get('tests', '')} | {part.get('text', '')} |")
    cut_off = journal.cut_off()
    if cut_off:
        lines += ["", "## Begun, no outcome", ""] + [f"- `{test}`" for test in cut_off]
    for name, part in parts.items():
        if part.get("failures"):
            lines += ["", f"## {name}: what failed", ""]
            lines += [f"- `{failure}`" for failure in part["failures"]]
        if part.get("measured"):
            lines += ["", f"## {name}", ""] + table(part["measured"])
    return "\n".join(lines) + "\n"


def table(rows):
    """One table of rows that may differ in their keys."""
    keys = list(dict.fromkeys(key for row in rows for key in row))
    lines = ["| " + " | ".join(keys) + " |", "|" + "---|" * len(keys)]
    for row in rows:
        cells = [row.get(key, "") for key in keys]
        lines.append("| " + " | ".join(f"{cell:.4g}" if isinstance(cell, float) else str(cell)
                                       for cell in cells) + " |")
    return lines
