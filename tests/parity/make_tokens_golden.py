#!/usr/bin/env python3
"""Makes tests/parity/golden_tokens: models and tokenizers that get tokens, by transformers.

Needs scripts/dev/venv. Usage: make_tokens_golden.py [case ... | texts]; without arguments all. The
models are those of make_golden.py. Every case of a model is a directory:

  train.jsonl           the model's rows, with ids of the new tokens in some places
  golden.json           the model, its new size, the optimizer, losses and gradient norms of the run
  golden_sketches.json  sketches (sketches.py) of start, the tables after resize_token_embeddings
                        with each new row the mean of the others, and of final, the values after
                        the run

All of it is fp32 on the CPU with eager attention. texts.json has, for tokenizers of
tests/text/golden, the ids and texts that transformers gives after add_tokens; a token that is not
special is one of AddedToken(normalized=False), as Axolotl adds it.
"""
import json
import shutil
import sys
from pathlib import Path

sys.dont_write_bytecode = True
import torch
from tokenizers import AddedToken
from transformers import AutoTokenizer

import make_golden
from sketches import write_sketches

ROOT = make_golden.ROOT.parent / "golden_tokens"
TOKENIZERS = Path(__file__).parents[1] / "text" / "golden"
CASES = {"llama": "llama", "llama-tied": "llama-tied"}
ADDED = 3  # ids

ORDINARY = ["<call>", "zq", "two words", "the"]
SPECIAL = ["<|turn|>", "</s>", "\u00e9\u754c"]
TEXTS = ["", "a<call>b", "<call>", " <call> </s><|turn|>", "azqzq zq Zq", "one two words two",
         "then the there", "<|turn|>user\n\u00e9\u754c\u00e9 \u754c<|turn|", "  <|turn|>  x",
         "<call><call>zq<|turn|></s>"]


def grown(name):
    """The model with a row for each new token: the mean of the others."""
    model = make_golden.load(make_golden.CASES[name], make_golden.ROOT / name)
    tables = [model.get_input_embeddings(), model.get_output_embeddings()]
    means = [table.weight.detach().double().mean(0).float() for table in tables]
    model.resize_token_embeddings(make_golden.VOCABULARY + ADDED, mean_resizing=False)
    with torch.no_grad():
        for table, mean in zip([model.get_input_embeddings(), model.get_output_embeddings()],
                               means):
            assert table.weight.shape[0] == make_golden.VOCABULARY + ADDED
            table.weight[make_golden.VOCABULARY:] = mean
    return model.eval()


def rows_with_tokens(name):
    """The rows of the model; every third id is a new token, and those are trained as others."""
    rows = [json.loads(line) for line in (make_golden.ROOT / name / "train.jsonl").open()]
    for number, row in enumerate(rows):
        for place in range(number % 3, len(row["input_ids"]), 3):
            token = make_golden.VOCABULARY + (number + place) % ADDED
            row["input_ids"][place] = token
            if "labels" in row and row["labels"][place] != -100:
                row["labels"][place] = token
    return rows


def parameters_of(model, tables_only=False):
    return {name: value.detach().clone() for name, value in model.named_parameters()
            if not tables_only or name in ("model.embed_tokens.weight", "lm_head.weight")}


def make_case(name):
    if name == "texts":
        return make_texts()
    directory = ROOT / name
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    rows = rows_with_tokens(name)
    (directory / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    model = grown(name)
    golden = {f"start.{key}": value for key, value in parameters_of(model, True).items()}
    adamw = make_golden.adamw_of(make_golden.CASES[name])
    losses, norms = make_golden.train(model, rows, 0.0, adamw)
    golden.update({f"final.{key}": value for key, value in parameters_of(model).items()})
    write_sketches(golden, directory / "golden_sketches.json")
    facts = {"base": name, "added": ADDED, "vocabulary": make_golden.VOCABULARY + ADDED,
             "adamw": adamw, "runs": {"free": {"loss": losses, "grad_norm": norms}}}
    (directory / "golden.json").write_text(json.dumps(facts, indent=1) + "\n")
    print(f"{name}: loss {losses[0]:.3f} -> {losses[-1]:.3f}, "
          f"norm {min(norms):.2f} .. {max(norms):.2f}")


def make_texts():
    cases = {}
    for name in ["bytes", "gpt2", "llama2", "unigram", "word_piece"]:
        tokenizer = AutoTokenizer.from_pretrained(TOKENIZERS / name)
        before = len(tokenizer)
        tokenizer.add_tokens([AddedToken(text, normalized=False) for text in ORDINARY])
        tokenizer.add_tokens(SPECIAL, special_tokens=True)
        rows = []
        for text in TEXTS:
            ids = tokenizer(text, add_special_tokens=False)["input_ids"]
            rows.append({"text": text, "ids": ids,
                         "decoded": tokenizer.decode(ids, skip_special_tokens=True)})
        cases[name] = {"before": before, "length": len(tokenizer),
                       "tokens": {text: tokenizer.convert_tokens_to_ids(text)
                                  for text in ORDINARY + SPECIAL},
                       "rows": rows}
    ROOT.mkdir(exist_ok=True)
    (ROOT / "texts.json").write_text(json.dumps(
        {"add_tokens": ORDINARY, "add_special_tokens": SPECIAL, "tokenizers": cases},
        indent=1) + "\n")


if __name__ == "__main__":
    make_golden.main([*CASES, "texts"], make_case)
