"""Makes the archive that another machine needs: binaries, libraries that neither glibc nor torch's
wheel brings, test data, this check."""
import datetime
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile

import machine

MOST_BYTES = 60_000_000
BINARIES = ["longshore", "test_base", "test_kernels", "test_device", "test_pinned", "test_model",
            "test_offload", "test_engine", "test_parity"]
# Every folder of golden models: a binary that misses one does not even list its tests.
DATA = ["tests/parity/golden*", "tests/parity/fsdp2", "bench/peers"]
# What every Linux has, and what torch's wheel brings.
GLIBC = re.compile(r"(ld-linux-x86-64|libc|libm|libdl|libpthread|librt|libutil|linux-vdso)\.so")


def run(*command, **more):
    return subprocess.run([str(word) for word in command], check=True, **more)


def libraries(binary):
    """name -> path of what the binary loads, by the loader itself."""
    text = run("ldd", binary, capture_output=True, text=True).stdout
    found = {}
    for line in text.splitlines():
        match = re.match(r"\s*(\S+) => (\S+)", line)
        if match is None:
            continue
        if match[2] == "not":
            sys.exit(f"gpu_check: {binary.name} finds no {match[1]}")
        found[match[1]] = pathlib.Path(match[2])
    return found


def is_torchs(path, torch):
    site = torch.parent
    return site in path.resolve().parents


def copy_libraries(binaries, target, torch):
    target.mkdir()
    names = {}
    for binary in binaries:
        names.update(libraries(binary))
    for name, path in sorted(names.items()):
        if GLIBC.match(name) or is_torchs(path, torch):
            continue
        shutil.copy(path.resolve(), target / name)
        run("strip", "--strip-unneeded", target / name)
    return sorted(path.name for path in target.iterdir())


def copy_binaries(root, preset, target):
    target.mkdir()
    for name in BINARIES:
        built = root / "build" / preset / name
        shutil.copy(built, target / name)
        run("strip", target / name)
        # Paths of the machine that built are none of the other's business.
        script = f'file(RPATH_REMOVE FILE "{target / name}")'
        with open(target.parent / "remove_rpath.cmake", "w", encoding="utf-8") as file:
            file.write(script)
        run(root / ".deps/bin/cmake", "-P", file.name)
        pathlib.Path(file.name).unlink()


def make(root, archive, preset):
    run(root / "scripts/build", preset, "--target", *BINARIES)
    folder = root / "build/longshore-gpu"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    copy_binaries(root, preset, folder / "bin")
    torch = machine.find_torch(root, False)
    brought = copy_libraries([root / "build" / preset / name for name in BINARIES],
                             folder / "lib", torch)
    for data in (found for pattern in DATA for found in sorted(root.glob(pattern))):
        shutil.copytree(data, folder / data.relative_to(root),
                        ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(root / "scripts/gpu_check", folder / "gpu_check")
    shutil.copytree(root / "scripts/dev/gpu", folder / "gpu",
                    ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "BUILD.json").write_text(json.dumps(
        {"commit": machine.commit(root), "date": datetime.date.today().isoformat(),
         "preset": preset,
         "torch": machine.TORCH, "libraries": brought}, indent=1) + "\n")
    archive.parent.mkdir(parents=True, exist_ok=True)
    archive.unlink(missing_ok=True)
    with tarfile.open(archive, "w:xz", preset=6) as file:
        file.add(folder, arcname="longshore-gpu")
    size = archive.stat().st_size
    print(f"{archive}: {size / 1e6:.1f} MB; libraries: {', '.join(brought)}")
    if size > MOST_BYTES:
        sys.exit(f"gpu_check: the bundle is larger than {MOST_BYTES / 1e6:.0f} MB")
