"""The exceptions of the package: one for each exit code of the program that a caller may handle."""
from __future__ import annotations

import signal

# Signals after which a run saves and ends; its exit code is 128 + signal.
STOP_CODES = frozenset(128 + one for one in
                       (signal.SIGHUP, signal.SIGINT, signal.SIGUSR1, signal.SIGTERM))


class LongshoreError(Exception):
    """The program ended with a code other than 0. `str()` has its errors, one problem a line.

    exit_code: that of the program, as its README lists them; 128 + N where signal N ended it.
    text: the last 64 KiB that the program printed to standard error.
    """

    def __init__(self, exit_code: int, message: str, text: str = "") -> None:
        super().__init__(exit_code, message, text)  # all of them, so that it can be pickled
        self.exit_code = exit_code
        self.message = message
        self.text = text

    def __str__(self) -> str:
        return self.message


class ConfigError(LongshoreError):
    """Exit code 2: the run file or an argument is wrong, or the model's configuration is."""


class DoesNotFitError(LongshoreError):
    """Exit code 3: the plan does not fit the memory, or the files do not fit the disk."""


class OutOfMemoryError(LongshoreError):
    """Exit code 4: memory of the device or the host ran out during the run."""


class DataError(LongshoreError):
    """Exit code 5: training data or a file of the model is missing or damaged."""


class CheckpointError(LongshoreError):
    """Exit code 6: a checkpoint is missing, damaged, or of another run."""


class NonFiniteError(LongshoreError):
    """Exit code 7: losses, gradients or scores are NaN or infinite."""


class DistributedError(LongshoreError):
    """Exit code 8: another rank died, hangs, or differs."""


class GpuError(LongshoreError):
    """Exit code 10: the GPU computes other results than the CPU."""


class StoppedError(LongshoreError):
    """Exit code 128 + N: signal N (SIGHUP, SIGINT, SIGUSR1, SIGTERM) ended the program. A run saves
    before it ends; the same call resumes it."""


_KINDS = {2: ConfigError, 3: DoesNotFitError, 4: OutOfMemoryError, 5: DataError,
          6: CheckpointError, 7: NonFiniteError, 8: DistributedError, 10: GpuError}


def error_of(exit_code: int, text: str, reason: str = "") -> LongshoreError:
    """The exception of an exit code. `text` is what the program printed to standard error;
    `reason` is the message where that has no error."""
    kind = StoppedError if exit_code in STOP_CODES else _KINDS.get(exit_code, LongshoreError)
    message = _errors_in(text) or reason or text.strip() or _end_of(exit_code)
    return kind(exit_code, message, text)


def _errors_in(text: str) -> str:
    """Everything from the first error on, without warnings and without the word "error"."""
    lines = text.splitlines()
    while lines and not lines[0].startswith("error: "):
        del lines[0]
    return "\n".join(line[len("error: "):] if line.startswith("error: ") else line
                     for line in lines if not line.startswith("warning: ")).strip()


def _end_of(exit_code: int) -> str:
    try:
        return f"longshore was ended by {signal.Signals(exit_code - 128).name}"
    except ValueError:
        return f"longshore ended with exit code {exit_code}"
