#!/usr/bin/env python3
"""Makes chat_golden here: what transformers makes of conversations with the templates in
chat_templates, and digests of the ids of random texts.

Needs transformers 5, its tokenizers and jinja2 (made with transformers 5.23.0, tokenizers 0.23.3,
jinja2 3.1.6). Run it in this folder, after make_goldens.py:
    python3 make_chat_goldens.py
"""

import datetime
import json
import pathlib
import random

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer
from transformers.utils import chat_template_utils

HERE = pathlib.Path(__file__).parent
DATE = datetime.datetime(2024, 7, 26)

SPECIAL = ["<s>", "</s>", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>",
           "<|eot_id|>", "<|im_start|>", "<|im_end|>", "<|im_sep|>", "<start_of_turn>",
           "<end_of_turn>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>", "[INST]",
           "[/INST]", "[TOOL_CALLS]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]",
           "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "<|User|>", "<|Assistant|>"]

WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "The weather at a place <now> & \"then\".",
    "parameters": {"type": "object", "properties": {
        "place": {"type": "string", "description": "Ort, z.\u202fB. \u6771\u4eac"},
        "days": {"type": "integer", "minimum": 1, "maximum": 1e-05},
        "units": {"type": "string", "enum": ["C", "F"], "default": None}},
        "required": ["place"]}}}
CLOCK = {"type": "function", "function": {
    "name": "clock", "description": "It's the time", "parameters": {"type": "object",
                                                                   "properties": {}}}}


def user(text):
    return {"role": "user", "content": text}


def system(text):
    return {"role": "system", "content": text}


def assistant(text, **more):
    return {"role": "assistant", "content": text, **more}


def call(name, arguments, text=None, identity="abcdef123"):
    return assistant(text, tool_calls=[{"id": identity, "type": "function", "function": {
        "name": name, "arguments": arguments}}])


def tool(text, identity="abcdef123", name="get_weather"):
    return {"role": "tool", "tool_call_id": identity, "name": name, "content": text}


CONVERSATIONS = [
    {"messages": [user("Hello"), assistant("Hi there!")]},
    {"messages": [system("You are terse."), user("2+2?"), assistant("4"), user("And 3+3?"),
                  assistant("6")]},
    {"messages": [user("  spaces \n"), assistant("\n\n answer with blanks \t\n")]},
    {"messages": [user("\u4f60\u597d, \u043c\u0438\u0440! \U0001f600"),
                  assistant("\u4e16\u754c \U0001f468\u200d\U0001f469\u200d\U0001f467 caf\u00e9!"),
                  user("\u0645\u0631\u062d\u0628\u0627 e\u0301"),
                  assistant("na\u00efve \u2014 ok.")]},
    {"messages": [system("S"), user("Q")], "add_generation_prompt": True},
    {"messages": [user("think"), assistant("<think>\nhmm, <b> 'x'\n</think>\n\nFour.")]},
    {"messages": [user("a"), assistant("b"), user("c"),
                  assistant("<think>\nwhy\n</think>\n\nd"), user("e"), assistant("f")]},
    {"messages": [user("Weather?"), call("get_weather", {"place": "K\u00f6ln", "days": 2}),
                  tool("{\"t\": 21.5, \"sky\": \"\u2600\"}"), assistant("Sunny, 21.5 \u00b0C.")],
     "tools": [WEATHER]},
    {"messages": [system("Use tools."), user("Time & weather?"),
                  call("clock", {}, "Let me look.", "clock0001"),
                  tool("12:00", "clock0001", "clock"),
                  call("get_weather", {"place": "x\"y", "nested": {"list": [1, 2.5, None, True]}}),
                  tool("rain"), assistant("Noon and rain.")], "tools": [WEATHER, CLOCK]},
    {"messages": [user("one"), user("two"), assistant("three")]},
    {"messages": [user("only a question"), assistant("special </s> <|im_end|> inside")]},
    {"messages": [user("no thoughts"), assistant("ok")], "arguments": {"enable_thinking": False}},
    {"messages": [user("ask"), assistant("x" * 50 + "\nlines\n\n\tand tabs"), user("Why?"),
                  assistant("Because it is so.")], "add_generation_prompt": True},
    {"messages": [system("  \u00a0trim me\u2003 "), user("\x1cq\x1f"), assistant("\x1da\x85")]},
    {"messages": [user("nulls"), assistant("fine", tool_calls=None, name=None)]},
]


def chat_tokenizer(folder):
    """Byte-level, with the special tokens that the templates write."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    corpus = (HERE / "make_chat_goldens.py").read_text().splitlines()
    tokenizer.train_from_iterator(corpus, trainers.BpeTrainer(
        vocab_size=500, min_frequency=2, special_tokens=SPECIAL, show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(tokenizer.to_str() + "\n")
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>",
              "eos_token": "</s>", "pad_token": "</s>", "image_token": "<|im_sep|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n")
    (folder / "config.json").write_text('{"model_type": "llama"}\n')


def without_nulls(messages):
    return [{key: value for key, value in message.items() if value is not None}
            for message in messages]


def prefix_mask(tokenizer, template, case, text, encoding):
    """The rule for templates without generation blocks, in the words of this file."""
    mask = [0] * len(encoding["input_ids"])
    messages, tools = without_nulls(case["messages"]), case.get("tools")
    arguments = case.get("arguments", {})

    def render(part, prompt):
        return tokenizer.apply_chat_template(part, tools=tools, chat_template=template,
                                             tokenize=False, add_generation_prompt=prompt,
                                             **arguments)

    for index, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        before = render(messages[:index], True)
        if index + 1 == len(messages):
            after = render(messages, case.get("add_generation_prompt", False))
        else:
            after = render(messages[:index + 1], case.get("add_generation_prompt", False))
        if not text.startswith(after):
            after = after.removesuffix(tokenizer.eos_token)
        if not text.startswith(after) or not after.startswith(before):
            return None
        tokens = [t for t, (begin, end) in enumerate(encoding["offset_mapping"])
                  if begin < len(after) and end > len(before)]
        last = len(tokens)
        while last > 0:
            begin, end = encoding["offset_mapping"][tokens[last - 1]]
            added = tokenizer.added_tokens_decoder.get(encoding["input_ids"][tokens[last - 1]])
            if added is not None and added.special:
                break
            if text[begin:end].strip(" \t\r\n"):
                last = 0
            else:
                last -= 1
        for token in tokens[:last] or tokens:
            mask[token] = 1
    return mask


def render_case(tokenizer, template, case):
    options = {"tools": case.get("tools"), "chat_template": template,
               "add_generation_prompt": case.get("add_generation_prompt", False),
               **case.get("arguments", {})}
    messages = without_nulls(case["messages"])
    try:
        text = tokenizer.apply_chat_template(messages, tokenize=False, **options)
    except Exception as error:  # raised by the template or by its evaluation
        return {"error": str(error)}
    encoding = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    result = {"text": text, "ids": encoding["input_ids"]}
    if "{% generation %}" in template or "{%- generation %}" in template:
        made = tokenizer.apply_chat_template(messages, return_dict=True,
                                             return_assistant_tokens_mask=True, **options)
        assert made["input_ids"] == result["ids"]
        result["mask"] = made["assistant_masks"]
    else:
        try:
            result["mask"] = prefix_mask(tokenizer, template, case, text, encoding)
        except Exception:  # the template refuses a shorter beginning
            result["mask"] = None
    return result


def chat_goldens():
    class Clock(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return DATE
    chat_template_utils.datetime = Clock
    chat_tokenizer(HERE / "golden" / "chat")
    tokenizers = {name: AutoTokenizer.from_pretrained(HERE / "golden" / name)
                  for name in ["chat", "llama2", "unigram"]}
    folder = HERE / "chat_golden"
    folder.mkdir(exist_ok=True)
    (folder / "conversations.json").write_text(
        json.dumps(CONVERSATIONS, ensure_ascii=False, indent=1) + "\n")
    for path in sorted((HERE / "chat_templates").glob("*.jinja")):
        template = path.read_text()
        names = ["chat", "llama2"] if path.stem in ["llama2", "mistral", "zephyr"] else ["chat"]
        golden = {name: [render_case(tokenizers[name], template, case)
                         for case in CONVERSATIONS] for name in names}
        text = json.dumps(golden, ensure_ascii=False, separators=(",", ":"))
        (folder / (path.stem + ".json")).write_text(text.replace('},{"text"', '},\n{"text"') + "\n")
        masks = [r.get("mask") for name in names for r in golden[name]]
        print(path.stem, sum(m is not None for m in masks), "masks,",
              sum("error" in r for name in names for r in golden[name]), "refused")


def fuzzed_text(generator):
    pools = ["abcdefgh the 's 't", " \t\n\r\u00a0\u2003\u200b", "0123456789.,-+e",
             "\u00e9e\u0301\u00c5A\u030a\u00df\u0130\u0131", "<s></s><pad><|mark|><extra>",
             "\u4f60\u597d\u3053\u3093\u0e2a\u0e27\u0645\u0631\U0001f600\u200d\U0001f468",
             "\u2581\x01\x7f\x1c"]
    text = ""
    for _ in range(generator.randrange(1, 12)):
        kind = generator.random()
        if kind < 0.15:
            text += generator.choice(["<s>", "</s>", "<pad>", "<|mark|>", "<extra>", "these"])
        elif kind < 0.25:
            text += chr(generator.choice([generator.randrange(0x20, 0xD800),
                                          generator.randrange(0xE000, 0x110000)]))
        else:
            pool = generator.choice(pools)
            text += "".join(generator.choice(pool) for _ in range(generator.randrange(1, 6)))
    return text


def fnv(state, number):
    """FNV-1a over the four bytes of a number: as short in C++."""
    for byte in number.to_bytes(4, "little"):
        state = ((state ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return state


def fuzz_goldens():
    """Texts once; for each tokenizer a digest of the ids of every block of a hundred texts."""
    generator = random.Random(7)
    texts = [fuzzed_text(generator) for _ in range(10_000)]
    (HERE / "chat_golden" / "fuzz_texts.jsonl").write_text(
        "".join(json.dumps(text, ensure_ascii=False) + "\n" for text in texts))
    digests = {}
    for name in ["gpt2", "llama3", "llama2", "unigram", "flags", "chat"]:
        tokenizer = AutoTokenizer.from_pretrained(HERE / "golden" / name)
        blocks = []
        for first in range(0, len(texts), 100):
            state = 0xCBF29CE484222325
            for text in texts[first:first + 100]:
                ids = tokenizer(text, add_special_tokens=False)["input_ids"]
                for number in [len(ids)] + ids:
                    state = fnv(state, number)
            blocks.append(f"{state:016x}")
        digests[name] = blocks
    (HERE / "chat_golden" / "fuzz_digests.json").write_text(
        json.dumps(digests, separators=(",", ":")).replace('"],', '"],\n') + "\n")


chat_goldens()
fuzz_goldens()
