"""A run as a child process: its records while they are written, its messages, its end."""
from __future__ import annotations

import codecs
import collections
import json
import os
import pathlib
import signal
import subprocess
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import IO, Any

from longshore import _program
from longshore._command import command_line, exit_code_of, say
from longshore._errors import STOP_CODES, error_of

_KEPT_BYTES = 65536      # of the messages, for exceptions
_LOOK_SECONDS = 0.1      # between looks at metrics.jsonl
_PATIENCE_SECONDS = 5.0  # for the last messages, after the end of the process


@dataclass(frozen=True)
class RunResult:
    """How a run ended.

    exit_code: 0 where it is done; 128 + N where it saved and was stopped by signal N.
    directory: run.dir, with metrics.jsonl, checkpoints/ and, when the run is done, hf/.
    status: the object of run.json ("status", "step", "saved_step", "message", ...); empty where
        the start was refused, which writes nothing.
    """

    exit_code: int
    directory: pathlib.Path
    status: dict[str, Any]


class Run:
    """A run of `longshore train` in a child process; `longshore.start` makes it.

    It is an iterator over the records that this process writes to metrics.jsonl, from "start" on,
    as dicts with "kind" ("start", "step", "eval", "checkpoint", "commit", "event", "end"), "time"
    in seconds since 1970 and the keys of the kind (`longshore config schema --metrics`). A loop
    ends with the run, and raises LongshoreError if the run failed.

    As a context manager it stops the run at the end of the block. A run that is no longer referred
    to, or still goes on when the interpreter ends, is stopped as `stop` does. One thread.
    """

    def __init__(self, words: Sequence[str | bytes], directory: pathlib.Path) -> None:
        self.directory = directory
        self._status_before = _read_object(directory / "run.json")
        self._records = _Records(directory / "metrics.jsonl")
        self._waiting: collections.deque[dict[str, Any]] = collections.deque()
        self._stopping = False
        # The run has the process group of this process, so the terminal's Ctrl-C, a closed terminal
        # and a signal to the group reach it, too.
        self._child = subprocess.Popen(command_line(words), env=_program.environment(),
                                       stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                       stderr=subprocess.STDOUT, bufsize=0)
        self._finalizer = weakref.finalize(self, _stop, self._child)
        assert self._child.stdout is not None
        self._messages = _Messages(self._child.stdout)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return self

    def __next__(self) -> dict[str, Any]:
        while not self._waiting:
            # Asked before reading, so that the last lines are read.
            ended = self._child.poll() is not None
            self._waiting.extend(self._records.read())
            if self._waiting:
                break
            if ended:
                self.result()
                raise StopIteration
            try:
                time.sleep(_LOOK_SECONDS)
            except KeyboardInterrupt:
                self.stop()
                raise
        return self._waiting.popleft()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 traceback: TracebackType | None) -> None:
        self.stop()

    def stop(self) -> None:
        """Sends SIGTERM and waits: the run finishes its step, saves and ends. The same call of
        `start` or `train` resumes it. Does nothing where the run has ended.

        Ctrl-C while this waits goes to the run as SIGINT; its second SIGINT ends it without a save.
        """
        if self._child.poll() is None:
            self._stopping = True
        _stop(self._child)

    def result(self, check: bool = True) -> RunResult:
        """Waits for the end of the run and returns how it ended; does not stop it.

        LongshoreError for an exit code other than 0, unless `check` is False or `stop` asked for
        it. Ctrl-C stops the run, which saves, and raises KeyboardInterrupt.
        """
        try:
            self._child.wait()
        except KeyboardInterrupt:
            self.stop()
            raise
        exit_code = exit_code_of(self._child.returncode)
        status = _read_object(self.directory / "run.json")
        result = RunResult(exit_code, self.directory,
                           {} if status == self._status_before else status)
        as_asked = exit_code == 0 or (self._stopping and exit_code in STOP_CODES)
        if check and not as_asked:
            raise error_of(exit_code, self._messages.text(),
                           str(result.status.get("message", "")))
        return result


def _stop(child: subprocess.Popen[bytes]) -> None:
    """Ends a run with a save, and waits for it, however often Ctrl-C is pressed."""
    interrupt: KeyboardInterrupt | None = None
    if child.poll() is None:
        # Not SIGINT: a run that got that from the terminal already would end without a save.
        child.terminate()
    while child.returncode is None:
        try:
            child.wait()
        except KeyboardInterrupt as error:
            interrupt = error
            child.send_signal(signal.SIGINT)
    if interrupt is not None:
        raise interrupt


class _Messages:
    """Passes on to sys.stderr what a process prints, so that its pipe never fills, and keeps the
    end of it. A daemon thread, because processes that a run leaves behind keep the pipe open."""

    def __init__(self, pipe: IO[bytes]) -> None:
        self._kept = b""
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._read, args=(pipe,), daemon=True)
        self._thread.start()

    def _read(self, pipe: IO[bytes]) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        with pipe:
            while True:
                part = os.read(pipe.fileno(), 65536)
                if not part:
                    return
                with self._lock:
                    self._kept = (self._kept + part)[-_KEPT_BYTES:]
                say(decoder.decode(part))

    def text(self) -> str:
        """What a process that has ended printed."""
        self._thread.join(_PATIENCE_SECONDS)
        with self._lock:
            return self._kept.decode("utf-8", "replace")


class _Records:
    """The records of one process in metrics.jsonl, from its "start" on. A process that resumes cuts
    the file after the step that it resumes from, and one that starts over empties it."""

    def __init__(self, path: pathlib.Path) -> None:
        self._path = path
        self._offset: int | None = None  # behind the last record; None: no start was found yet
        self._known: tuple[int, int] | None = None  # the file when it was searched last
        self._earlier: set[bytes] = set()  # lines of the starts of earlier processes
        try:
            with open(path, "rb") as file:
                self._earlier.update(line for line in file if _is_start(line))
        except FileNotFoundError:
            pass

    def read(self) -> list[dict[str, Any]]:
        """The records that are new since the last call."""
        try:
            with open(self._path, "rb") as file:
                if self._offset is None:
                    self._offset = self._search(file)
                if self._offset is None:
                    return []
                return self._read_from(file, self._offset)
        except FileNotFoundError:
            return []

    def _search(self, file: IO[bytes]) -> int | None:
        """Where the start of this process begins; None if it is not there yet."""
        facts = os.fstat(file.fileno())
        known = (facts.st_mtime_ns, facts.st_size)
        if known == self._known:
            return None
        self._known = known
        offset = 0
        for line in file:
            if _is_start(line) and line not in self._earlier:
                return offset
            offset += len(line)
        return None

    def _read_from(self, file: IO[bytes], offset: int) -> list[dict[str, Any]]:
        found = []
        file.seek(offset)
        for line in file:
            if not line.endswith(b"\n"):
                break  # still being written
            offset += len(line)
            record = _object_of(line)
            if record:
                found.append(record)
        self._offset = offset
        return found


def _is_start(line: bytes) -> bool:
    return (line.endswith(b"\n") and b'"start"' in line
            and _object_of(line).get("kind") == "start")


def _object_of(text: bytes) -> dict[str, Any]:
    """The object of a JSON text; empty for every other text."""
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _read_object(path: pathlib.Path) -> dict[str, Any]:
    try:
        return _object_of(path.read_bytes())
    except OSError:
        return {}
