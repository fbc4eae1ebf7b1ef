#!/usr/bin/env python3
"""Which model trains on which card with how much memory, and how fast, by plans alone.

    bench/models_by_cards.py LONGSHORE FOLDER [--models NAME ...] [--cards NAME ...]

For each model, card of config/machines and free memory of the host: the fastest plan that
`plan --search` finds among those that fit, with bf16 computation, `split-bf16` states, 16
sequences of 2,048 tokens a step, and a drive that state and parameters may go to. Nothing is run
but the units that say what memory they take. Prints JSON.
"""
import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
TOKENS = 2048
MEMORY = [256, 128, 64, 32]  # GiB, descending
CARDS = ["rtx-4060-ti-16gb", "rtx-3090", "rtx-4090", "rtx-5090", "a100-80gb",
         "h100-sxm", "2x-rtx-4090"]
# Each row: family, vocabulary, hidden, intermediate, layers, heads, kv heads, head_dim, tied.
MODELS = {
    "Qwen3 0.6B": ("qwen3", 151936, 1024, 3072, 28, 16, 8, 128, True),
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


def with_memory(card, gib, folder):
    text = (ROOT / f"config/machines/{card}.toml").read_text()
    text = re.sub(r'(\[host\][^\[]*?memory = )"[^"]*"', rf'\1"{gib}GiB"', text, count=1)
    text = re.sub(r"^free = .*\n", "", text, flags=re.M)  # the size is what is free
    path = folder / f"{card}-{gib}.toml"
    path.write_text(text)
    cards = sum(int(count) for count in re.findall(r"\[\[gpu\]\][^\[]*?count = (\d+)", text))
    return path, max(cards, text.count("[[gpu]]"))


def fastest(binary, model, machine, ranks, folder):
    """The fastest point of a search, or None where nothing fits."""
    command = [binary, "plan", str(folder / model / "config.json"), "--machine", str(machine),
               "--search", "--json", "--ranks", str(ranks), "--ranks-per-node", str(ranks),
               f"--data.cache={folder / 'cache'}", f"--data.max_tokens={TOKENS}",
               "--train.sequences_per_step=16", "--fsdp.units=auto", "--offload.optimizer=nvme",
               '--offload.nvme=["/drive"]']
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
            for card in options.cards:
                point = None
                for gib in MEMORY:
                    begun = time.monotonic()
                    machine, ranks = with_memory(card, gib, folder)
                    # A plan that needs less than this memory is still the fastest.
                    room = gib * 2**30 / ranks
                    if gib == MEMORY[0] or (point and point["host_bytes"] > 0.9 * room):
                        point = fastest(binary, model, machine, ranks, folder)
                    cells.append({"model": model, "card": card, "memory_gib": gib, "point": point})
                    print(f"{model}, {card}, {gib} GiB: {time.monotonic() - begun:.1f} s",
                          file=sys.stderr, flush=True)
    print(json.dumps({"tokens_per_step": 16 * TOKENS, "cells": cells}, indent=1))


if __name__ == "__main__":
    main()
