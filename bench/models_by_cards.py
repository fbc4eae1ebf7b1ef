#!/usr/bin/env python3
"""Which model trains on which card, how much memory that takes, and how fast, by plans alone: in
full, with LoRA, and with LoRA over a base in nf4.

    bench/models_by_cards.py LONGSHORE FOLDER [--models NAME ...] [--cards NAME ...]

For each model, card that `plan --machine` knows and way to train: the fastest plan that
`plan --search` finds among those that fit, with the least of some sizes of host memory, bf16
computation, `split-bf16` states, 16 sequences of 2,048 tokens a step, and a drive that state and
parameters may go to. Nothing is run but the units that say what memory they take. Prints JSON.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import time

TOKENS = 2048
MEMORY = [64, 128, 256]  # GiB that are installed, ascending
CARDS = ["rtx-3060", "rtx-4060-ti-16gb", "rtx-3090", "rtx-4090", "rtx-5090", "h100-sxm"]
LORA = ["--adapter.kind=lora", "--adapter.r=16"]
WAYS = {"full": ["--offload.optimizer=nvme"], "LoRA": LORA,
        "nf4": [*LORA, "--adapter.base=nf4"]}
# Each row: family, vocabulary, hidden, intermediate, layers, heads, kv heads, head_dim, tied.
MODELS = {
    "Llama 3.2 1B": ("llama", 128256, 2048, 8192, 16, 32, 8, 64, True),
    "Llama 3.2 3B": ("llama", 128256, 3072, 8192, 28, 24, 8, 128, True),
    "Llama 3.1 8B": ("llama", 128256, 4096, 14336, 32, 32, 8, 128, False),
    "Qwen3 14B": ("qwen3", 151936, 5120, 17408, 40, 40, 8, 128, False),
    "Qwen3 32B": ("qwen3", 151936, 5120, 25600, 64, 64, 8, 128, False),
}


def config_of(model):
    names = ("model_type", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
             "num_attention_heads", "num_key_value_heads", "head_dim", "tie_word_embeddings")
    return {**dict(zip(names, MODELS[model])), "max_position_embeddings": 131072}


def fastest(binary, model, card, gib, way, folder):
    """The fastest point of a search, or None where nothing fits."""
    command = [binary, "plan", str(folder / model / "config.json"), "--machine", card,
               "--ram", f"{gib}GiB", "--search", "--json",
               f"--data.cache={folder / 'cache'}", f"--data.max_tokens={TOKENS}",
               "--train.sequences_per_step=16", "--fsdp.units=auto",
               '--offload.nvme=["/drive"]', *WAYS[way]]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode == 0:
        return json.loads(done.stdout)[0]
    if done.returncode == 3:
        return None
    sys.exit(f"{' '.join(command)}: exit code {done.returncode}\n{done.stderr[-2000:]}")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary")
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--models", nargs="*", default=list(MODELS))
    parser.add_argument("--cards", nargs="*", default=CARDS)
    options = parser.parse_args()
    binary = str(pathlib.Path(options.binary).resolve())
    options.folder.mkdir(parents=True, exist_ok=True)
    cells = []
    with tempfile.TemporaryDirectory(dir=options.folder) as made:
        folder = pathlib.Path(made)
        for model in options.models:
            (folder / model).mkdir()
            (folder / model / "config.json").write_text(json.dumps(config_of(model)))
            for way in WAYS:
                for card in options.cards:
                    begun = time.monotonic()
                    for gib in MEMORY:
                        point = fastest(binary, model, card, gib, way, folder)
                        if point is not None:
                            break
                    cells.append({"model": model, "card": card, "way": way, "memory_gib": gib,
                                  "point": point})
                    print(f"{model}, {way}, {card}: {time.monotonic() - begun:.1f} s",
                          file=sys.stderr, flush=True)
    print(json.dumps({"memory_gib": MEMORY, "cells": cells}, indent=1))


if __name__ == "__main__":
    main()
