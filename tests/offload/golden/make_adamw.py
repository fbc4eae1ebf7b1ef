"""Makes the numbers of adamw_golden_test.cpp with torch.optim.AdamW on the CPU (torch 2.11):

    python3 tests/offload/golden/make_adamw.py

Parameters and gradients are small binary fractions, so C++ makes the same ones exactly.
"""

import torch

ELEMENTS, STEPS, SAMPLES = 4096, 200, range(0, 4096, 585)
LR, BETAS, EPS = 1e-3, (0.9, 0.95), 1e-8


def start():
    i = torch.arange(ELEMENTS, dtype=torch.float64)
    return (i * 40503 % 65536 - 32768) / 32768


def gradient(step):
    i = torch.arange(ELEMENTS, dtype=torch.float64)
    value = ((i * 7919 + step * 104729 + i * step * 31) % 2003 - 1001) / 1024
    return value * 2.0 ** -(i % 12)


def train(dtype, decay, **options):
    parameter = torch.nn.Parameter(start().to(dtype))
    optimizer = torch.optim.AdamW(
        [parameter], lr=LR, betas=BETAS, eps=EPS, weight_decay=decay, **options
    )
    history = {}
    for step in range(1, STEPS + 1):
        parameter.grad = gradient(step).to(dtype)
        optimizer.step()
        history[step] = parameter.detach().clone().double()
    return history


for decay in (0.0, 0.1):
    exact = train(torch.float64, decay)
    for name in ("foreach", "fused", None):
        own = train(torch.float32, decay, **({name: True} if name else {}))
        error = own[STEPS] - exact[STEPS]
        print(f"// decay {decay}, {name or 'plain'}: error after {STEPS} steps: "
              f"norm {error.norm().item():.6e}, largest {error.abs().max().item():.3e}")
    for step in (1, 10, STEPS):
        values = ", ".join(float(own[step][i]).hex() for i in SAMPLES)
        print(f"{{{decay}, {step}, {{{values}}}}},")
