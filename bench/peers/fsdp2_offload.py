"""Tokens per second of PyTorch FSDP2 (fully_shard) with CPUOffloadPolicy on one GPU, bf16 with fp32
states, recomputation of every block, AdamW and clipping: Longshore's nearest peer without extra
packages. Gradients of a step are summed on the GPU and leave it once, behind the last pass. The
model is transformers' LlamaForCausalLM where transformers is installed, else the same
shape in plain torch below; the report says which."""
import argparse
import json
import os
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.utils.checkpoint import checkpoint

WARM_UP = 2


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        h, self.dim = c["hidden_size"], c["head_dim"]
        self.heads, self.kv = c["num_attention_heads"], c["num_key_value_heads"]
        self.norm1, self.norm2 = nn.RMSNorm(h, eps=1e-5), nn.RMSNorm(h, eps=1e-5)
        self.q = nn.Linear(h, self.heads * self.dim, bias=False)
        self.k = nn.Linear(h, self.kv * self.dim, bias=False)
        self.v = nn.Linear(h, self.kv * self.dim, bias=False)
        self.o = nn.Linear(self.heads * self.dim, h, bias=False)
        self.gate = nn.Linear(h, c["intermediate_size"], bias=False)
        self.up = nn.Linear(h, c["intermediate_size"], bias=False)
        self.down = nn.Linear(c["intermediate_size"], h, bias=False)

    def rotate(self, x, cos, sin):
        a, b = x.chunk(2, -1)
        return x * cos + torch.cat((-b, a), -1) * sin

    def forward(self, x, cos, sin):
        n, t, _ = x.shape
        y = self.norm1(x)
        q = self.rotate(self.q(y).view(n, t, self.heads, self.dim).transpose(1, 2), cos, sin)
        k = self.rotate(self.k(y).view(n, t, self.kv, self.dim).transpose(1, 2), cos, sin)
        v = self.v(y).view(n, t, self.kv, self.dim).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o(y.transpose(1, 2).reshape(n, t, -1))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.embed = nn.Embedding(c["vocab_size"], c["hidden_size"])
        self.blocks = nn.ModuleList(Block(c) for _ in range(c["num_hidden_layers"]))
        self.norm = nn.RMSNorm(c["hidden_size"], eps=1e-5)
        self.head = nn.Linear(c["hidden_size"], c["vocab_size"], bias=False)
        if c["tie_word_embeddings"]:
            self.head.weight = self.embed.weight
        self.dim, self.theta = c["head_dim"], c["rope_parameters"]["rope_theta"]

    def forward(self, tokens):
        x = self.embed(tokens)
        places = torch.arange(tokens.shape[1], device=tokens.device)
        angles = torch.outer(places, self.theta ** (
            -torch.arange(0, self.dim, 2, device=tokens.device) / self.dim))
        cos = torch.cat((angles.cos(),) * 2, -1).to(x.dtype)
        sin = torch.cat((angles.sin(),) * 2, -1).to(x.dtype)
        for block in self.blocks:
            x = checkpoint(block, x, cos, sin, use_reentrant=False)
        return self.head(self.norm(x))


def build(config):
    with torch.device("cpu"):
        try:
            from transformers import AutoConfig, LlamaForCausalLM
        except ImportError:
            return Llama(config), "FSDP2, plain torch model"
        settings = {key: value for key, value in config.items() if key != "architectures"}
        model = LlamaForCausalLM(AutoConfig.for_model(**settings))
        model.gradient_checkpointing_enable()
        return model, "FSDP2, transformers"


def blocks_of(model):
    return model.blocks if isinstance(model, Llama) else model.model.layers


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", required=True)
    parser.add_argument("--rows", required=True)
    parser.add_argument("--rows-per-step", type=int, required=True)
    parser.add_argument("--rows-at-once", type=int, default=1)
    parser.add_argument("--cap-gib", type=float, required=True)
    parser.add_argument("--out", required=True)
    options = parser.parse_args()
    with open(options.config, encoding="utf-8") as file:
        config = json.load(file)
    with open(options.rows, encoding="utf-8") as file:
        rows = [json.loads(line)["input_ids"] for line in file]
    os.environ.update({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29611", "RANK": "0",
                       "WORLD_SIZE": "1", "LOCAL_RANK": "0"})
    torch.cuda.set_device(0)
    torch.distributed.init_process_group("cpu:gloo,cuda:nccl")
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(min(1.0, options.cap_gib * 2**30 / total))
    model, system = build(config)
    policy = dict(offload_policy=CPUOffloadPolicy(),
                  mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16,
                                                 reduce_dtype=torch.float32))
    for block in blocks_of(model):
        fully_shard(block, **policy)
    fully_shard(model, **policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5, betas=(0.9, 0.95), fused=True)
    seconds = []
    for step in range(len(rows) // options.rows_per_step):
        begin = time.perf_counter()
        passes = options.rows_per_step // options.rows_at_once
        for number in range(passes):
            first = step * options.rows_per_step + number * options.rows_at_once
            tokens = torch.tensor(rows[first:first + options.rows_at_once], device="cuda")
            model.set_requires_gradient_sync(number + 1 == passes)
            out = model(tokens)
            logits = out if torch.is_tensor(out) else out.logits
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), tokens[:, 1:].flatten())
            (loss / passes).backward()
            del out, logits
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
        print(step, seconds[-1], float(loss), flush=True)
    typical = sorted(seconds[WARM_UP:])[len(seconds[WARM_UP:]) // 2]
    tokens = options.rows_per_step * len(rows[0])
    with open(options.out, "w", encoding="utf-8") as file:
        json.dump({"system": system, "tokens_per_second": tokens / typical, "seconds": seconds,
                   "peak_bytes": torch.cuda.max_memory_allocated()}, file)


if __name__ == "__main__":
    main()
