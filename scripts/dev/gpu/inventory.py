"""What the machine is and has: the output of the tools that say it, kept whole, and its memory over
the time of the check. As a program, inventory.py GIB: touches so much memory and lets it go."""
import concurrent.futures
import ctypes
import mmap
import pathlib
import re
import shutil
import sys
import threading
import time

import process

TOOL_SECONDS = 20
SAMPLE_SECONDS = 5
GROWN_GIB = 100
GROWING_SECONDS = 20
LEFT_GIB = 4  # that are never touched
TOUCHING_THREADS = 8
BLOCK = 1 << 30  # that a thread touches at a time
TOOLS = {
    "nvidia-smi": ["nvidia-smi", "-q"],
    "topology": ["nvidia-smi", "topo", "-m"],
    "cpu": ["lscpu"],
    "cores": ["lscpu", "-e=CPU,CORE,SOCKET,NODE,CACHE,MAXMHZ"],
    "limits": ["sh", "-c", "ulimit -a"],
    "memory": ["cat", "/proc/meminfo"],
    "system": ["uname", "-a"],
    "mounts": ["df", "-h"],
    "disks": ["lsblk", "-o", "NAME,SIZE,ROTA,MODEL,MOUNTPOINT"],
    "compiler": ["nvcc", "--version"],
    "cgroup": ["sh", "-c", "cat /sys/fs/cgroup/memory.max /sys/fs/cgroup/cpu.max"],
}


def take(job):
    rows = []
    for name, command in TOOLS.items():
        if shutil.which(command[0]) is None:
            rows.append({"tool": name, "said": "not there"})
            continue
        try:
            code = job.call(command, name, seconds=TOOL_SECONDS)
            rows.append({"tool": name, "said": "kept" if code == 0 else f"ended with {code}"})
        except process.Stopped:
            rows.append({"tool": name, "said": f"hung for {TOOL_SECONDS} s"})
    return {"status": "passed", "measured": rows}


def memory_now():
    """(all, available) in KiB."""
    found = {}
    for line in pathlib.Path("/proc/meminfo").read_text().splitlines():
        name, rest = line.split(":")
        found[name] = int(rest.split()[0])
    return found["MemTotal"], found["MemAvailable"]


def watch_memory(path):
    """Adds a line every few seconds, in a thread that ends with the program."""
    def work():
        with open(path, "a", encoding="utf-8", buffering=1) as file:
            while True:
                total, available = memory_now()
                file.write(f"{time.strftime('%T')}\t{total}\t{available}\n")
                time.sleep(SAMPLE_SECONDS)
    threading.Thread(target=work, daemon=True).start()


def cgroup_left():
    """Bytes that the control group may still take; None without a limit."""
    root = pathlib.Path("/sys/fs/cgroup")
    try:
        limit = (root / "memory.max").read_text().strip()
        return None if limit == "max" else int(limit) - int(
            (root / "memory.current").read_text())
    except (OSError, ValueError):
        return None


def touchable():
    """Bytes."""
    left = memory_now()[1] << 10
    of_group = cgroup_left()
    return (left if of_group is None else min(left, of_group)) - (LEFT_GIB << 30)


def touch(most):
    """Where memory grows with its use it is there afterwards. A block for each thread at a time,
    for as long as more is free; the kernel takes this process first where that was wrong."""
    pathlib.Path("/proc/self/oom_score_adj").write_text("1000")
    step = TOUCHING_THREADS * BLOCK
    memory, end = [], time.monotonic() + GROWING_SECONDS
    with concurrent.futures.ThreadPoolExecutor(TOUCHING_THREADS) as threads:
        while (len(memory) + 1) * step <= most and time.monotonic() < end and touchable() >= step:
            part = mmap.mmap(-1, step)
            part.madvise(mmap.MADV_HUGEPAGE)
            memory.append(part)
            begin = ctypes.addressof(ctypes.c_char.from_buffer(part))
            list(threads.map(lambda i, at=begin: ctypes.memset(at + i * BLOCK, 1, BLOCK),
                             range(TOUCHING_THREADS)))
            print(len(memory) * step, *memory_now(), flush=True)


def grow(job):
    """A virtual machine's memory may be less than it was given until it was used once; plans count
    what the kernel says."""
    rows = []

    def note(when):
        total, available = memory_now()
        rows.append({"when": when, "total_gib": total / 2**20, "available_gib": available / 2**20})

    note("before")
    lines = []
    begin = time.monotonic()
    code = job.call([sys.executable, __file__, GROWN_GIB], "touch", on_line=lines.append,
                    seconds=GROWING_SECONDS + 10)
    seconds = time.monotonic() - begin
    note("after")
    steps = [line.split()[0] for line in lines if re.fullmatch(r"\d+ \d+ \d+", line)]
    rows[-1].update({"touched_gib": int(steps[-1]) / 2**30 if steps else 0.0, "seconds": seconds,
                     "exit_code": code})
    return {"status": "passed", "measured": rows}


if __name__ == "__main__":
    touch(int(sys.argv[1]) << 30)
