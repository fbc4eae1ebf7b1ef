"""Where the program and its LibTorch are. The command `longshore` is `main`."""
from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import pathlib
import sys

TORCH = "2.11.0"
VERSION = "0.0.0"  # scripts/wheel writes the version of the build here
CUDA = True  # scripts/wheel writes here what the program is built with
HERE = pathlib.Path(__file__).resolve().parent


class LibTorchError(Exception):
    """The program, or the torch that it needs, is not there."""


def _torch_directory() -> pathlib.Path:
    """Where torch is, without importing it."""
    advice = (f"longshore needs torch {TORCH}: pip install torch=={TORCH}, best in an environment "
              "of its own, where no other program's torch is replaced")
    try:
        version = importlib.metadata.version("torch")
        found = importlib.util.find_spec("torch")
    except importlib.metadata.PackageNotFoundError:
        version, found = "", None
    if found is None or found.origin is None:
        raise LibTorchError(f"there is no torch beside {HERE}; {advice}")
    if version.split("+")[0] != TORCH:
        raise LibTorchError(f"torch {version} is in {pathlib.Path(found.origin).parent}; {advice}")
    directory = pathlib.Path(found.origin).resolve().parent
    if CUDA and not (directory / "lib/libc10_cuda.so").exists():
        raise LibTorchError(f"torch in {directory} is one without CUDA, and this longshore is "
                            f"built with it; {advice}")
    return directory


def program() -> list[str]:
    """The command line of the program; LibTorchError where it could not start."""
    found = HERE / "bin/longshore"
    if not found.exists():
        raise LibTorchError(f"there is no program in {found.parent}: this is the source tree, not "
                            "an installed wheel; build one with scripts/build && scripts/wheel, "
                            "and install build/longshore-*.whl")
    _torch_directory()
    return [str(found)]


def environment() -> dict[str, str]:
    """The program finds LibTorch beside this package by itself; where it is in another folder
    (a user's site-packages, a .pth file), the loader has to be told."""
    variables = dict(os.environ)
    torch = _torch_directory()
    if torch.parent == HERE.parent:
        return variables
    folders = [torch / "lib", *sorted((torch.parent / "nvidia").glob("*/lib"))]
    before = variables.get("LD_LIBRARY_PATH")
    variables["LD_LIBRARY_PATH"] = ":".join([*map(str, folders), *([before] if before else [])])
    return variables


def main() -> None:
    """Becomes the program: signals, exit codes and the terminal are its own."""
    try:
        command, variables = program(), environment()
    except LibTorchError as error:
        sys.exit(f"error: {error}")
    os.execve(command[0], [*command, *sys.argv[1:]], variables)
