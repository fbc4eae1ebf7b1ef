"""Longshore for Python programs: the same program as the command `longshore`, as a child process.

    import longshore
    print(longshore.plan("run.toml")["device"]["total_bytes"])
    run = longshore.train("run.toml", overrides={"train.steps": 100})
    losses = [line["loss"] for line in longshore.read_metrics(run.directory)
              if line["kind"] == "step"]

Nothing is imported but Python's own library; a run's memory is the child's.
"""
from __future__ import annotations

import json
import os
import pathlib
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Union

from longshore._program import VERSION as __version__
from longshore._program import LibTorchError, environment, program

__all__ = ["LibTorchError", "LongshoreError", "Run", "__version__", "plan", "presets",
           "read_metrics", "recipes", "train"]

Path = Union[str, "os.PathLike[str]"]
Value = Union[bool, int, float, str, Sequence[Any], Mapping[str, Any]]


class LongshoreError(Exception):
    """The program ended with another code than 0; its README lists the codes."""

    def __init__(self, exit_code: int, message: str) -> None:
        super().__init__(message.strip() or f"longshore ended with code {exit_code}")
        self.exit_code = exit_code


@dataclass(frozen=True)
class Run:
    """How a run ended. 0: done; 128 + N: saved and stopped by signal N."""

    exit_code: int
    directory: pathlib.Path
    status: dict[str, Any]  # of run.json; empty where the start was refused, which writes nothing


def presets() -> pathlib.Path:
    """The directory of the run files that come with the program."""
    return pathlib.Path(__file__).resolve().parent / "presets"


def recipes() -> pathlib.Path:
    """The directory of run files for common models on common machines: MODEL_MACHINE.toml."""
    return pathlib.Path(__file__).resolve().parent / "recipes"


def plan(*run_files: Path, overrides: Mapping[str, Value] | None = None) -> dict[str, Any]:
    """What `longshore plan --json` says: bytes on every tier, and whether they fit ("fits").

    LongshoreError where there is no plan: mistakes in the run file, a model that is not there.
    """
    done = _run(["plan", "--json"], run_files, overrides)
    # A plan that does not fit is a plan too.
    if done.returncode not in (0, 3) or not done.stdout.strip():
        raise LongshoreError(done.returncode, done.stderr)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def train(*run_files: Path, overrides: Mapping[str, Value] | None = None, ranks: int = 1,
          check: bool = True) -> Run:
    """Runs `longshore train` to its end; what it prints goes where this process prints.

    Ctrl-C reaches the run, which saves before it ends. With `ranks`, as many processes of this
    machine (`longshore launch`). LongshoreError for any code but 0, unless `check` is False.
    """
    directory = pathlib.Path(_run_directory(run_files, overrides))
    before = _read_object(directory / "run.json")
    command = ["train"] if ranks == 1 else ["launch", "--nproc", str(ranks), "--", "train"]
    child = subprocess.Popen([*program(), *command, *_arguments(run_files, overrides)],
                             env=environment())
    exit_code: int | None = None
    while exit_code is None:
        try:
            exit_code = child.wait()
        except KeyboardInterrupt:
            pass  # the child got it too, and saves
    if exit_code < 0:
        exit_code = 128 - exit_code
    status = _read_object(directory / "run.json")
    run = Run(exit_code, directory, {} if status == before else status)
    if check and exit_code != 0:
        raise LongshoreError(exit_code, str(run.status.get("message", "")))
    return run


def read_metrics(run_directory: Path, kind: str | None = None) -> list[dict[str, Any]]:
    """The lines of a run's metrics.jsonl, or those of one kind ("step", "eval", ...). A last line
    that is still being written, or was torn by a kill, is left out."""
    lines: list[dict[str, Any]] = []
    with open(pathlib.Path(run_directory) / "metrics.jsonl", "rb") as file:
        for text in file:
            if not text.endswith(b"\n"):
                break
            line = json.loads(text)
            if kind is None or line.get("kind") == kind:
                lines.append(line)
    return lines


def _arguments(run_files: Sequence[Path], overrides: Mapping[str, Value] | None) -> list[str]:
    if not run_files:
        raise ValueError("name a run file")
    return [*(os.fspath(file) for file in run_files),
            *(f"--{key}={_toml(value)}" for key, value in (overrides or {}).items())]


def _run(command: Sequence[str], run_files: Sequence[Path],
         overrides: Mapping[str, Value] | None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*program(), *command, *_arguments(run_files, overrides)],
                          env=environment(), capture_output=True, text=True, check=False)


def _run_directory(run_files: Sequence[Path], overrides: Mapping[str, Value] | None) -> str:
    done = _run(["config", "dump"], run_files, overrides)
    if done.returncode != 0:
        raise LongshoreError(done.returncode, done.stderr)
    section = ""
    for line in done.stdout.splitlines():
        if line.startswith("["):
            section = line
        elif section == "[run]" and line.startswith("dir = "):
            return str(json.loads(line.removeprefix("dir = ")))
    raise LongshoreError(2, "run.dir is not set")


def _read_object(path: pathlib.Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _toml(value: Value) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(key)} = {_toml(one)}"
                               for key, one in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_toml(one) for one in value) + "]"
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    return json.dumps(value)
