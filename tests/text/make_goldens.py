#!/usr/bin/env python3
"""Makes tests/text/golden: small tokenizers of every kind, and what transformers makes of texts.

Needs transformers 5 and its tokenizers (made with 5.23.0 and 0.23.3). Run it in this folder:
    python3 make_goldens.py golden
Unigram and WordPiece learn a little differently each time.
"""

import json
import pathlib
import random
import sys

from tokenizers import (AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers,
                        processors, trainers)
from transformers import AutoTokenizer

CORPUS = [
    "ABSURDITY, n. A statement or belief manifestly inconsistent with one's own opinion.",
    "The quick brown fox jumps over the lazy dog; the dog doesn't mind, he's asleep.",
    "def step(x):\n    return x + 1  # one more\n\n\nprint(step(41))\n",
    "In 1911 there were 1,024 of them, 3.14159 times as many as in 1906.",
    "na\u00efve caf\u00e9 \u2014 \u201cquoted\u201d \u20ac5, \u4f60\u597d\u4e16\u754c, \u3053\u3093"
    "\u306b\u3061\u306f, \u043f\u0440\u0438\u0432\u0435\u0442, \u0645\u0631\u062d\u0628\u0627",
    "a aa aaa aaaa aaaaa the then there these those that this them they",
]

TEXTS = [
    "", " ", "  ", "\n", "a", " a", "a ", "Hello, world!", "  two  spaces  ",
    "tab\tand\r\nCRLF\r\n",
    "don't we'll I'M they've", "1234567890 3.14 1e-05", "def f(x):\n    return x\n\n\n",
    "na\u00efve caf\u00e9 re\u0301sume\u0301 A\u030a", "\u4f60\u597d\uff0c\u4e16\u754c\u3002",
    "\u043f\u0440\u0438\u0432\u0435\u0442 \u043c\u0438\u0440", "\u0645\u0631\u062d\u0628\u0627",
    "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35", "\U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467!",
    "\u00a0nbsp\u2003em\u200bzero\u3000wide", "\x01\x1c\x7f\x85", "\ufeffmark", "\u2581meta\u2581",
    "<s>begin</s> end", "a <|mark|> b<|mark|>c", "a  <pad>  b", "<|MARK|> x<extra>y",
    "x" * 70, "the there these those", "ABSURDITY, n. A statement", "</s>", "\ufffd\U0010ffff",
]


def trained(tokenizer, trainer):
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def byte_level_bpe(pre_tokenizer, **model):
    tokenizer = Tokenizer(models.BPE(**model))
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    return trained(tokenizer, trainers.BpeTrainer(
        vocab_size=420, min_frequency=2, special_tokens=["<s>", "</s>"], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))


def gpt2():
    return byte_level_bpe(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)), {
        "tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>"}


def llama3():
    pattern = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
               r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
    from tokenizers import Regex
    split = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(pattern), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer = byte_level_bpe(split, ignore_merges=True)
    tokenizer.add_special_tokens(["<|mark|>"])
    tokenizer.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s> $B",
                                      special_tokens=[("<s>", tokenizer.token_to_id("<s>"))])])
    return tokenizer, {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>",
                       "eos_token": "</s>", "pad_token": "<pad>",
                       "extra_special_tokens": ["<extra>"], "add_bos_token": False}


def llama2():
    """The class LlamaTokenizer replaces normalizer and pre-tokenizer of the file."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([
        normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    trained(tokenizer, trainers.BpeTrainer(
        vocab_size=480, show_progress=False,
        special_tokens=["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)]))
    spec = json.loads(tokenizer.to_str())
    spec["added_tokens"] = [t for t in spec["added_tokens"] if t["id"] < 3]
    tokenizer = Tokenizer.from_str(json.dumps(spec))
    tokenizer.decoder = decoders.Sequence([
        decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(),
        decoders.Strip(" ", 1, 0)])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)])
    return tokenizer, {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>",
                       "eos_token": "</s>", "unk_token": "<unk>", "legacy": False}


def llama2_legacy():
    tokenizer, config = llama2()
    return tokenizer, {**config, "legacy": True, "pad_token": "<pad>"}


def unigram():
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence([
        normalizers.NFKC(), normalizers.Replace("``", '"')])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trained(tokenizer, trainers.UnigramTrainer(
        vocab_size=120, show_progress=False, unk_token="<unk>",
        special_tokens=["<pad>", "</s>", "<unk>"]))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 1)])
    return tokenizer, {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>",
                       "pad_token": "<pad>", "unk_token": "<unk>"}


def word_piece():
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    trained(tokenizer, trainers.WordPieceTrainer(vocab_size=200, show_progress=False,
                                                 special_tokens=["[UNK]", "[CLS]", "[SEP]"]))
    tokenizer.enable_padding(length=8, pad_token="[UNK]")
    tokenizer.enable_truncation(12)
    return tokenizer, {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "[UNK]"}


def flags():
    """added_tokens_decoder overrides the flags that tokenizer.json gives its added tokens."""
    tokenizer, config = gpt2()
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.add_tokens([AddedToken("<|mark|>", normalized=True), AddedToken("<extra>")])
    ids = {content: tokenizer.token_to_id(content) for content in ["<|mark|>", "<s>", "</s>"]}
    config["added_tokens_decoder"] = {
        str(ids["<|mark|>"]): {"content": "<|mark|>", "lstrip": True, "rstrip": True,
                               "normalized": False, "single_word": False, "special": True},
        str(ids["<s>"]): {"content": "<s>", "lstrip": False, "rstrip": True, "normalized": False,
                          "single_word": False, "special": True},
        str(ids["</s>"]): {"content": "</s>", "lstrip": True, "rstrip": False,
                           "normalized": False, "single_word": False, "special": True}}
    config["pad_token"] = {"__type": "AddedToken", "content": "<pad>", "lstrip": True,
                           "rstrip": False, "normalized": False, "single_word": False}
    config["image_token"] = "these"
    return tokenizer, config


def special_map():
    """Names in the older special_tokens_map.json, none in tokenizer_config.json."""
    tokenizer, _ = gpt2()
    return tokenizer, {"tokenizer_class": "PreTrainedTokenizerFast"}


def byte_spans(tokenizer, text, encoding):
    spans = []
    for begin, end in encoding.offsets:
        spans.append([len(text[:begin].encode()), len(text[:end].encode())])
    return spans


def case(folder, build):
    tokenizer, config = build()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(tokenizer.to_str() + "\n")
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n")
    (folder / "config.json").write_text('{"model_type": "llama"}\n')
    if build is special_map:
        names = {"bos_token": "<s>", "eos_token": {"content": "</s>", "lstrip": False,
                 "rstrip": True, "normalized": False, "single_word": False},
                 "pad_token": "<pad>"}
        (folder / "special_tokens_map.json").write_text(json.dumps(names) + "\n")
    loaded = AutoTokenizer.from_pretrained(folder)
    rows = []
    for text in TEXTS + fuzzed():
        plain = loaded.backend_tokenizer.encode(text, add_special_tokens=False)
        special = loaded(text)["input_ids"]
        if build is not word_piece:  # its file truncates a bare encode
            assert loaded(text, add_special_tokens=False)["input_ids"] == plain.ids
        plain_ids = loaded(text, add_special_tokens=False)["input_ids"]
        row = {"text": text, "ids": plain_ids, "special": special,
               "decoded": loaded.decode(special, skip_special_tokens=True),
               "decoded_all": loaded.decode(special, skip_special_tokens=False)}
        if build is not word_piece:
            row["spans"] = byte_spans(loaded, text, plain)
        rows.append(row)
    lengths = {"vocabulary_size": len(loaded), "bos": loaded.bos_token_id,
               "eos": loaded.eos_token_id, "pad": loaded.pad_token_id}
    golden = {**lengths, "rows": rows}
    (folder / "golden.json").write_text(json.dumps(golden, separators=(",", ":")) + "\n")


def fuzzed():
    """More texts, random: how many is the second argument."""
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    generator = random.Random(1)
    pools = ["abcdefgh the 's 't", " \t\n\r\u00a0\u2003\u200b", "0123456789.,-+e",
             "\u00e9e\u0301\u00c5A\u030a\u00df\u0130\u0131", "<s></s><pad><|mark|><extra>",
             "\u4f60\u597d\u3053\u3093\u0e2a\u0e27\u0645\u0631\U0001f600\u200d\U0001f468",
             "\u2581\x00\x01\x7f\x1c"]
    texts = []
    for _ in range(count):
        text = ""
        for _ in range(generator.randrange(1, 12)):
            if generator.random() < 0.15:
                text += generator.choice(["<s>", "</s>", "<pad>", "<|mark|>", "<extra>", "these"])
            elif generator.random() < 0.1:
                text += chr(generator.choice([generator.randrange(0x20, 0xD800),
                                              generator.randrange(0xE000, 0x110000)]))
            else:
                pool = generator.choice(pools)
                text += "".join(generator.choice(pool) for _ in range(generator.randrange(1, 6)))
        texts.append(text)
    return texts


def learned(folder):
    """What the trainer of src/text must learn from the same documents."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True)
    tokenizer.decoder = decoders.ByteLevel()
    trained(tokenizer, trainers.BpeTrainer(
        vocab_size=400, min_frequency=2, special_tokens=["<s>", "</s>"], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="$A:0 $B:1", special_tokens=[("<s>", 0)])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(tokenizer.to_str() + "\n")
    (folder / "corpus.json").write_text(json.dumps(CORPUS) + "\n")


def main():
    root = pathlib.Path(sys.argv[1])
    for build in [gpt2, llama3, llama2, llama2_legacy, unigram, word_piece, flags, special_map]:
        case(root / build.__name__, build)
    learned(root / "learned")


main()
