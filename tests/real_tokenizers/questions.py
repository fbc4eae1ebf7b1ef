"""Texts and conversations to ask a tokenizer and its chat template about, the same in every run.

Of scripts/dev/real_tokenizers and tests/text/make_published_goldens.py.
"""
import random

SAMPLES = [
    "The quick brown fox doesn't jump; it's 3.14 times too LAZY (or isn't it?). They'll say WE'VE.",
    "Der Fl\u00fc\u00dfiggas-Gro\u00dfhandel kostet 1.234,56 \u20ac \u2013 \u201esehr viel\u201c.",
    "L'\u0153uvre na\u00efve du gar\u00e7on co\u00fbte 12\u202f000\u00a0\u20ac\u00a0; o\u00f9 "
    "\u00e7a\u00a0?",
    "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440! "
    "\u0412 1957 \u0433\u043e\u0434\u0443 "
    "\u2014 \u043f\u0435\u0440\u0432\u044b\u0439 \u0441\u043f\u0443\u0442\u043d\u0438\u043a.",
    "\u4f60\u597d\uff0c\u4e16\u754c\u3002\u4eca\u5929\u662f2024\u5e747\u670826\u65e5\uff01"
    "\u597d\u5417\uff1f",
    "\u3053\u3093\u306b\u3061\u306f\u3001\u4e16\u754c\u3002\u30ab\u30bf\u30ab\u30ca\u3068\uff21"
    "\uff22\uff23\u3068\uff76\uff80\uff76\uff85\u3002",
    "\uc548\ub155\ud558\uc138\uc694 \uc138\uacc4, \u1112\u1161\u11ab\u1100\u1173\u11af 123\uac1c.",
    "\u0645\u0631\u062d\u0628\u0627 \u0628\u0627\u0644\u0639\u0627\u0644\u0645\u060c "
    "\u0661\u0662\u0663 \u0648\u0643\u0650\u062a\u064e\u0627\u0628\u064c.",
    "\u05e9\u05c1\u05b8\u05dc\u05d5\u05b9\u05dd \u05e2\u05d5\u05dc\u05dd, 5 \u05d9\u05de\u05d9"
    "\u05dd.",
    "\u0928\u092e\u0938\u094d\u0924\u0947 \u0926\u0941\u0928\u093f\u092f\u093e\u0964 "
    "\u0967\u0968\u0969 \u0915\u094d\u0937\u0924\u094d\u0930\u093f\u092f",
    "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35\u0e0a\u0e32\u0e27\u0e42\u0e25\u0e01 \u0e51\u0e52\u0e53",
    "\u039a\u03b1\u03bb\u03b7\u03bc\u03ad\u03c1\u03b1 \u03ba\u03cc\u03c3\u03bc\u03b5, \u03c2"
    "\u03a3\u03c3.",
    "Xin ch\u00e0o th\u1ebf gi\u1edbi, Ti\u1ebfng Vi\u1ec7t; \u0130stanbul'da \u0131\u015f\u0131k.",
    "def f(x: int) -> str:\n    return f\"{x:>10}\"  # 0x1F\n\n\nif __name__ == '__main__':\n\t"
    "f(1)\n",
    "#include <vector>\n\nint main() {\n  std::vector<int> v{1, 2'000};\n  return v[0] != 1;\n}\n",
    "SELECT a.id, COUNT(*) FROM t AS a WHERE x <> 'it''s' GROUP BY 1;\r\n-- \r\n",
    "<div class=\"a b\">\n  <p>Hi&nbsp;there</p>\n</div>\n{\"a\": [1.5e-3, null, true]}",
    "| a | b |\n|---|---|\n| 1 | **2** |\n\n- [x] done\n  - more\n\n```sh\n$ ls -la | wc\n```\n",
    "$\\sum_{i=1}^{n} x_i^2 \\leq \\int_0^\\infty e^{-t}\\,dt$ and \u2200x\u2208\u211d: x\u00b2"
    "\u22650",
    "https://example.org/a?b=c&d=%20#e user@example.org 192.168.0.1 C:\\dir\\file.txt ~/.x/*.y",
    "\U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466 \U0001f1e9\U0001f1ea"
    "\u2764\ufe0f\U0001f44d\U0001f3fd ok \u263a",
    "one\n\ntwo\n\n\nthree \n four\t\tfive      six\r\n\r\nseven\u3000eight\u2003nine",
    "1234567890 12 123 1234 12345 1,000,000 3.14159 0b101 1e-05 \u00bd \u216b \u2460 \u0968",
    "Don't DON'T don\u2019t we're WE'RE y'all'd've 'tis 's 'S '\u017f o'clock",
]
POOLS = [
    "abcdefghijklmnopqrstuvwxyz the of and 's 't", " \t\n\r\x0b\x0c\u00a0\u2003\u200b\u3000"
    "\u2028\x85",
    "0123456789.,-+e%", "\u00e9e\u0301\u00c5A\u030a\u00df\u0130\u0131\ufb01\u212b\u1e9b\u0323"
    "\u00bd",
    "\u4f60\u597d\u3053\u0e2a\u0e27\u0645\u0631\u05d0\u0928\u094d\uac00\u1100\u1161\u11a8",
    "\U0001f600\u200d\U0001f468\U0001f3fd\ufe0f\u20e3\U0001f1e9", "\x00\x01\x07\x1b\x1c\x1f\x7f"
    "\x80\x9f",
    "\u2581\u0120\u010a\u00b7<>|_[]/\\{}()#@!?*&^$\"'`~=;:", "\ufeff\ufffd\ufffe\U0010ffff"
    "\ue000\u202e\u2060",
]
# Special texts for every tokenizer, which its own handling may get wrong.
EDGES = ["", " ", "  ", "\n", "\n\n", " \n", "\t", "a", " a", "a ", "\u2581", "\u2581\u2581a",
         "\u00a0", "\x00", "\ufeff", "e\u0301", "</s>", "<s>", "<unk>", "<pad>", "<0x41>", "<0x0A>",
         "[INST]", "<|endoftext|>", "<bos>", "a" * 300, " " * 300, "\n" * 70, "= " * 80,
         "\U0001f600" * 40]


def spoiled(generator, token):
    """A special token as it is, or nearly."""
    at = generator.randrange(len(token) + 1)
    return generator.choice([token, token, " " + token, token + " ", token + "\n", token.upper(),
                             token[:at] + token[at + 1:], token[:at] + " " + token[at:], token * 2])


def random_text(generator, special):
    parts = []
    for _ in range(generator.randrange(1, 25)):
        kind = generator.random()
        if kind < 0.15 and special:
            parts.append(spoiled(generator, generator.choice(special)))
        elif kind < 0.3:
            while 0xD800 <= (point := generator.choice(
                    [generator.randrange(0x250), generator.randrange(0x3000),
                     generator.randrange(0x10000), generator.randrange(0x110000)])) < 0xE000:
                pass
            parts.append(chr(point))
        elif kind < 0.4:
            parts.append(generator.choice(" \n\t\r") * generator.randrange(1, 12))
        else:
            pool = generator.choice(POOLS)
            parts.append("".join(generator.choices(pool, k=generator.randrange(1, 10))))
    return "".join(parts)


def natural_text(generator, special, documents):
    parts = []
    for _ in range(generator.randrange(1, 4)):
        source = generator.choice(SAMPLES + documents)
        length = generator.randrange(1, 600)
        begin = generator.randrange(max(1, len(source) - length))
        parts.append(source[begin:begin + length])
        if special and generator.random() < 0.2:
            parts.append(spoiled(generator, generator.choice(special)))
    return generator.choice(["", " ", "\n", "\n\n"]).join(parts)


def texts(count, special, documents=(), seed=1):
    """Half of them random, half natural; `special` are the tokenizer's tokens of their own."""
    generator = random.Random(seed)
    made = (EDGES + SAMPLES)[:count]
    while len(made) < count:
        made.append(random_text(generator, special) if len(made) % 2
                    else natural_text(generator, special, list(documents)))
    return made


def say(role, content, **more):
    return {"role": role, "content": content, **more}


def user(content):
    return say("user", content)


def assistant(content, **more):
    return say("assistant", content, **more)


def call(name, arguments, identity="call00001", **more):
    return {"role": "assistant", **more, "tool_calls": [
        {"id": identity, "type": "function", "function": {"name": name, "arguments": arguments}}]}


def result(content, identity="call00001", name="weather"):
    return say("tool", content, tool_call_id=identity, name=name)


def parts(*contents):
    return [{"type": "text", "text": content} for content in contents]


WEATHER = {"type": "function", "function": {
    "name": "weather", "description": "The weather at a place <now> & \"then\".",
    "parameters": {"type": "object", "properties": {
        "place": {"type": "string", "description": "Ort, z.\u202fB. \u6771\u4eac"},
        "days": {"type": "integer", "minimum": 1, "maximum": 1e-05},
        "units": {"type": "string", "enum": ["C", "F"], "default": None},
        "at": {"type": ["string", "null"]},
        "more": {"type": "array", "items": {"type": "number"}},
        "deep": {"type": "object", "properties": {"x": {"type": "boolean"}}, "required": ["x"]}},
        "required": ["place"]}}}
CLOCK = {"type": "function", "function": {
    "name": "clock", "description": "It's the time",
    "parameters": {"type": "object", "properties": {}}}}
THOUGHT = "<think>\nLet me see: {}\n</think>\n\n{}"

CONVERSATIONS = [
    {"messages": [user("Hello"), assistant("Hi there!")]},
    {"messages": [say("system", "Be terse."), user("2+2?"), assistant("4"), user("3+3?"),
                  assistant("6")]},
    {"messages": [user("  blanks \n"), assistant("\n\n answer with blanks \t\n")]},
    {"messages": [user("\u4f60\u597d, \u043c\u0438\u0440! \U0001f600"),
                  assistant("caf\u00e9 \u2014 ok"),
                  user("\u0645\u0631\u062d\u0628\u0627 e\u0301"),
                  assistant("\U0001f468\u200d\U0001f469")]},
    {"messages": [say("system", "S"), user("Q")], "add_generation_prompt": True},
    {"messages": [user("Q")], "add_generation_prompt": True},
    {"messages": [user("think"), assistant(THOUGHT.format("'x' <b>", "Four."))]},
    {"messages": [user("a"), assistant(THOUGHT.format("a", "A")), user("b"),
                  assistant(THOUGHT.format("b", "B")), user("c"), assistant("C")]},
    {"messages": [user("a"), assistant("A", reasoning_content="first"), user("b"),
                  assistant("B", reasoning_content="second\n")]},
    {"messages": [user("a"), assistant("A", thinking="one"), user("b"),
                  assistant("B", reasoning="two")]},
    {"messages": [user("Weather?"), call("weather", {"place": "K\u00f6ln", "days": 2}),
                  result("{\"t\": 21.5, \"sky\": \"\u2600\"}"), assistant("Sunny.")],
     "tools": [WEATHER]},
    {"messages": [say("system", "Use tools."), user("Time & weather?"),
                  call("clock", {}, "clock0001", content="Let me look."),
                  result("12:00", "clock0001", "clock"),
                  call("weather", {"place": "x\"y", "deep": {"list": [1, 2.5, None, True]}}),
                  result("rain"), assistant("Noon and rain.")], "tools": [WEATHER, CLOCK]},
    {"messages": [user("Weather?"), call("weather", {"place": "x"}, content="",
                                          reasoning_content="Hm"),
                  result("fog"), assistant("Fog.", reasoning_content="Done"), user("Thanks!"),
                  assistant("Welcome.")], "tools": [WEATHER]},
    {"messages": [user("two at once"),
                  {"role": "assistant", "content": "", "tool_calls": [
                      {"id": "aaaaaaaaa", "type": "function",
                       "function": {"name": "clock", "arguments": {}}},
                      {"id": "bbbbbbbbb", "type": "function",
                       "function": {"name": "weather",
                                    "arguments": {"place": "K", "more": [1.0]}}}]},
                  result("1", "aaaaaaaaa", "clock"), result("2", "bbbbbbbbb"), assistant("both")],
     "tools": [WEATHER, CLOCK]},
    {"messages": [user("as text"), call("weather", "{\"place\": \"x\"}"), result("1"),
                  assistant("2")],
     "tools": [WEATHER]},
    {"messages": [user("tools, no call"), assistant("none")], "tools": [WEATHER, CLOCK]},
    {"messages": [user("tools"), assistant("1"), user("asked")], "tools": [CLOCK],
     "add_generation_prompt": True},
    {"messages": [say("user", parts("in ", "parts")), say("assistant", parts("whole"))]},
    {"messages": [say("system", parts("system")), say("user", parts(" q ")),
                  say("assistant", parts("a", "b"))]},
    {"messages": [say("user", [{"type": "image"}, {"type": "text", "text": "what?"}]),
                  assistant("a picture")]},
    {"messages": [user("empty?"), assistant(""), user(""), assistant("full")]},
    {"messages": [user("no thoughts"), assistant("none"), user("still?")],
     "arguments": {"enable_thinking": False}, "add_generation_prompt": True},
    {"messages": [user("no thoughts"), assistant("none")], "arguments": {"enable_thinking": True}},
    {"messages": [user("two answers"), assistant("one"), assistant("two"), user("x"), user("y"),
                  assistant("three")]},
    {"messages": [assistant("I begin."), user("q"), assistant("a")]},
    {"messages": [say("developer", "Be kind."), user("q"), assistant("a")]},
    {"messages": [user("q"), say("system", "late"), assistant("a")]},
    {"messages": [user("special </s> <|im_end|> <end_of_turn> <|eot_id|> inside"),
                  assistant("[/INST]")]},
    {"messages": [user("null"), assistant(None, tool_calls=None, name=None)]},
    {"messages": [user("lone"), say("narrator", "who?"), assistant("a")]},
    {"messages": [say("system", "only")]},
    {"messages": [say("system", "  \u00a0trim me\u2003 "), user("\x1cq\x1f"),
                  assistant("\x1da\x85\u200b")]},
    {"messages": [user("x" * 50 + "\nlines\n\n\tand tabs"), assistant("{{ 1 + 1 }} {% raw %}")]},
    {"messages": [user("date?"), assistant("1"), user("more")], "add_generation_prompt": True,
     "arguments": {"date_string": "1 Jan 2020", "builtin_tools": ["brave_search"],
                   "reasoning_effort": "high", "model_identity": "A model."}},
]
