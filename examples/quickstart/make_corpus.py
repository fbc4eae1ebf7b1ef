#!/usr/bin/env python3
"""Turns the dictionary of Debian's package dict-devil (The Devil's Dictionary by Ambrose Bierce,
1911, public domain) into training data: one row {"text": "HEADWORD, n. Definition ..."} per entry.

    make_corpus.py [--dictionary /usr/share/dictd/devil] [--eval-every 20] DIRECTORY

writes DIRECTORY/devil.jsonl and DIRECTORY/devil_eval.jsonl. Of entries with several sentences it
also makes rows for the two further parts of the quick start: short.jsonl teaches to answer with the
first sentence alone ({"prompt", "completion"}), pairs.jsonl to prefer that to the whole entry
({"prompt", "chosen", "rejected"}). Each has its *_eval.jsonl. Standard library only.
"""

import argparse
import gzip
import json
import pathlib
import re
import sys

# The index writes numbers with these digits, the most significant first.
DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
# Names of poets stand at the right margin, verses four or more columns in.
NAME_INDENT = 30
VERSE_INDENT = 3
SPEAKER = re.compile(r"\s*[A-Z][A-Z ]+:")
# An entry with more than one sentence: its headword and kind of word, the first sentence, the rest.
SENTENCES = re.compile(r"(?P<head>[^a-z]+, [a-z. ]+?\.)(?P<first> [A-Z].{30,}?[.!?])(?P<rest>\s.+)",
                       re.DOTALL)
# These entries are left out, because no model should repeat their language of 1911.
LEFT_OUT = {"african", "minstrel", "negro"}


def number(digits):
    value = 0
    for digit in digits:
        value = value * 64 + DIGITS.index(digit)
    return value


def entries(prefix):
    """The text of every entry, in the order of the book; names with 00 describe the file itself."""
    try:
        data = gzip.open(f"{prefix}.dict.dz", "rb").read()
        index = pathlib.Path(f"{prefix}.index").read_text(encoding="utf-8")
    except OSError as error:
        sys.exit(f"make_corpus: {error}; install dict-devil, or name another dictionary")
    places = set()
    for line in index.splitlines():
        headword, offset, size = line.split("\t")[:3]
        if not headword.startswith("00") and headword not in LEFT_OUT:
            places.add((number(offset), number(size)))
    for offset, size in sorted(places):
        yield data[offset:offset + size].decode("utf-8")


def tidy(line):
    """One line without markup: _emphasis_, {references}, [sic], and two blanks after a sentence."""
    line = re.sub(r"\s*\[sic\]", "", line)
    line = re.sub(r"[_{}]", "", line)
    line = re.sub(r"^([A-Z' -]+),n\.", r"\1, n.", line)
    return re.sub(r"\s+", " ", line).strip()


def indent(line):
    return len(line) - len(line.lstrip())


def is_quoted_prose(lines):
    """Whether indented lines are a quoted tale: the lines of a verse begin with capitals."""
    capitals = sum(line.lstrip(" \"'(-")[:1].isupper() for line in lines)
    return len(lines) >= 2 and capitals < 0.7 * len(lines)


def quoted_prose(lines):
    """The paragraphs of a tale: each opens with a deeper indent, or with who speaks."""
    margin = min(indent(line) for line in lines)
    is_dialogue = any(SPEAKER.match(line) for line in lines)
    prose = []
    for line in lines:
        opens = SPEAKER.match(line) if is_dialogue else indent(line) > margin
        if prose and opens:
            yield tidy(" ".join(prose))
            prose = []
        prose.append(line.strip())
    yield tidy(" ".join(prose))


def quoted(lines):
    """An indented block, with the poet's name last."""
    names = [line for line in lines if indent(line) >= NAME_INDENT]
    lines = [line for line in lines if indent(line) < NAME_INDENT]
    if is_quoted_prose(lines):
        yield from quoted_prose(lines)
    else:
        yield from map(tidy, lines)
    for name in names:
        yield "-- " + tidy(name)


def paragraphs(text):
    """Prose joined to paragraphs; verses and names of poets each on a line of their own."""
    lines = text.splitlines() + [""]
    prose, block = [], []
    for line, following in zip(lines, lines[1:] + [""]):
        opens_prose = indent(line) >= VERSE_INDENT and following.strip() and indent(following) == 0
        in_block = indent(line) >= VERSE_INDENT and not opens_prose
        if prose and (not line.strip() or opens_prose or in_block):
            yield tidy(" ".join(prose))
            prose = []
        if block and not in_block:
            yield from quoted(block)
            block = []
        if in_block:
            block.append(line)
        elif line.strip():
            prose.append(line.strip())


def preferences(texts):
    """Pairs of answers to a headword: the first sentence alone, and the whole entry."""
    for text in texts:
        if found := SENTENCES.fullmatch(text):
            yield {"prompt": found["head"], "chosen": found["first"],
                   "rejected": found["first"] + found["rest"]}


def write(path, rows):
    rows = list(rows)
    content = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    path.write_text(content, encoding="utf-8")
    print(f"{path}: {len(rows)} rows, {len(content)} bytes")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--dictionary", default="/usr/share/dictd/devil")
    parser.add_argument("--eval-every", type=int, default=20)
    parser.add_argument("directory", type=pathlib.Path)
    options = parser.parse_args()

    texts = []
    for entry in entries(options.dictionary):
        text = "\n".join(paragraphs(entry))
        if text:
            texts.append(text)
    held_out = texts[options.eval_every - 1::options.eval_every]
    training = [text for text in texts if text not in set(held_out)]
    options.directory.mkdir(parents=True, exist_ok=True)
    for end, part in (("", training), ("_eval", held_out)):
        write(options.directory / f"devil{end}.jsonl", ({"text": text} for text in part))
        pairs = list(preferences(part))
        write(options.directory / f"pairs{end}.jsonl", pairs)
        write(options.directory / f"short{end}.jsonl",
              ({"prompt": pair["prompt"], "completion": pair["chosen"]} for pair in pairs))


if __name__ == "__main__":
    main()
