"""Command lines of the program: paths, options and keys of the run file as its arguments, and what
it printed."""
from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Union

from longshore import _program
from longshore._errors import error_of

Path = Union[str, "os.PathLike[str]"]
Value = Union[bool, int, float, str, "os.PathLike[str]", Sequence[Any], Mapping[str, Any]]


def command_line(words: Sequence[str | bytes]) -> list[str | bytes]:
    """The program with these arguments; LibTorchError where it could not start."""
    return [*_program.program(), *words]


def run_file_words(run_files: Sequence[Path],
                   overrides: Mapping[str, Value] | None) -> list[bytes]:
    """The arguments of a command that reads run files. ValueError if none is named."""
    if not run_files:
        raise ValueError("name a run file, or the directory of a run")
    return [*map(os.fsencode, run_files), *key_words(overrides)]


def key_words(overrides: Mapping[str, Value] | None) -> list[bytes]:
    """Keys of the run file as arguments: {"train.steps": 3} is --train.steps=3."""
    words = []
    for key, value in (overrides or {}).items():
        if "." not in key:
            raise ValueError(f"{key!r} is no key of the run file; a key has its section, as "
                             "train.steps")
        words.append(_utf8(f"--{key}={toml(value)}"))
    return words


def option(name: str, value: Path | float | None) -> list[bytes]:
    """An option with its value; nothing for None, which leaves the program's default."""
    if value is None:
        return []
    text = os.fsencode(value) if isinstance(value, os.PathLike) else _utf8(str(value))
    # The program would take the next argument as the value of "--name=".
    return [name.encode() + b"=" + text] if text else [name.encode(), b""]


def flag(name: str, given: bool) -> list[bytes]:
    """An option without a value, where it is given."""
    return [name.encode()] if given else []


def listed(values: Path | Sequence[Path]) -> list[Path]:
    """A list of one or several paths or texts."""
    return [values] if isinstance(values, (str, os.PathLike)) else list(values)


def output_of(words: Sequence[str | bytes], accepted: Collection[int] = (0,),
              may_be_empty: bool = False) -> str:
    """Runs a command to its end and returns its standard output. Its warnings go to sys.stderr.

    LongshoreError for an exit code that is not accepted, or if there is no output and one was
    expected.
    """
    done = subprocess.run(command_line([*words, "--quiet"]), env=_program.environment(),
                          stdin=subprocess.DEVNULL, capture_output=True, check=False)
    output, said = (text.decode("utf-8", "replace") for text in (done.stdout, done.stderr))
    exit_code = exit_code_of(done.returncode)
    if exit_code not in accepted or not (may_be_empty or output.strip()):
        raise error_of(exit_code, said)
    if exit_code == 0:
        say(said)
    return output


def exit_code_of(returncode: int) -> int:
    """As a shell has it: 128 + N where signal N ended the program."""
    return returncode if returncode >= 0 else 128 - returncode


def say(text: str) -> None:
    """Prints to sys.stderr, which is also what a notebook shows."""
    if not text or sys.stderr is None:
        return
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except (OSError, ValueError):
        pass  # a closed stream must not end what the caller waits for


def toml(value: Value) -> str:
    """A value as TOML. TypeError for what TOML does not have, as None."""
    if isinstance(value, os.PathLike):
        value = os.fsdecode(value)
    if isinstance(value, str):
        # JSON's escapes are TOML's, but for the character 127.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{toml(str(key))} = {toml(one)}"
                               for key, one in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(toml, value)) + "]"
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    if isinstance(value, (bool, int, float)):
        return json.dumps(value)
    raise TypeError(f"{value!r} is a {type(value).__name__}, which no key of the run file takes")


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
