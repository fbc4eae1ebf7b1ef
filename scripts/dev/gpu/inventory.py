"""What the machine is and has: the output of the tools that say it, kept whole, and its memory over
the time of the check."""
import pathlib
import shutil
import threading
import time

import process

TOOL_SECONDS = 20
SAMPLE_SECONDS = 5
TOOLS = {
    "nvidia-smi": ["nvidia-smi", "-q"],
    "topology": ["nvidia-smi", "topo", "-m"],
    "cpu": ["lscpu"],
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
