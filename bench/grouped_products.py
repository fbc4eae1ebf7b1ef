#!/usr/bin/env python3
"""Gate and up of one layer's experts, three ways, in one run of LibTorch: prints milliseconds and
ratios.

    .venv/bin/python bench/grouped_products.py [--rounds N] [--device cpu|cuda]   (scripts/dev/venv)

loop: a product for each expert that has tokens, as Longshore does; grouped: torch._grouped_mm over
all of them; dense: one product of the same FLOPs, with one expert's matrix. Rounds are interleaved
and the least time of each counts. Tokens choose among experts at random; `same bits` compares
grouped with loop.
"""
import argparse
import time

import torch

# Each shape: experts, hidden size, width, experts per token.
SHAPES = {"Qwen3-30B-A3B": (128, 2048, 768, 8), "gpt-oss-20b": (32, 2880, 2880, 4)}
TOKENS = (256, 1024, 4096)


def routed(tokens, experts, top_k, device):
    """Where each expert's rows end, of tokens that choose at random."""
    chosen = torch.rand(tokens, experts, generator=torch.Generator().manual_seed(1)).topk(top_k)
    counts = torch.bincount(chosen.indices.flatten(), minlength=experts)
    return counts.cumsum(0).to(device=device, dtype=torch.int32)


def loop(x, weights, ends):
    out = torch.empty(x.shape[0], weights.shape[1], dtype=x.dtype, device=x.device)
    begin = 0
    for expert, end in enumerate(ends):
        if end > begin:
            torch.mm(x[begin:end], weights[expert].t(), out=out[begin:end])
        begin = end
    return out


def least_times(ways, rounds, device):
    times = {name: float("inf") for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            if device == "cuda":
                torch.cuda.synchronize()
            begun = time.perf_counter()
            way()
            if device == "cuda":
                torch.cuda.synchronize()
            times[name] = min(times[name], time.perf_counter() - begun)
    return times


def measure(model, tokens, dtype, arguments):
    experts, hidden, width, top_k = SHAPES[model]
    device = arguments.device
    ends = routed(tokens, experts, top_k, device)
    listed = ends.tolist()
    x = torch.randn(tokens * top_k, hidden, dtype=dtype, device=device)
    weights = torch.randn(experts, 2 * width, hidden, dtype=dtype, device=device)
    ways = {"loop": lambda: loop(x, weights, listed), "dense": lambda: x @ weights[0].t()}
    same = "no grouped product"
    try:
        grouped = torch._grouped_mm(x, weights.transpose(1, 2), offs=ends)
        ways["grouped"] = lambda: torch._grouped_mm(x, weights.transpose(1, 2), offs=ends)
        same = str(torch.equal(grouped, ways["loop"]()))
    except RuntimeError as error:
        print(f"  grouped: {str(error).splitlines()[0]}")
    times = least_times(ways, arguments.rounds, device)
    ratio = times["grouped"] / times["loop"] if "grouped" in times else float("nan")
    print(f"{model:14} {str(dtype)[6:]:8} {tokens:5} tokens  loop {1e3 * times['loop']:8.1f} ms  "
          f"grouped {1e3 * times.get('grouped', float('nan')):8.1f}  "
          f"dense {1e3 * times['dense']:8.1f}  grouped/loop {ratio:.2f}  "
          f"loop/dense {times['loop'] / times['dense']:.2f}  same bits {same}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--models", default=",".join(SHAPES))
    arguments = parser.parse_args()
    for model in arguments.models.split(","):
        for dtype in (torch.bfloat16, torch.float32):
            for tokens in TOKENS:
                measure(model, tokens, dtype, arguments)


if __name__ == "__main__":
    main()
