"""Runs a program under a limit: its output capped in a file, what it did when it hung kept."""
import collections
import ctypes
import os
import pathlib
import shutil
import signal
import subprocess
import threading
import time

HEAD_BYTES = 96 << 10
TAIL_BYTES = 96 << 10
TRACE_SECONDS = 30
PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None)


class Stopped(Exception):
    """The program was ended at its limit."""


class CappedLog:
    """A file of the first and the last bytes of a stream of any length. The first are written as
    they come; the last when it ends, or every second: a check that is killed leaves them too."""

    def __init__(self, path):
        self.path = path
        self.file = open(path, "ab", buffering=0)
        self.base = self.file.tell()
        self.head = 0
        self.left_out = 0
        self.tail = collections.deque()
        self.tail_bytes = 0
        self.written = time.monotonic()

    def add(self, data):
        if self.head < HEAD_BYTES:
            first = data[:HEAD_BYTES - self.head]
            self.file.write(first)
            self.head += len(first)
            data = data[len(first):]
        if not data:
            return
        self.tail.append(data)
        self.tail_bytes += len(data)
        while self.tail_bytes - len(self.tail[0]) >= TAIL_BYTES:
            gone = self.tail.popleft()
            self.tail_bytes -= len(gone)
            self.left_out += len(gone)
        if time.monotonic() - self.written > 1:
            self.write_tail()

    def write_tail(self):
        if not self.tail:
            return
        self.file.truncate(self.base + self.head)
        self.file.seek(self.base + self.head)
        self.file.write(b"\n... %d bytes are left out ...\n" % self.left_out)
        self.file.write(b"".join(self.tail)[-TAIL_BYTES:])
        self.written = time.monotonic()

    def close(self):
        self.write_tail()
        self.file.close()


def threads_of(process_id):
    """What every thread of the process waits for, by the kernel: where there is no debugger."""
    lines = []
    for task in sorted(pathlib.Path(f"/proc/{process_id}/task").glob("*")):
        for name in ("comm", "wchan", "syscall", "stack"):
            try:
                text = (task / name).read_text(errors="replace").strip()
            except OSError as error:
                text = error.strerror
            lines.append(f"{task.name} {name}: {text}")
    return "\n".join(lines) + "\n"


def backtraces(process_id, path):
    """Of all threads, by gdb or cuda-gdb where there is one."""
    parts = [threads_of(process_id)]
    for tool in ("cuda-gdb", "gdb"):
        if shutil.which(tool) is None:
            continue
        command = [tool, "-p", str(process_id), "-batch", "-ex", "set pagination off", "-ex",
                   "thread apply all backtrace 40"]
        try:
            done = subprocess.run(command, capture_output=True, timeout=TRACE_SECONDS, check=False)
            parts.append(done.stdout.decode(errors="replace")[-TAIL_BYTES:])
            break
        except (OSError, subprocess.TimeoutExpired) as error:
            parts.append(f"{tool}: {error}\n")
    path.write_text("\n".join(parts))


def die_with_parent():
    """A check that is killed leaves nothing on the GPU."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def session_of(process_id):
    """0: it ended meanwhile. Field 6 of stat; the name before it may have blanks and brackets."""
    try:
        text = pathlib.Path(f"/proc/{process_id}/stat").read_text(errors="replace")
        return int(text.rpartition(")")[2].split()[3])
    except (OSError, ValueError, IndexError):
        return 0


def end(process):
    """Kills the process and everything in its session, which its children stay in also where each
    leads a group of its own."""
    members = [process.pid]
    while members:
        for member in members:
            try:
                os.kill(member, signal.SIGKILL)
            except ProcessLookupError:
                pass
        process.wait()
        members = [int(path.name) for path in pathlib.Path("/proc").glob("[0-9]*")
                   if session_of(path.name) == process.pid and is_alive(path.name)]


def is_alive(process_id):
    try:
        text = pathlib.Path(f"/proc/{process_id}/stat").read_text(errors="replace")
    except OSError:
        return False
    return text.rpartition(")")[2].split()[:1] not in (["Z"], ["X"])


def run(command, deadline, log, environment, folder, on_line=None):
    """The exit code. `deadline`: of time.monotonic(), or a function that says it anew. `on_line`
    gets each line of the output; where it returns true the program is ended. Stopped at the
    deadline, with backtraces beside the log."""
    limit = deadline if callable(deadline) else lambda: deadline
    folder.mkdir(parents=True, exist_ok=True)
    output = CappedLog(log)
    enough = threading.Event()
    process = subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, env=environment, cwd=folder,
                               start_new_session=True, preexec_fn=die_with_parent)

    def read():
        rest = b""
        while data := os.read(process.stdout.fileno(), 1 << 16):
            output.add(data)
            if on_line is None:
                continue
            *lines, rest = (rest + data).split(b"\n")
            rest = rest[-HEAD_BYTES:]  # a line without an end
            for line in lines:
                if on_line(line.decode(errors="replace")):
                    enough.set()

    reader = threading.Thread(target=read)
    reader.start()
    try:
        while process.poll() is None and not enough.is_set():
            if time.monotonic() > limit():
                backtraces(process.pid, log.with_suffix(".hang.txt"))
                raise Stopped(" ".join(str(word) for word in command))
            time.sleep(0.02)
    finally:
        end(process)  # with all that it started
        reader.join(timeout=5)
        output.close()
    return process.returncode
