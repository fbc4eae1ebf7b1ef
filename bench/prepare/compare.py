#!/usr/bin/env python3
"""`longshore prepare` against datasets.map with the same tokenizer and two processes, in turns.

    python3 bench/prepare/compare.py build/release/longshore WORK [megabytes] [rounds]

Needs datasets and transformers for the other side (made with datasets 5.2, transformers 5.23,
tokenizers 0.23.3). WORK gets a model directory, the JSONL file and the caches, and is left there.
Prints one JSON object per round and side: seconds, CPU seconds of all its processes, tokens, tokens
per second of either, resident memory of the largest process.
"""

import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import time


def make_rows(path, bytes_wanted):
    """Rows of made-up English of 50 to 2,000 words, from the words of this system's dictionary."""
    generator = random.Random(1)
    text = subprocess.run(["dpkg", "-L", "dict-devil"], capture_output=True, text=True).stdout
    source = [line for line in text.split() if line.endswith("devil.dict.dz")][0]
    words = subprocess.run(["gzip", "-dc"], stdin=open(source, "rb"), capture_output=True).stdout
    words = words.decode("utf-8", "replace").split()
    written = 0
    with open(path, "w") as file:
        while written < bytes_wanted:
            begin = generator.randrange(len(words) - 2000)
            row = json.dumps({"text": " ".join(words[begin:begin + generator.randrange(50, 2000)])})
            written += file.write(row + "\n")


def run(command):
    before = time.time()
    done = subprocess.Popen(command, stdout=subprocess.PIPE)
    out = done.stdout.read().decode()
    _, status, usage = os.wait4(done.pid, 0)
    if status:
        sys.exit(f"failed: {command}")
    figures = {"seconds": round(time.time() - before, 2),
               "cpu_seconds": round(usage.ru_utime + usage.ru_stime, 2),
               "resident_bytes": usage.ru_maxrss * 1024}
    return figures, out


def print_round(number, side, figures, tokens):
    print(json.dumps({"round": number, "side": side, **figures, "tokens": tokens,
                      "tokens_per_second": round(tokens / figures["seconds"]),
                      "tokens_per_cpu_second": round(tokens / figures["cpu_seconds"])}), flush=True)


OTHER = """
import sys, os
from datasets import load_dataset
from transformers import AutoTokenizer
os.environ["TOKENIZERS_PARALLELISM"] = "false"
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
data = load_dataset("json", data_files=sys.argv[2], split="train", cache_dir=sys.argv[3])
data = data.map(lambda rows: tokenizer(rows["text"], return_attention_mask=False), batched=True,
                num_proc=2, remove_columns=["text"])
print(sum(column.value_lengths().to_numpy().sum()
          for column in data.data.column("input_ids").chunks))
"""


def main():
    longshore, work = sys.argv[1], pathlib.Path(sys.argv[2])
    megabytes = int(sys.argv[3]) if len(sys.argv) > 3 else 300
    rounds = int(sys.argv[4]) if len(sys.argv) > 4 else 3
    work.mkdir(parents=True, exist_ok=True)
    rows, model = work / "rows.jsonl", work / "model"
    make_rows(rows, megabytes * 1_000_000)
    if not model.exists():
        sample = work / "sample.jsonl"
        make_rows(sample, 2_000_000)
        subprocess.run([longshore, "init-model", "--vocabulary", "8192", "--text", sample, model],
                       check=True, stdout=subprocess.DEVNULL)
    run_file = work / "run.toml"
    run_file.write_text(f'[run]\ndir = "{work}/run"\n[model]\npath = "{model}"\n[data]\n'
                        f'train = ["{rows}"]\nmax_tokens = 8192\nthreads = 2\n'
                        'overlength = "split"\n'
                        f'add_eos = false\ncache = "{work}/cache"\n[train]\nsteps = 1\n')
    for number in range(rounds):
        shutil.rmtree(work / "cache", ignore_errors=True)
        figures, out = run([longshore, "prepare", str(run_file)])
        print_round(number, "longshore", figures, int(out.split(" tokens,")[0].split()[-1]))
        shutil.rmtree(work / "hf", ignore_errors=True)
        script = work / "other.py"
        script.write_text(OTHER)
        figures, out = run([sys.executable, str(script), str(model), str(rows), str(work / "hf")])
        print_round(number, "datasets.map", figures, int(out.split()[-1]))


main()
