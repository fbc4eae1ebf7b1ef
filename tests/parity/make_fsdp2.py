#!/usr/bin/env python3
"""Makes tests/parity/fsdp2/<case>.json: what PyTorch's own fully_shard makes of golden cases on CPU
with Gloo, at 2 and 4 ranks: losses, gradient norms, and the bytes that its collectives took.

Needs torch 2.11 (CPU) and transformers 5 (scripts/dev/venv). Every transformer layer is a unit and
the rest is the root's, as torchtitan wraps models. Rows go to ranks one by one, in order. fp32.
"""
import json
import os
import sys
from collections import Counter
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as processes
from torch.distributed.fsdp import fully_shard

import make_golden

OUT = Path(__file__).parent / "fsdp2"
CASES = ["llama", "llama-tied", "gpt2"]
SEQUENCES_PER_STEP = 4
MAX_GRAD_NORM = 0.9


def count_payload(payload):
    """Counts whole gathered and whole reduced bytes handed to collectives."""
    gather, scatter = dist.all_gather_into_tensor, dist.reduce_scatter_tensor

    def counting_gather(output, *args, **kwargs):
        payload["all_gather"] += output.numel() * output.element_size()
        return gather(output, *args, **kwargs)

    def counting_scatter(output, input, *args, **kwargs):
        payload["reduce_scatter"] += input.numel() * input.element_size()
        return scatter(output, input, *args, **kwargs)

    dist.all_gather_into_tensor, dist.reduce_scatter_tensor = counting_gather, counting_scatter


def run(rank, ranks, name, port, path):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    payload = Counter()
    count_payload(payload)
    directory = make_golden.ROOT / name
    model = make_golden.load(make_golden.CASES[name], directory)
    decoder = model.model if hasattr(model, "model") else model.transformer
    for layer in decoder.layers if hasattr(decoder, "layers") else decoder.h:
        fully_shard(layer)
    fully_shard(model)
    rows = [json.loads(line) for line in (directory / "train.jsonl").read_text().splitlines()]
    adamw = make_golden.adamw_of(make_golden.CASES[name])
    decayed = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": adamw["weight_decay"]},
         {"params": others, "weight_decay": 0.0}],
        lr=adamw["lr"], betas=tuple(adamw["betas"]), eps=adamw["eps"])
    losses, norms, first_step = [], [], None
    for step in range(make_golden.STEPS):
        first = step * SEQUENCES_PER_STEP
        batch = [rows[(first + i) % len(rows)] for i in range(SEQUENCES_PER_STEP)]
        trained = sum(int((torch.tensor(r.get("labels", r["input_ids"]))[1:] != -100).sum())
                      for r in batch)
        optimizer.zero_grad()
        loss = torch.zeros(1, dtype=torch.float64)
        for row in batch[rank::ranks]:
            total, _ = make_golden.loss_sum(model, row)
            # fully_shard averages over ranks, but the mean here is over the step's tokens.
            (total * ranks / trained).backward()
            loss += total.item() / trained
        dist.all_reduce(loss)
        losses.append(loss.item())
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_GRAD_NORM)
        norms.append(norm.full_tensor().item())
        optimizer.step()
        first_step = first_step or dict(payload)
    if rank == 0:
        Path(path).write_text(json.dumps(
            {"loss": losses, "grad_norm": norms, "payload_bytes_of_a_step": first_step}))
    dist.destroy_process_group()


def main():
    OUT.mkdir(exist_ok=True)
    port = 29611
    for name in sys.argv[1:] or CASES:
        runs = {}
        for ranks in (2, 4):
            port += 1
            path = f"/tmp/fsdp2-{os.getpid()}.json"
            processes.spawn(run, (ranks, name, port, path), nprocs=ranks)
            runs[str(ranks)] = json.loads(Path(path).read_text())
            os.remove(path)
        facts = {"sequences_per_step": SEQUENCES_PER_STEP, "max_grad_norm": MAX_GRAD_NORM,
                 "runs": runs}
        (OUT / f"{name}.json").write_text(json.dumps(facts, indent=1) + "\n")
        print(name, {ranks: result["loss"][-1] for ranks, result in runs.items()})


if __name__ == "__main__":
    main()
