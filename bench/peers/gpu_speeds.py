"""gpu_speeds.py OUT: what the roofline needs of this machine, measured with torch alone: bf16
matrix products, copies both ways from pinned memory while the other direction runs, and the
host's memory."""
import json
import sys
import time

import torch


def best(call, repeats=5):
    seconds = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        call()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
    return min(seconds)


def gemm_flops():
    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    return 10 * 2 * 8192**3 / best(lambda: [a @ b for _ in range(10)])


def links():
    size = 1 << 30
    host = [torch.empty(size, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
    device = [torch.empty(size, dtype=torch.uint8, device="cuda") for _ in range(2)]
    streams = [torch.cuda.Stream() for _ in range(2)]
    speeds = []
    for timed in range(2):
        def both(timed=timed):
            with torch.cuda.stream(streams[1 - timed]):
                copy(1 - timed)
            with torch.cuda.stream(streams[timed]):
                copy(timed)
            streams[timed].synchronize()

        def copy(direction):
            for _ in range(3):
                if direction == 0:
                    device[0].copy_(host[0], non_blocking=True)
                else:
                    host[1].copy_(device[1], non_blocking=True)

        speeds.append(3 * size / best(both))
    return speeds


def dram():
    source = torch.ones(1 << 28)
    target = torch.empty_like(source)
    return 2 * source.nbytes / best(lambda: target.copy_(source))


h2d, d2h = links()
speeds = {"flops": gemm_flops(), "h2d": h2d, "d2h": d2h, "dram": dram(),
          "gpu": torch.cuda.get_device_name(0)}
with open(sys.argv[1], "w", encoding="utf-8") as file:
    json.dump(speeds, file)
