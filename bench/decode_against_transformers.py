#!/usr/bin/env python3
"""Tokens per second of `longshore generate --in` and of transformers' generate on the CPU, in turn:
bench/decode_against_transformers.py LONGSHORE FOLDER

Models of about 100 million random weights, a llama and a qwen3_5_text, answer the same prompts
greedily, transformers with its cache, both with the same threads: one prompt alone and 16 at a
time, in bf16 and in fp32 (--models, --batches, --dtypes). Each round measures one, then the other.
A figure is the new tokens over the time from the first prompt to the last token: Longshore prints
it; start and loading of weights do not count. Prints the medians of the rounds (--rounds), their
ratio and the median of the ratios of the pairs.

--long measures instead how the cost of a token grows with a text: the time of one answer of 1,000
tokens over that of ten of 100, one at a time, by Longshore.

Needs torch and transformers (scripts/dev/venv).
"""
import argparse
import json
import pathlib
import random
import re
import shutil
import statistics
import subprocess
import sys
import time

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, logging

import runs

VOCABULARY = 32000
COMMON = {"vocab_size": VOCABULARY, "hidden_size": 640, "head_dim": 64, "num_attention_heads": 10,
          "num_key_value_heads": 5, "max_position_embeddings": 4096, "rms_norm_eps": 1e-6,
          "tie_word_embeddings": True, "bos_token_id": None, "eos_token_id": None}
MODELS = {
    "llama": COMMON | {"model_type": "llama", "num_hidden_layers": 17, "intermediate_size": 1792},
    "qwen3_5_text": COMMON | {
        "model_type": "qwen3_5_text", "num_hidden_layers": 16, "intermediate_size": 1536,
        "linear_num_key_heads": 8, "linear_num_value_heads": 16, "linear_key_head_dim": 64,
        "linear_value_head_dim": 64},
}
RUN = """
[run]
dir = "{folder}/run"
[model]
path = "{folder}/model"
[data]
train = ["{folder}/rows.jsonl"]
format = "tokens"
max_tokens = {longest}
cache = "{folder}/cache"
[train]
steps = 1
[precision]
compute = "{dtype}"
[device]
kind = "cpu"
threads = {threads}
"""
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


def prepare(folder, name):
    """Writes a model with random weights and a tokenizer of numbered words."""
    config = dict(MODELS[name])
    config = AutoConfig.for_model(config.pop("model_type"), **config)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.save_pretrained(folder / "model")
    words = {f"w{number}": number for number in range(VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "model" / "tokenizer.json"))
    (folder / "model" / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "w0"}))
    runs.write_rows(folder / "rows.jsonl", VOCABULARY, 16)
    return sum(parameter.numel() for parameter in model.parameters())


def prompts_of(count, length):
    generator = random.Random(0)
    return [[generator.randrange(3, VOCABULARY) for _ in range(length)] for _ in range(count)]


class Longshore:
    def __init__(self, binary, folder, dtype, options):
        self.binary, self.folder = binary, folder
        (folder / "run.toml").write_text(RUN.format(
            folder=folder, dtype=dtype, threads=options.threads,
            longest=options.prompt + options.tokens))

    def speed(self, prompts, tokens):
        """Tokens per second of a run that makes so many tokens for each prompt."""
        asked, answered = self.folder / "prompts.jsonl", self.folder / "answers.jsonl"
        asked.write_text("".join(
            json.dumps({"prompt": " ".join(f"w{token}" for token in prompt)}) + "\n"
            for prompt in prompts))
        for file in self.folder.glob("answers.jsonl*"):
            file.unlink()
        done = subprocess.run(
            [self.binary, "generate", str(self.folder / "run.toml"), "--from", "model",
             "--in", str(asked), "--out", str(answered), "--max-new-tokens", str(tokens)],
            text=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False)
        found = re.search(r"answers, ([\d\s]+) tokens, ([\d.]+) tokens/s; prompts", done.stderr)
        if done.returncode != 0 or found is None:
            sys.exit(done.stderr)
        assert int("".join(found[1].split())) == len(prompts) * tokens, found[0]
        return float(found[2])


class Transformers:
    def __init__(self, folder, dtype, options):
        torch.set_num_threads(options.threads)
        self.model = AutoModelForCausalLM.from_pretrained(
            folder / "model", dtype=DTYPES[dtype]).eval()

    def speed(self, prompts, tokens):
        ids = torch.tensor(prompts)
        begin = time.perf_counter()
        with torch.inference_mode():
            out = self.model.generate(input_ids=ids, attention_mask=torch.ones_like(ids),
                                      do_sample=False, use_cache=True, max_new_tokens=tokens,
                                      pad_token_id=0)
        seconds = time.perf_counter() - begin
        assert out.shape[1] == ids.shape[1] + tokens
        return len(prompts) * tokens / seconds


def compare(folder, dtype, batch, options):
    programs = {"longshore": Longshore(options.longshore, folder, dtype, options),
                "transformers": Transformers(folder, dtype, options)}
    prompts = prompts_of(batch, options.prompt)
    speeds = {name: [] for name in programs}
    for _ in range(options.rounds):
        for name, program in programs.items():
            speeds[name].append(program.speed(prompts, options.tokens))
    ours, theirs = (statistics.median(speeds[name]) for name in programs)
    pairs = [one / other for one, other in zip(speeds["longshore"], speeds["transformers"])]
    print(f"  {dtype}, {batch} at a time: longshore {ours:.1f} tokens/s, "
          f"transformers {theirs:.1f}, ratio {ours / theirs:.2f}, "
          f"of the pairs {statistics.median(pairs):.2f} "
          f"({min(pairs):.2f} to {max(pairs):.2f})", flush=True)


def measure_long(folder, dtype, options):
    options.tokens = 1000
    program = Longshore(options.longshore, folder, dtype, options)
    prompt = prompts_of(1, options.prompt)
    ratios = []
    for _ in range(options.rounds):
        of_short = program.speed(prompt, 100)
        ratios.append(of_short / program.speed(prompt, 1000))
    print(f"  {dtype}: 1,000 tokens take {statistics.median(ratios):.2f} times ten texts of 100 "
          f"({min(ratios):.2f} to {max(ratios):.2f})", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("longshore")
    parser.add_argument("folder", type=pathlib.Path, help="where models are made")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=list(DTYPES))
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 16])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--prompt", type=int, default=32, help="tokens of a prompt")
    parser.add_argument("--tokens", type=int, default=128, help="new tokens of an answer")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--long", action="store_true")
    options = parser.parse_args()
    logging.set_verbosity_error()
    for name in options.models:
        folder = options.folder.resolve() / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        print(f"{name}, {prepare(folder, name) / 1e6:.0f} million weights, {options.threads} "
              f"threads, prompts of {options.prompt} tokens", flush=True)
        for dtype in options.dtypes:
            if options.long:
                measure_long(folder, dtype, options)
                continue
            for batch in options.batches:
                compare(folder, dtype, batch, options)
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
