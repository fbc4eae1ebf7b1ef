"""What the machine has: a GPU through the driver, LibTorch through Python's torch, the binaries."""
import ctypes
import importlib.util
import json
import os
import pathlib
import platform
import subprocess
import sys

import process

TORCH = "2.11.0"
TEST_SECONDS = 120  # a test that takes longer hangs
# As trainer/main.cpp has the first two; a machine without a network has the loopback alone.
ENVIRONMENT = {"OMP_WAIT_POLICY": "PASSIVE", "CUDA_DEVICE_MAX_CONNECTIONS": "32",
               "GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
# What the first process would wait for: 2 GB and more, of a disk that nobody read from yet.
READ_AHEAD = ("libtorch_cuda.so", "libtorch_cpu.so", "libcublasLt.so*", "libcublas.so*",
              "libcudnn*.so*")


def find_gpu():
    """The first GPU as the driver tells it, or None. No torch, no toolkit."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    count = ctypes.c_int()
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return None
    if count.value == 0:
        return None
    name = ctypes.create_string_buffer(100)
    memory = ctypes.c_size_t()
    version = ctypes.c_int()
    driver.cuDeviceGetName(name, 100, 0)
    driver.cuDeviceTotalMem_v2(ctypes.byref(memory), 0)
    driver.cuDriverGetVersion(ctypes.byref(version))
    return {"name": name.value.decode(), "memory_bytes": memory.value, "count": count.value,
            "driver_cuda": f"{version.value // 1000}.{version.value % 1000 // 10}"}


def find_torch(root, bundled):
    """The folder of LibTorch: the build's own in a checkout, else that of Python's torch."""
    fetched = root / ".deps/libtorch/torch"
    if not bundled and fetched.exists():
        return fetched.resolve()
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        sys.exit(f"gpu_check: {sys.executable} has no torch; install torch {TORCH} or run this "
                 "with the Python that has it")
    folder = pathlib.Path(found.origin).parent
    version = (folder / "version.py").read_text()
    if TORCH not in version:
        sys.exit(f"gpu_check: {folder} is not torch {TORCH}: binaries fit that version only")
    return folder


class Setup:
    """Where everything is, and the environment that binaries run in."""

    def __init__(self, root, bundled, gpu):
        self.root, self.gpu = root, gpu
        self.test_seconds = TEST_SECONDS
        self.bin = root / "bin" if bundled else root / "build/release"
        self.bench = root / "bench"
        self.torch = find_torch(root, bundled)
        self.build = (json.loads((root / "BUILD.json").read_text()) if bundled
                      else {"commit": commit(root)})
        self.scratch = root / ("scratch" if bundled else "build/gpu_check/scratch")
        self.environment = dict(os.environ)
        folders = [root / "lib"] if bundled else []
        folders.append(self.torch / "lib")
        folders += sorted((self.torch.parent / "nvidia").glob("*/lib"))
        before = os.environ.get("LD_LIBRARY_PATH")
        self.environment["LD_LIBRARY_PATH"] = ":".join(
            [str(folder) for folder in folders] + ([before] if before else []))
        self.environment.update(ENVIRONMENT)

    def describe(self):
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return {"gpu": self.gpu, "build": self.build, "cores": len(os.sched_getaffinity(0)),
                "memory_bytes": memory, "system": platform.platform(), "torch": TORCH}


def read_ahead(folders):
    """Begins to read the libraries that every process on a GPU loads; whoever needs one first waits
    for it alone. Returns the process, which ends by itself."""
    files = sorted({str(found) for folder in folders for name in READ_AHEAD
                    for found in pathlib.Path(folder).glob(name)})
    return subprocess.Popen(["cat", *(files or ["/dev/null"])], stdout=subprocess.DEVNULL,
                            stderr=subprocess.DEVNULL, preexec_fn=process.die_with_parent)


def commit(root):
    done = subprocess.run(["git", "-C", str(root), "describe", "--always", "--dirty"],
                          capture_output=True, text=True, check=False)
    return done.stdout.strip()
