#!/usr/bin/env python3
"""Steps of one model by longshore and by transformers (with PEFT's adapters), in turn, on the CPU.

  bench/peers/transformers_steps.py LONGSHORE FOLDER [--family llama|qwen3_5_text] [--adapter]
      [--compute fp32|bf16] [--recompute unit|none] [--tokens 512] [--rows 4] [--rounds 3]

Needs Python's torch, transformers and, with --adapter, peft. A model of about 100 M random weights
is saved by transformers in FOLDER and trained by both: the same rows of random tokens, AdamW,
clipping, the threads of torch's default. --recompute unit is gradient_checkpointing_enable() there.
Prints the seconds of each step, each program's median without the first step of a round, the ratio
of the medians, and the losses of the first step, which must agree. Memory is the peak resident set.
"""
import argparse
import json
import pathlib
import random
import resource
import shutil
import statistics
import subprocess
import sys
import time

RUN = """
[run]
dir = "{folder}/run"
[model]
path = "{folder}/model"
[data]
train = ["{folder}/data.jsonl"]
format = "tokens"
max_tokens = {tokens}
packing = false
shuffle = false
[train]
steps = {steps}
sequences_per_step = {rows}
micro_batch = {rows}
max_grad_norm = 1.0
[optimizer]
lr = 1e-4
[fsdp]
recompute = "{recompute}"
[precision]
compute = "{compute}"
[checkpoint]
every_steps = 0
export = "never"
[device]
kind = "cpu"
"""
ADAPTER = """
[adapter]
kind = "lora"
r = 16
alpha = 32
targets = ["all-linear"]
"""
SIZES = {
    "llama": {"hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 12,
              "num_attention_heads": 12, "num_key_value_heads": 4, "vocab_size": 16384,
              "tie_word_embeddings": False},
    # Three of four layers are gated DeltaNet, in the proportions of the published 0.8B.
    "qwen3_5_text": {"hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 12,
                     "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 256,
                     "vocab_size": 16384, "tie_word_embeddings": True,
                     "linear_num_key_heads": 6, "linear_num_value_heads": 6,
                     "linear_key_head_dim": 128, "linear_value_head_dim": 128},
}


def prepare(options):
    """Writes the model's directory and the rows."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    torch.manual_seed(1)
    config = AutoConfig.for_model(options.family, **SIZES[options.family])
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    print(f"{options.family}: {sum(p.numel() for p in model.parameters()) / 1e6:.1f} M parameters")
    model.save_pretrained(options.folder / "model")
    generator = random.Random(0)
    with open(options.folder / "data.jsonl", "w", encoding="utf-8") as rows:
        for _ in range(64):
            ids = [generator.randrange(config.vocab_size) for _ in range(options.tokens)]
            rows.write(json.dumps({"input_ids": ids, "labels": ids}) + "\n")


def peer(options):
    """Trains with transformers and prints one JSON object."""
    import torch
    from transformers import AutoModelForCausalLM
    dtype = torch.bfloat16 if options.compute == "bf16" else torch.float32
    model = AutoModelForCausalLM.from_pretrained(options.folder / "model", dtype=dtype)
    model.config.use_cache = False
    if options.recompute == "unit":
        model.gradient_checkpointing_enable()
        model.enable_input_require_grads()
    if options.adapter:
        from peft import LoraConfig, get_peft_model
        model = get_peft_model(model, LoraConfig(r=16, lora_alpha=32, target_modules="all-linear",
                                                 task_type="CAUSAL_LM"))
    model.train()
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4, fused=True)
    with open(options.folder / "data.jsonl", encoding="utf-8") as lines:
        rows = [json.loads(line)["input_ids"] for line in lines]
    seconds, losses = [], []
    for step in range(options.steps):
        begin = time.perf_counter()
        chosen = [rows[(step * options.rows + i) % len(rows)] for i in range(options.rows)]
        ids = torch.tensor(chosen)
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        seconds.append(time.perf_counter() - begin)
    print(json.dumps({"seconds": seconds, "losses": losses,
                      "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}))


def ours(options):
    shutil.rmtree(options.folder / "run", ignore_errors=True)
    text = RUN.format(**vars(options)) + (ADAPTER if options.adapter else "")
    (options.folder / "run.toml").write_text(text)
    subprocess.run([options.longshore, "train", str(options.folder / "run.toml")], check=True,
                   stdout=subprocess.DEVNULL)
    text = (options.folder / "run/metrics.jsonl").read_text(encoding="utf-8")
    steps = [line for line in map(json.loads, text.splitlines()) if line["kind"] == "step"]
    return {"seconds": [step["seconds"] for step in steps],
            "losses": [step["loss"] for step in steps],
            "peak": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024}


def theirs():
    child = subprocess.run([sys.executable, *sys.argv, "--peer"], check=True,
                           stdout=subprocess.PIPE, text=True)
    return json.loads(child.stdout.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("longshore")
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--family", choices=sorted(SIZES), default="llama")
    parser.add_argument("--adapter", action="store_true")
    parser.add_argument("--compute", choices=("fp32", "bf16"), default="bf16")
    parser.add_argument("--recompute", choices=("unit", "none"), default="unit")
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peer", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peer:
        peer(options)
        return
    shutil.rmtree(options.folder, ignore_errors=True)
    options.folder.mkdir(parents=True)
    prepare(options)
    medians = {"longshore": [], "transformers": []}
    first = {}
    for round_number in range(options.rounds):
        for name in medians:
            result = ours(options) if name == "longshore" else theirs()
            medians[name].append(statistics.median(result["seconds"][1:]))
            first[name] = result["losses"][0]
            print(f"round {round_number + 1} {name}: "
                  + " ".join(f"{s:.2f}" for s in result["seconds"]), flush=True)
    median = {name: statistics.median(values) for name, values in medians.items()}
    print(f"{options.family} {options.compute} recompute {options.recompute}"
          f"{' lora' if options.adapter else ''}, {options.rows} rows of {options.tokens}: "
          f"longshore {median['longshore']:.2f} s, transformers {median['transformers']:.2f} s, "
          f"{median['transformers'] / median['longshore']:.2f} times as fast; first losses "
          f"{first['longshore']:.6f} {first['transformers']:.6f}")


if __name__ == "__main__":
    main()
