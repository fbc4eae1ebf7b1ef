#!/usr/bin/env python3
"""Makes sample_golden.json here: for the templates in chat_templates, own_templates and
published_templates, and conversations of many turns, what the model sees when it is asked for each
answer, and what it should then write, as digests of token ids.

Needs transformers 5 (made with transformers 5.23.0). Run it in this folder:
    python3 make_sample_goldens.py
published_templates are the chat templates of models as the Python package trl 1.16.0 (Apache
License 2.0) holds them.
"""

import datetime
import json
import pathlib

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoTokenizer
from transformers.utils import chat_template_utils

HERE = pathlib.Path(__file__).parent
DATE = datetime.datetime(2024, 7, 26)
SPECIAL = ["<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|eot_id|>", "<|end|>", "<end_of_turn>",
           "<|return|>", "<|call|>", "<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>",
           "<|end_of_text|>", "<\uff5cend\u2581of\u2581sentence\uff5c>"]


def say(role, content, **more):
    return {"role": role, "content": content, **more}


def user(text):
    return say("user", text)


def assistant(text, **more):
    return say("assistant", text, **more)


def call(name, arguments, **more):
    return {"role": "assistant", "tool_calls": [
        {"id": "call00001", "type": "function",
         "function": {"name": name, "arguments": arguments}}], **more}


def result(text):
    return say("tool", text, tool_call_id="call00001", name="weather")


def parts(*texts):
    return [{"type": "text", "text": text} for text in texts]


# UNASKED is the text that a template adds to every text without being asked for an answer.
# LEFT_OUT holds templates not for conversations, and two whose own marks train more than answers.
UNASKED = {"asks_always": "<|start|>assistant<|middle|>\n"}
LEFT_OUT = ["python_words", "smollm3", "qwen3_training"]
WEATHER = {"type": "function", "function": {
    "name": "weather", "description": "The weather at a place.",
    "parameters": {"type": "object", "properties": {"place": {"type": "string"}},
                   "required": ["place"]}}}
THOUGHT = "<think>\nLet me see: {}\n</think>\n\n{}"

CONVERSATIONS = [
    {"messages": [user("one?"), assistant("1"), user("two?"), assistant("2"), user("three?"),
                  assistant("3")]},
    {"messages": [say("system", "Be brief."), user("one?"), assistant("1"), user("two?"),
                  assistant("2")]},
    {"messages": [user("a?"), assistant(THOUGHT.format("a", "A")), user("b?"),
                  assistant(THOUGHT.format("b", "B")), user("c?"),
                  assistant(THOUGHT.format("c", "C"))]},
    {"messages": [user("a?"), assistant("A", reasoning_content="first"), user("b?"),
                  assistant("B", reasoning_content="second"), user("c?"), assistant("C")]},
    {"messages": [user("Weather in K\u00f6ln and Rome?"),
                  call("weather", {"place": "K\u00f6ln"}, reasoning_content="Two calls."),
                  result("sun"), call("weather", {"place": "Rome"}, reasoning_content="One more."),
                  result("rain"), assistant("Sun, rain.", reasoning_content="Done."),
                  user("Thanks!"), assistant("Welcome.")], "tools": [WEATHER]},
    {"messages": [say("system", "Use tools."), user("Weather?"),
                  call("weather", {"place": "x"}, content="A moment."), result("fog"),
                  assistant("Fog."), user("And there?"), call("weather", {"place": "y"}),
                  result("ice"), assistant("Ice.")], "tools": [WEATHER]},
    {"messages": [say("user", parts("in ", "parts")), say("assistant", parts("whole")),
                  say("user", parts("again")), say("assistant", parts("and ", "again"))]},
    {"messages": [user("  blanks \n"), assistant("\n\n with blanks \n"), user("\u4f60\u597d?"),
                  assistant("\u4e16\u754c \U0001f600"), user("\u0645?"), assistant("caf\u00e9")]},
    {"messages": [user("empty?"), assistant(""), user("full?"), assistant("full")]},
    {"messages": [user("no thoughts"), assistant("none"), user("still?"), assistant("still")],
     "arguments": {"enable_thinking": False}},
    {"messages": [user("same"), assistant("same"), user("same"), assistant("same")]},
    {"messages": [user("two answers"), assistant("one"), assistant("two"), user("and"),
                  assistant("three")]},
    {"messages": [say("developer", "Be kind."), user("q"), assistant("a"), user("r"),
                  assistant("b")]},
    {"messages": [user("q"), assistant("a"), user("r"), assistant("b"), user("unanswered")]},
]


def byte_tokenizer(folder):
    """Bytes and special tokens: texts that begin with the same letters begin with the same ids."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIAL)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(tokenizer.to_str() + "\n")
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>",
              "eos_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n")
    (folder / "config.json").write_text('{"model_type": "llama"}\n')
    return AutoTokenizer.from_pretrained(folder)


def digest(ids):
    """FNV-1a over the four bytes of each number: as short in C++."""
    state = 0xCBF29CE484222325
    for number in ids:
        for byte in number.to_bytes(4, "little"):
            state = ((state ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return f"{state:016x}"


def reads_parts(render):
    """Whether contents in parts are written as their texts; else they are joined for the template,
    which transformers leaves to its user."""
    words = [user("wherefore"), assistant("therefore")]
    try:
        plain = render(words, False)
    except Exception:
        return True
    try:
        return render([say(m["role"], parts(m["content"])) for m in words], False) == plain
    except Exception:
        return False


def joined(messages):
    return [{**m, "content": "".join(part["text"] for part in m["content"])}
            if isinstance(m.get("content"), list) else m for m in messages]


def golden_of(tokenizer, template, unasked, case):
    def render(part, prompt, tools=case.get("tools")):
        return tokenizer.apply_chat_template(
            part, tools=tools, chat_template=template, tokenize=False,
            add_generation_prompt=prompt, **case.get("arguments", {}))

    messages = case["messages"]
    if not reads_parts(lambda part, prompt: render(part, prompt, None)):
        messages = joined(messages)
    try:
        whole = render(messages, False)
    except Exception as error:
        return {"refused": str(error)[:60]}
    answers = []
    for k, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        prompt, after = render(messages[:k], True), render(messages[:k + 1], False)
        after = after.removesuffix(unasked)
        # Some templates end every text with eos, however many messages it has; the model does not
        # write that one.
        open_end = after.removesuffix(tokenizer.eos_token)
        if k + 1 < len(messages) and not whole.startswith(after) and whole.startswith(open_end):
            after = open_end
        ids = tokenizer(prompt, add_special_tokens=False)["input_ids"]
        answer = None
        if after.startswith(prompt):
            text = after.removeprefix(prompt).rstrip(" \t\r\n")
            answer = digest(tokenizer(text, add_special_tokens=False)["input_ids"])
        answers.append([digest(ids), answer])
    return {"answers": answers}


def main():
    class Clock(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return DATE
    chat_template_utils.datetime = Clock
    tokenizer = byte_tokenizer(HERE / "golden" / "bytes")
    goldens = {}
    for folder in ["chat_templates", "own_templates", "published_templates"]:
        for path in sorted((HERE / folder).glob("*.jinja")):
            if path.stem in LEFT_OUT:
                continue
            template = path.read_text()
            unasked = UNASKED.get(path.stem, "")
            cases = [golden_of(tokenizer, template, unasked, case) for case in CONVERSATIONS]
            goldens[f"{folder}/{path.name}"] = cases
            found = [answer for case in cases for answer in case.get("answers", [])]
            print(path.stem, len(found), "answers,", sum(a[1] is None for a in found),
                  "asked otherwise,", sum("refused" in case for case in cases), "refused")
    lines = [f"{json.dumps(name)}: {json.dumps(cases, separators=(',', ':'))}"
             for name, cases in goldens.items()]
    (HERE / "sample_golden.json").write_text(
        '{"conversations": ' + json.dumps(CONVERSATIONS, ensure_ascii=False) +
        ',\n"templates": {\n' + ",\n".join(lines) + "\n}}\n")


main()
