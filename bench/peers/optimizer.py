"""Times one optimizer step of Longshore and of its peers on the same number of parameters, in turn:

    bench/peers/optimizer.py --longshore build/release/longshore [--parameters N] [--rounds N]

Needs torch. With deepspeed (DS_BUILD_OPS=0 pip install deepspeed==0.19.8, ninja on PATH and
TORCH_EXTENSIONS_DIR set) also its CPUAdam, bare and as ZeRO-3 uses it in bf16: unscale pass,
kernel, copy to bf16. Every round times each candidate once; medians and quartiles are printed as
JSON.
"""

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import time

import torch

FORMATS = ("fp32", "split", "split-bf16", "split-int8")
RATIOS = (("fp32", "DeepSpeed as ZeRO-3 uses it"), ("fp32", "DeepSpeed CPUAdam"),
          ("fp32", "torch fused + bf16 copy"), ("split-bf16", "DeepSpeed as ZeRO-3 uses it"),
          ("split-bf16", "fp32"), ("split-int8", "fp32"))


def longshore(arguments, state_format):
    command = [arguments.longshore, "bench", "optimizer", "--json", "--rounds", "3",
               "--format", state_format, "--threads", str(arguments.threads),
               "--parameters", str(arguments.parameters)]
    figures = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return arguments.parameters / figures["figures"][0]["parameters_per_second"]


def seconds(work):
    work()
    times = []
    for _ in range(3):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def new_state(parameters):
    parameter = torch.nn.Parameter(torch.randn(parameters) * 0.02)
    parameter.grad = torch.randn(parameters) * 2e-4
    return parameter, torch.empty(parameters, dtype=torch.bfloat16)


def torch_fused(arguments):
    parameter, copy = new_state(arguments.parameters)
    optimizer = torch.optim.AdamW([parameter], lr=1e-5, betas=(0.9, 0.95), fused=True)

    def step_and_copy():
        optimizer.step()
        copy.copy_(parameter.detach())

    return {"torch fused": optimizer.step, "torch fused + bf16 copy": step_and_copy}


def deepspeed_adam(arguments):
    try:
        with contextlib.redirect_stdout(sys.stderr):  # keeps its log out of the JSON
            from deepspeed.ops.adam import DeepSpeedCPUAdam
    except ImportError:
        return {}
    parameter, copy = new_state(arguments.parameters)
    optimizer = DeepSpeedCPUAdam([parameter], lr=1e-5, betas=(0.9, 0.95))

    def as_zero3():
        parameter.grad.mul_(1.0)
        optimizer.step()
        copy.copy_(parameter.detach())

    return {"DeepSpeed CPUAdam": optimizer.step, "DeepSpeed as ZeRO-3 uses it": as_zero3}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--longshore", required=True)
    parser.add_argument("--parameters", type=int, default=1 << 26)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=21)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    candidates = {name: (lambda name=name: longshore(arguments, name)) for name in FORMATS}
    for name, work in {**torch_fused(arguments), **deepspeed_adam(arguments)}.items():
        candidates[name] = lambda work=work: seconds(work)
    times = {name: [] for name in candidates}
    for _ in range(arguments.rounds):
        for name, measure in candidates.items():
            times[name].append(measure())
    result = {}
    for name, found in times.items():
        low, median, high = (statistics.quantiles(found, n=4) if len(found) > 1
                             else [found[0]] * 3)
        result[name] = {"parameters_per_second": arguments.parameters / median,
                        "seconds_median": median, "seconds_quartiles": [low, high]}
    ratios = {f"{ours} / {other}": result[other]["seconds_median"] / result[ours]["seconds_median"]
              for ours, other in RATIOS if other in result}
    print(json.dumps({"parameters": arguments.parameters, "threads": arguments.threads,
                      "rounds": arguments.rounds, "torch": torch.__version__,
                      "figures": result, "ratios": ratios}, indent=2))


if __name__ == "__main__":
    main()
