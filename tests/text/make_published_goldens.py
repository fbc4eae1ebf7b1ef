#!/usr/bin/env python3
"""Makes tests/text/published: tokenizers of published models, cut to a few hundred merges, and what
transformers makes of texts and conversations with them, as digests. README.md there says whose.

Needs .venv and what scripts/dev/real_tokenizers fetches (made with transformers 5.23.0). Run it in
this folder:
    ../../.venv/bin/python make_published_goldens.py
Where the test differs, scripts/dev/real_tokenizers tests/text/published/NAME says how.
"""
import importlib.machinery
import importlib.util
import json
import pathlib
import shutil
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.dont_write_bytecode = True
loader = importlib.machinery.SourceFileLoader("real", str(ROOT / "scripts/dev/real_tokenizers"))
real = importlib.util.module_from_spec(importlib.util.spec_from_loader("real", loader))
loader.exec_module(real)
questions = real.questions

OUT = HERE / "published"
MERGES, TEXTS, ADDED = 500, 160, 24
# By name: the directory to cut, or a golden folder to copy; the type in config.json; changed keys
# of tokenizer_config.json. Each class that overrides tokenizer.json, and each type that overrides
# the class, occurs once.
DIRECTORIES = {
    "qwen3": ("qwen3", "qwen3", {}),
    "deepseek_v4": ("deepseek_v4", "deepseek_v3", {}),
    "gpt_oss": ("gpt_oss", "gpt_oss", {}),
    "as_gpt2": ("qwen3", "llama", {"tokenizer_class": "GPT2Tokenizer", "chat_template": None}),
    "as_qwen2": ("deepseek_v4", "qwen2", {"tokenizer_class": "LlamaTokenizerFast"}),
    "as_gemma": ("golden/llama2", "gemma3_text", {"tokenizer_class": "GemmaTokenizer",
                                                  "bos_token": None, "eos_token": None}),
    "as_mistral": ("golden/llama2", "mistral", {}),
    "as_phi3": ("golden/llama2_legacy", "phi3", {}),
}


def pair(merge):
    return tuple(merge.split(" ")) if isinstance(merge, str) else tuple(merge)


def cut(tokenizer, config, template, ids_of):
    """`tokenizer`, tokenizer.json, with the merges that spell the samples, the most frequent first,
    and those of its own tokens that the configuration or the template name."""
    model = tokenizer["model"]
    names = {number: token for token, number in model["vocab"].items()}
    made_by = {}
    for rank, merge in enumerate(map(pair, model["merges"])):
        made_by.setdefault("".join(merge), (rank, merge))
    counts = {}
    for text in questions.SAMPLES + [ROOT.joinpath("README.md").read_text()]:
        for number in ids_of(text):
            counts[names.get(number)] = counts.get(names.get(number), 0) + 1
    kept = {}

    def keep(token):
        if token in kept or token not in made_by:
            return
        rank, merge = made_by[token]
        kept[token] = rank
        for half in merge:
            keep(half)
    for token in sorted(counts, key=lambda token: -counts[token]):
        if len(kept) < MERGES:
            keep(token)
    ranks = sorted(kept.values())
    letters = [token for token in model["vocab"] if len(token) == 1]
    known = {token: i for i, token in enumerate(dict.fromkeys(
        letters + ["".join(pair(model["merges"][rank])) for rank in ranks]))}
    words = json.dumps(config, ensure_ascii=False) + template
    added = [token for token in tokenizer["added_tokens"] if token["content"] in words][:ADDED]
    added += [token for token in tokenizer["added_tokens"] if not token["special"]][:4]
    model["vocab"], model["merges"] = known, [model["merges"][rank] for rank in ranks]
    unique = {token["content"]: token for token in added}.values()
    tokenizer["added_tokens"] = [{**token, "id": len(known) + i} for i, token in enumerate(unique)]
    for i, token in enumerate(tokenizer["added_tokens"]):
        token["id"] = known.get(token["content"], len(known) + i)
    return tokenizer


def renumbered(config, tokenizer):
    """The flags of added tokens, which the configuration repeats by id."""
    table = {token["content"]: token for token in config.get("added_tokens_decoder", {}).values()}
    if table:
        config["added_tokens_decoder"] = {
            str(token["id"]): table[token["content"]] for token in tokenizer["added_tokens"]
            if token["content"] in table}
    return config


def without_nulls(config):
    return {key: value for key, value in config.items() if value is not None}


def write(name):
    source, model_type, changes = DIRECTORIES[name]
    folder = OUT / name
    folder.mkdir(parents=True)
    if source.startswith("golden/"):
        origin = HERE / source
        tokenizer = json.loads((origin / "tokenizer.json").read_text())
        config = json.loads((origin / "tokenizer_config.json").read_text())
    else:
        origin = real.directory(source)
        config = json.loads((origin / "tokenizer_config.json").read_text())
        template = origin / "chat_template.jinja"
        read = template.read_text() if template.exists() else ""
        tokenizer = cut(json.loads((origin / "tokenizer.json").read_text()), config, read,
                        real.Theirs(origin).ids)
        config = renumbered(config, tokenizer)
        if read:
            shutil.copy(template, folder)
    config = without_nulls({**config, **changes}) if changes else config
    (folder / "tokenizer.json").write_text(
        json.dumps(tokenizer, ensure_ascii=False, separators=(",", ":")) + "\n")
    (folder / "tokenizer_config.json").write_text(
        json.dumps(config, ensure_ascii=False, indent=1) + "\n")
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}) + "\n")
    return folder


def digest(answer):
    """FNV-1a over the four bytes of each number: as short in C++."""
    if "refused" in answer:
        return None
    state = 0xCBF29CE484222325
    for key in ["ids", "special", "spans", "decoded", "decoded_all", "rendered"]:
        part = answer.get(key, [])
        numbers = (list(part.encode("utf-8", "replace")) if isinstance(part, str)
                   else [end for span in part for end in span] if key == "spans" else part)
        for number in [len(numbers), *numbers]:
            for byte in number.to_bytes(4, "little"):
                state = ((state ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return f"{state:016x}"


def main():
    shutil.rmtree(OUT / "unused", ignore_errors=True)
    for name in DIRECTORIES:
        shutil.rmtree(OUT / name, ignore_errors=True)
    folders = {name: write(name) for name in DIRECTORIES}
    special = sorted(set().union(*(real.Theirs(folder).special() for folder in folders.values())))
    texts = [text[:400] for text in questions.texts(TEXTS, special, real.documents()[:3])]
    lists = {"texts": texts, "conversations": questions.CONVERSATIONS}
    (OUT / "questions.json").write_text(
        "{" + ",\n".join(f'"{key}": [\n' + ",\n".join(map(json.dumps, value)) + "]"
                         for key, value in lists.items()) + "}\n")
    for name, folder in folders.items():
        theirs = real.Theirs(folder)
        chats = questions.CONVERSATIONS if theirs.tokenizer.chat_template else []
        golden = {**theirs.names(), "texts": [digest(theirs.answer({"text": t})) for t in texts],
                  "conversations": [digest(theirs.answer(asked)) for asked in chats]}
        (folder / "golden.json").write_text(json.dumps(golden, separators=(",", ":")) + "\n")
        print(name, len(theirs.tokenizer), "tokens,", len(chats), "conversations,",
              golden["conversations"].count(None), "refused,", len(set(golden["texts"])), "texts")


if __name__ == "__main__":
    main()
