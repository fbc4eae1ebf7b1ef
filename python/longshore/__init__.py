"""Longshore for Python programs: the commands of the program `longshore`, as functions.

    import longshore

    longshore.init("run.toml", model="models/Qwen3-0.6B", data="train.jsonl")
    if not longshore.plan("run.toml")["fits"]:
        raise SystemExit("too large for this machine")
    with longshore.start("run.toml", overrides={"train.steps": 100}) as run:
        for record in run:
            if record["kind"] == "step":
                print(record["step"], record["loss"])
    print(longshore.generate("run.toml", prompts="Once")[0]["text"])

Each function starts the program as a child process and waits for it; only `start` returns while it
goes on. Nothing is imported but Python's own library, and a run's memory is the child's.

Common arguments: `run_files` are paths of run files, or the directory of a run; a later file
overrides earlier ones key by key. `overrides` are keys of the run file with their values as Python
has them, {"train.steps": 100, "data.train": ["a.jsonl"]}. Relative paths start from the working
directory. Exceptions: LongshoreError, or its class for the exit code, has the program's message;
LibTorchError: the program or its torch is not there. Warnings of the program go to sys.stderr.
"""
from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from longshore._command import (Path, Value, flag, key_words, listed, option, output_of,
                                run_file_words)
from longshore._errors import (CheckpointError, ConfigError, DataError, DistributedError,
                               DoesNotFitError, GpuError, LongshoreError, NonFiniteError,
                               OutOfMemoryError, StoppedError)
from longshore._program import VERSION as __version__
from longshore._program import LibTorchError
from longshore._run import Run, RunResult

__all__ = ["CheckpointError", "ConfigError", "DataError", "DistributedError", "DoesNotFitError",
           "GpuError", "LibTorchError", "LongshoreError", "NonFiniteError", "OutOfMemoryError",
           "Run", "RunResult", "StoppedError", "__version__", "check", "eval", "export",
           "generate", "generate_file", "init", "plan", "presets", "read_metrics", "recipes",
           "start", "train"]


def presets() -> pathlib.Path:
    """The directory of the run files that come with the program."""
    return pathlib.Path(__file__).resolve().parent / "presets"


def recipes() -> pathlib.Path:
    """The directory of run files for common models on common machines: MODEL_MACHINE.toml."""
    return pathlib.Path(__file__).resolve().parent / "recipes"


def init(run_file: Path, *, model: Path | None = None, data: Path | Sequence[Path] = (),
         overrides: Mapping[str, Value] | None = None, goal: str | None = None,
         recipe: str | None = None, adapter: bool = False, machine: Path | None = None,
         convert: Path | None = None, replace: bool = False) -> dict[str, Any]:
    """Writes a run file that fits this machine, and returns what `longshore init --json` prints:
    its "path", "device_bytes", "host_bytes", "checkpoint_bytes", and so on.

    model: its directory, or a hub id in the local cache; data: training files or hub ids.
    goal, recipe, machine: as of `longshore init --help`; adapter: LoRA instead of all parameters.
    convert: a file of Axolotl, LLaMA-Factory or TRL to convert ("not_converted" lists what could
        not be). replace: overwrite an existing file.

    ConfigError where the file exists or an input is missing; DoesNotFitError where nothing fits.
    """
    words = [b"init", os.fsencode(run_file), *option("--model", model)]
    for path in listed(data):
        words += option("--data", path)
    words += [*option("--goal", goal), *option("--recipe", recipe), *option("--machine", machine),
              *option("--from", convert), *flag("--adapter", adapter), *flag("--replace", replace),
              *key_words(overrides), b"--json"]
    return _object(output_of(words))


def check(*run_files: Path, overrides: Mapping[str, Value] | None = None) -> dict[str, Any]:
    """Whether everything that a run reads is there and readable: what `longshore check run --json`
    prints, with "valid", "problems" (each with "exit_code" and "text") and "notes".

    Problems of the run file, the model and the data are not raised, but listed, all at once.
    """
    words = [b"check", b"run", *run_file_words(run_files, overrides), b"--json"]
    return _object(output_of(words, accepted=range(128)))


def plan(*run_files: Path, overrides: Mapping[str, Value] | None = None) -> dict[str, Any]:
    """What `longshore plan --json` prints: bytes on every tier, and whether they fit ("fits").

    LongshoreError where there is no plan: mistakes in the run file, a model that is not there. A
    plan that does not fit is a plan.
    """
    words = [b"plan", *run_file_words(run_files, overrides), b"--json"]
    return _object(output_of(words, accepted=(0, 3)))


def start(*run_files: Path, overrides: Mapping[str, Value] | None = None, ranks: int = 1,
          quiet: bool = False) -> Run:
    """Starts `longshore train`, or resumes its run, and returns at once. The Run is an iterator
    over the run's records and a context manager that stops it; `Run.result` waits for its end.

    ranks: processes of this machine, one for each GPU (`longshore launch`).
    quiet: print only warnings and errors to sys.stderr.

    ConfigError for mistakes in the run file; other errors are raised by the Run.
    """
    quietly = flag("--quiet", quiet)
    words = [b"train", *run_file_words(run_files, overrides), *quietly]
    if ranks != 1:
        words = [b"launch", *option("--nproc", ranks), *quietly, b"--", *words]
    return Run(words, _run_directory(run_files, overrides))


def train(*run_files: Path, overrides: Mapping[str, Value] | None = None, ranks: int = 1,
          quiet: bool = False, check: bool = True) -> RunResult:
    """Runs `longshore train` to its end, or resumes its run, and returns how it ended.

    ranks, quiet: as of `start`, which gives the records of a run while it goes on.

    LongshoreError for any exit code but 0, unless `check` is False. Ctrl-C stops the run, which
    saves, and raises KeyboardInterrupt.
    """
    with start(*run_files, overrides=overrides, ranks=ranks, quiet=quiet) as run:
        return run.result(check)


def eval(*run_files: Path, weights: Path = "auto",
         overrides: Mapping[str, Value] | None = None) -> dict[str, Any]:
    """The loss on data.eval and eval.sets: what `longshore eval --json` prints, with "loss" (mean
    over trained tokens, in nats, or over pairs), "tokens", "seconds", "model", "step" and "sets".

    weights: "auto" (the newest valid checkpoint, else the model), "model", or the directory of a
        checkpoint, a run, a model or an adapter.

    LongshoreError, such as ConfigError where there is no data to evaluate.
    """
    words = [b"eval", *run_file_words(run_files, overrides), *option("--from", weights), b"--json"]
    return _object(output_of(words))


def generate(*run_files: Path, prompts: str | Sequence[str], chat: bool = False,
             system: str | None = None, weights: Path = "auto", max_new_tokens: int | None = None,
             temperature: float | None = None, top_k: int | None = None,
             top_p: float | None = None, min_p: float | None = None,
             stop: str | Sequence[str] = (), samples: int | None = None, logprobs: bool = False,
             sequences: int | None = None,
             overrides: Mapping[str, Value] | None = None) -> list[dict[str, Any]]:
    """Continues each prompt, or answers it by the chat template: what `longshore generate --json`
    prints for each answer, with "prompt", "sample", "text", "new_tokens", "finish" ("stop",
    "length": it was cut after max_new_tokens, "stop_string"), "ended", "model" and "step".

    chat: each prompt begins a conversation; system: its system message.
    weights: as of `eval`. Sampling is the program's where it is None: 64 new tokens, greedy. The
        seed is run.seed.
    stop: texts before which an answer ends. samples: answers to each prompt, one after another.
    logprobs: also "logprobs", with the ids of the answer's "tokens" and their "values".
    sequences: most answers that grow at the same time; they are the same with any number.

    LongshoreError, such as ConfigError for a prompt that is longer than data.max_tokens.
    """
    texts = [prompts] if isinstance(prompts, str) else list(prompts)
    if not texts:
        raise ValueError("give a prompt")
    words = [b"generate", *run_file_words(run_files, overrides), *flag("--chat", chat),
             *option("--system", system), *option("--from", weights),
             *_sampling(max_new_tokens, temperature, top_k, top_p, min_p, stop, samples, logprobs,
                        sequences), b"--json"]
    for text in texts:
        words += option("--prompt", text)
    return [_object(line) for line in output_of(words).split("\n") if line]


def generate_file(*run_files: Path, prompts: Path, answers: Path, chat: bool = False,
                  system: str | None = None, weights: Path = "auto",
                  max_new_tokens: int | None = None, temperature: float | None = None,
                  top_k: int | None = None, top_p: float | None = None,
                  min_p: float | None = None, stop: str | Sequence[str] = (),
                  samples: int | None = None, logprobs: bool = False,
                  sequences: int | None = None,
                  overrides: Mapping[str, Value] | None = None) -> None:
    """Answers the rows of the file `prompts`, {"prompt": TEXT} or with chat {"messages": [...]},
    and writes a line for each answer to the file `answers`, in order, as `longshore generate --in
    --out` does. The same call goes on where an interrupted one stopped.

    The other arguments are those of `generate`.

    LongshoreError: DataError for rows that cannot be answered, ConfigError where `answers` has
    answers of other settings.
    """
    words = [b"generate", *run_file_words(run_files, overrides), *option("--in", prompts),
             *option("--out", answers), *flag("--chat", chat), *option("--system", system),
             *option("--from", weights),
             *_sampling(max_new_tokens, temperature, top_k, top_p, min_p, stop, samples, logprobs,
                        sequences)]
    output_of(words, may_be_empty=True)


def _sampling(max_new_tokens: int | None, temperature: float | None, top_k: int | None,
              top_p: float | None, min_p: float | None, stop: str | Sequence[str],
              samples: int | None, logprobs: bool, sequences: int | None) -> list[bytes]:
    words = [*option("--max-new-tokens", max_new_tokens), *option("--temperature", temperature),
             *option("--top-k", top_k), *option("--top-p", top_p), *option("--min-p", min_p),
             *option("--samples", samples), *flag("--logprobs", logprobs),
             *option("--sequences", sequences)]
    for text in [stop] if isinstance(stop, str) else stop:
        words += option("--stop", text)
    return words


def export(*run_files: Path, to: Path | None = None, weights: Path = "auto", merged: bool = False,
           fp32: bool = False, format: str | None = None, allow_nonfinite: bool = False,
           overrides: Mapping[str, Value] | None = None) -> dict[str, Any]:
    """Writes a Hugging Face directory: what `longshore export --json` prints, with "directory",
    "tensors", "bytes", "from" and "step", and "packed" where matrices were packed again.

    to: the directory; default: <run.dir>/hf. weights: as of `eval`.
    merged: with adapters, the model with their products added. fp32: the master weights.
    format: "bf16", or "published" to pack matrices as the model's own files do.
    allow_nonfinite: also weights that are NaN or infinite.

    LongshoreError, such as CheckpointError where the run has no checkpoint.
    """
    words = [b"export", *run_file_words(run_files, overrides), *option("--to", to),
             *option("--from", weights), *flag("--merged", merged), *flag("--fp32", fp32),
             *option("--format", format), *flag("--allow-nonfinite", allow_nonfinite), b"--json"]
    return _object(output_of(words))


def read_metrics(run_directory: Path, kind: str | None = None) -> list[dict[str, Any]]:
    """The lines of a run's metrics.jsonl, or those of one kind ("step", "eval", ...). A last line
    that is still being written, or was torn by a kill, is left out. OSError without the file."""
    lines: list[dict[str, Any]] = []
    with open(pathlib.Path(run_directory) / "metrics.jsonl", "rb") as file:
        for text in file:
            if not text.endswith(b"\n"):
                break
            line = json.loads(text)
            if kind is None or line.get("kind") == kind:
                lines.append(line)
    return lines


def _object(text: str) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(text)
    return value


def _run_directory(run_files: Sequence[Path],
                   overrides: Mapping[str, Value] | None) -> pathlib.Path:
    resolved = output_of([b"config", b"dump", *run_file_words(run_files, overrides)])
    section = ""
    for line in resolved.split("\n"):
        if line.startswith("["):
            section = line
        elif section == "[run]" and line.startswith("dir = ") and line != 'dir = ""':
            return pathlib.Path(json.loads(line[len("dir = "):]))
    raise ConfigError(2, "run.dir is not set: give overrides={\"run.dir\": DIRECTORY}")
