"""gpu_speeds.py OUT: what rooflines need of this machine and what a block's parts take, measured
with torch alone: matrix products at a block's shapes, attention, a chunk of the head, copies both
ways, the host's memory. OUT is written anew after each measurement; one that fails is a row with
its error.

gpu_speeds.py OUT --beside COMMAND...: GB/s of copies both ways while the command runs."""
import json
import subprocess
import sys
import time

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

# These are the shapes of an 8B Llama.
HIDDEN, INNER, HEADS, KV_HEADS, HEAD_DIM, VOCABULARY = 4096, 14336, 32, 8, 128, 128256
PRODUCTS = {"q, o": (HIDDEN, HIDDEN), "k, v": (HIDDEN, KV_HEADS * HEAD_DIM),
            "gate, up": (HIDDEN, INNER), "down": (INNER, HIDDEN),
            "q, k, v joined": (HIDDEN, (HEADS + 2 * KV_HEADS) * HEAD_DIM),
            "gate, up joined": (HIDDEN, 2 * INNER)}
DOCUMENTS = ((4096, 1), (4096, 4))  # (positions of a document, documents)
CHUNK_ROWS = (1024, 4096)
BFLOAT = torch.bfloat16


def best(call, repeats=5):
    """Seconds; the first call, which may load code, is not counted."""
    seconds = []
    for _ in range(repeats + 1):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        call()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
    return min(seconds[1:])


def random(*shape):
    return torch.randn(*shape, device="cuda", dtype=BFLOAT)


def gemm_flops():
    a, b = random(8192, 8192), random(8192, 8192)
    return 10 * 2 * 8192**3 / best(lambda: [a @ b for _ in range(10)])


def products(rows):
    """(what, FLOP, call): forward, the input's gradient, the weight's added in fp32 in place."""
    for name, (inner, outer) in PRODUCTS.items():
        x, w, dy = random(rows, inner), random(outer, inner), random(rows, outer)
        total = torch.zeros(outer, inner, device="cuda")
        flop = 2 * rows * inner * outer
        yield f"{name}, {rows} rows, forward", flop, lambda x=x, w=w: x @ w.t()
        yield f"{name}, {rows} rows, dX", flop, lambda w=w, dy=dy: dy @ w
        yield (f"{name}, {rows} rows, dW added in fp32", flop,
               lambda x=x, dy=dy, total=total: torch.ops.aten.addmm.dtype_out(
                   total, dy.t(), x, torch.float32, out=total))


def attention_flop(length, count):
    return 4 * length * length / 2 * HEADS * HEAD_DIM * count  # causal; backward is 2.5 times it


def flash(length, count):
    rows = length * count
    q, out_grad = random(rows, HEADS, HEAD_DIM), random(rows, HEADS, HEAD_DIM)
    k, v = random(rows, KV_HEADS, HEAD_DIM), random(rows, KV_HEADS, HEAD_DIM)
    starts = torch.arange(0, rows + 1, length, device="cuda", dtype=torch.int32)

    def forward():
        return torch.ops.aten._flash_attention_forward(
            q, k, v, starts, starts, length, length, 0.0, True, False)

    out, sums, seed, offset, _ = forward()

    def backward():
        return torch.ops.aten._flash_attention_backward(
            out_grad, q, k, v, out, sums, starts, starts, length, length, 0.0, True, seed, offset)

    flop = attention_flop(length, count)
    yield f"flash attention, {count} documents of {length}, forward", flop, forward
    for same in (True, False):
        torch.use_deterministic_algorithms(same)
        yield (f"flash attention, {count} documents of {length}, backward, "
               f"{'same bits' if same else 'any bits'}", 2.5 * flop, backward)


def cudnn(length, count):
    q = random(count, HEADS, length, HEAD_DIM).requires_grad_()
    k, v = (random(count, KV_HEADS, length, HEAD_DIM).requires_grad_() for _ in range(2))
    out_grad = random(count, HEADS, length, HEAD_DIM)

    def forward():
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

    out = forward()
    flop = attention_flop(length, count)
    yield f"cuDNN attention, {count} documents of {length}, forward", flop, forward

    def backward():
        return torch.autograd.grad(out, (q, k, v), out_grad, retain_graph=True)

    for same in (True, False):
        torch.use_deterministic_algorithms(same)
        first = backward()
        repeats = all(torch.equal(one, other) for _ in range(5)
                      for one, other in zip(first, backward()))
        yield (f"cuDNN attention, {count} documents of {length}, backward, "
               f"{'same bits asked' if same else 'any bits'}, "
               f"{'repeated' if repeats else 'did not repeat'}", 2.5 * flop, backward)


def head(rows):
    x, w = random(rows, HIDDEN).requires_grad_(), random(VOCABULARY, HIDDEN)
    targets = torch.randint(VOCABULARY, (rows,), device="cuda")

    def chunk():
        loss = F.cross_entropy((x @ w.t()).float(), targets)
        torch.autograd.grad(loss, x)

    yield (f"head, {rows} rows: logits, torch's loss, dX", 4 * rows * HIDDEN * VOCABULARY, chunk)


class Copies:
    """Both ways at the same time, out of pinned memory."""

    def __init__(self):
        self.size = 1 << 30
        self.host = [torch.empty(self.size, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
        self.device = [torch.empty(self.size, dtype=torch.uint8, device="cuda") for _ in range(2)]
        self.streams = [torch.cuda.Stream() for _ in range(2)]

    def copy(self, direction, times=3):
        with torch.cuda.stream(self.streams[direction]):
            for _ in range(times):
                if direction == 0:
                    self.device[0].copy_(self.host[0], non_blocking=True)
                else:
                    self.host[1].copy_(self.device[1], non_blocking=True)

    def speed(self, timed):
        """Bytes a second of one direction while the other one runs."""
        def both():
            self.copy(1 - timed)
            self.copy(timed)
            self.streams[timed].synchronize()
        return 3 * self.size / best(both)


def dram():
    source = torch.ones(1 << 28)
    target = torch.empty_like(source)
    return 2 * source.nbytes / best(lambda: target.copy_(source))


class Report:
    def __init__(self, path):
        self.path = path
        self.found = {"gpu": torch.cuda.get_device_name(0), "rows": []}

    def write(self):
        with open(self.path, "w", encoding="utf-8") as file:
            json.dump(self.found, file, indent=1)

    def value(self, name, measure):
        self.found[name] = measure()
        self.write()

    def rates(self, what, cases):
        """A generator that fails has no more cases; what it had stays."""
        try:
            for name, flop, call in cases:
                seconds = best(call)
                self.found["rows"].append({"what": name, "milliseconds": 1e3 * seconds,
                                           "tflop_per_second": flop / seconds / 1e12})
        except Exception as error:  # a missing operator, or a GPU without the memory
            text = f"{type(error).__name__}: {error}"
            self.found["rows"].append({"what": what, "error": text.splitlines()[0][:200]})
        torch.use_deterministic_algorithms(False)
        self.write()


def measure(path):
    report = Report(path)
    copies = Copies()
    report.value("h2d", lambda: copies.speed(0))
    report.value("d2h", lambda: copies.speed(1))
    del copies
    report.value("dram", dram)
    report.value("flops", gemm_flops)
    for rows in (4096, 16384):
        report.rates(f"products, {rows} rows", products(rows))
    for length, count in DOCUMENTS:
        report.rates("flash attention", flash(length, count))
        report.rates("cuDNN attention", cudnn(length, count))
    for rows in CHUNK_ROWS:
        report.rates("head", head(rows))


def measure_beside(path, command):
    copies = Copies()
    copies.speed(0)
    process = subprocess.Popen(command)
    done = [0, 0]
    begin = time.perf_counter()
    while process.poll() is None:
        for direction in (0, 1):
            copies.copy(direction)
            done[direction] += 3 * copies.size
        torch.cuda.synchronize()
    seconds = time.perf_counter() - begin
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"seconds": seconds, "h2d": done[0] / seconds, "d2h": done[1] / seconds}, file)
    return process.returncode


if __name__ == "__main__":
    if "--beside" in sys.argv:
        sys.exit(measure_beside(sys.argv[1], sys.argv[sys.argv.index("--beside") + 1:]))
    measure(sys.argv[1])
