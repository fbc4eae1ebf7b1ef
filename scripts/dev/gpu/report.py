"""The results of one GPU's check: a JSON file that grows part by part, and a page made from it."""
import json
import re


def slug(gpu):
    if gpu is None:
        return "no-gpu"
    return re.sub(r"[^a-z0-9]+", "-", gpu["name"].lower()).strip("-")


class Results:
    def __init__(self, directory, date, gpu, machine):
        directory.mkdir(parents=True, exist_ok=True)
        # A check that was cut off yesterday is gone on with today, by the same build.
        older = [path for path in sorted(directory.glob(f"*-{slug(gpu)}.json"))
                 if json.loads(path.read_text())["machine"]["build"] == machine["build"]]
        self.path = older[-1] if older else directory / f"{date}-{slug(gpu)}.json"
        if older:
            self.data = json.loads(self.path.read_text())
        else:
            self.data = {"date": date, "machine": machine, "parts": {}}

    def is_done(self, name):
        return self.status(name) not in ("missing", "stopped")

    def status(self, name):
        return self.data["parts"].get(name, {"status": "missing"})["status"]

    def failed(self):
        return [name for name, part in self.data["parts"].items()
                if part["status"] in ("failed", "stopped")]

    def summary(self):
        return {name: part["status"] for name, part in self.data["parts"].items()}

    def add(self, name, outcome):
        self.data["parts"][name] = outcome
        for path, text in ((self.path, json.dumps(self.data, indent=1) + "\n"),
                           (self.path.with_suffix(".md"), self.page())):
            temporary = path.with_suffix(path.suffix + ".new")
            temporary.write_text(text)
            temporary.replace(path)  # a check that is cut off leaves whole files

    def page(self):
        machine = self.data["machine"]
        gpu = machine["gpu"]
        lines = [f"# GPU check, {self.data['date']}: {gpu['name'] if gpu else 'no GPU'}", ""]
        if gpu:
            lines.append(f"{gpu['memory_bytes'] / 2**30:.1f} GiB, {gpu['count']} in the machine, "
                         f"driver for CUDA {gpu['driver_cuda']}; ")
        lines += [f"{machine['cores']} cores, {machine['memory_bytes'] / 2**30:.0f} GiB of memory, "
                  f"{machine['system']}; LibTorch {machine['torch']}; "
                  f"build {machine['build']['commit']}.", "",
                  "| part | outcome | seconds | tests | what |", "|---|---|---|---|---|"]
        for name, part in self.data["parts"].items():
            lines.append(f"| {name} | {part['status']} | {part['seconds']} | "
                         f"{part.get('tests', '')} | {part['text']} |")
        for name, part in self.data["parts"].items():
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
