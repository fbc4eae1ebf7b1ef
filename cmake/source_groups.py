"""Says which source files of one target may be compiled as one: source_groups.py FILE...

Prints "number torch|plain file" for each file that shares a group, "- torch|plain file" for one
that is compiled alone. A plain file includes nothing of LibTorch and shares a group with such only.
Headers and templates are most of what a compiler does for a file; a group pays for them once.
Two files share a group only if nothing that one keeps to itself (names in unnamed namespaces,
static functions) is a word of the other, or declared by a header that only the other includes:
then neither can see or hide anything of the other. A file that defines macros is compiled alone.
What is there with CUDA, or without, shares no group with the rest: tests link another instead.
"""
import functools
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)
MAX_LINES = 2500  # of a group: two cores want more than one, and memory has an end

# Comments, raw strings, strings, characters.
STRIPPED = re.compile(r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"'
                      r"|'(?:\\.|[^'\\\n])*'", re.DOTALL)
# Not members: those follow ".", "->" or "::".
WORD = re.compile(r"(?<![\w.>:])[A-Za-z_]\w*|(?<=[^-]>)[A-Za-z_]\w*|(?<=[^:]:)[A-Za-z_]\w*")
OWN_BEGIN, OWN_END = "namespace {", "}  // namespace"
NOT_NAMES = {"alignas", "decltype", "if", "for", "while", "switch", "return", "sizeof",
             "static_assert", "template", "using", "namespace", "operator", "requires", "public",
             "private", "protected", "const", "constexpr", "inline", "static", "struct", "class",
             "enum", "union", "void", "bool", "int", "double", "float", "auto", "char", "std"}
TORCH = re.compile(r"^#include <(?:torch|ATen|c10)/", re.MULTILINE)
VARIANT = re.compile(r"_(no)?cuda\.cpp$")
TEST_MACROS = re.compile(r"(TEST|TEST_F|TEST_P|TYPED_TEST|TYPED_TEST_SUITE"
                         r"|INSTANTIATE_TEST_SUITE_P)\s*\(\s*(\w+)")


class Source:
    def __init__(self, path):
        self.path = path
        text = pathlib.Path(path).read_text(encoding="utf-8")
        self.lines = text.count("\n")
        self.variant = VARIANT.search(str(path)) is not None
        self.alone = re.search(r"^\s*#\s*(define|undef|pragma)\b", text, re.MULTILINE) is not None
        # Comments go, but not the one that ends a namespace.
        text = text.replace(OWN_END, "\x01")
        text = STRIPPED.sub(" ", text)
        self.words = set(WORD.findall(text))
        self.own = own_names(text)
        self.headers = headers_of(path)
        self.torch = any(includes_torch(file) for file in (pathlib.Path(path), *self.headers))


@functools.cache
def includes_torch(path):
    return TORCH.search(path.read_text(encoding="utf-8")) is not None


@functools.cache
def headers_of(path):
    """All of the project's headers that a file includes, also by way of others."""
    headers = set()
    for name in INCLUDE.findall(pathlib.Path(path).read_text(encoding="utf-8")):
        for folder in (ROOT / "src", ROOT):
            if (folder / name).exists():
                headers.add(folder / name)
                headers |= headers_of(folder / name)
                break
    return headers


@functools.cache
def declared_in(header):
    """The names that a header declares at the beginning of a line."""
    text = STRIPPED.sub(" ", header.read_text(encoding="utf-8"))
    names = set()
    for line in text.split("\n"):
        if re.match(r"[A-Za-z_\[]", line) and not line.startswith(("namespace", "template")):
            names |= declared(re.split(r"[={;]", line, maxsplit=1)[0])
    return names - NOT_NAMES


def own_names(text):
    """The names declared in unnamed namespaces and by static: at the beginning of a line there."""
    names = set()
    inside = False
    for line in text.split("\n"):
        if line.startswith(OWN_BEGIN):
            inside = True
        elif line.startswith("\x01"):
            inside = False
        elif (inside and re.match(r"[A-Za-z_\[]", line)) or line.startswith("static "):
            macro = TEST_MACROS.match(line)
            if macro:
                names.add(f"{macro.group(1)} {macro.group(2)}")
                continue
            # All words before the body or the value: more than the name, which does no harm but
            # for types; those are left out by their being followed by another word.
            head = re.split(r"[={;]", line, maxsplit=1)[0]
            names.update(declared(head))
    return names - NOT_NAMES


def declared(head):
    kind = re.match(r"(?:enum class|enum|class|struct|union|using)\s+(?:namespace\s+)?(\w+)", head)
    if kind:
        return {kind.group(1)}
    alias = re.match(r"namespace\s+(\w+)", head)
    if alias:
        return {alias.group(1)}
    call = re.search(r"(\w+)\s*\(", re.sub(r"(alignas|decltype)\s*\([^)]*\)", "", head))
    if call:
        return {call.group(1)}
    words = re.findall(r"\w+", re.sub(r"\[.*", "", head))
    return {words[-1]} if words else set()


def clash(one, other):
    return bool(one.variant != other.variant or one.torch != other.torch
                or one.own & other.words or other.own & one.words
                or hidden(one, other) or hidden(other, one))


def hidden(one, other):
    return any(one.own & declared_in(header) for header in other.headers - one.headers)


def main(paths):
    groups, alone = [], []
    for source in sorted(map(Source, paths), key=lambda source: source.path):
        if source.alone:
            alone.append(source)
            continue
        for group in groups:
            if (sum(member.lines for member in group) + source.lines <= MAX_LINES
                    and not any(clash(source, member) for member in group)):
                group.append(source)
                break
        else:
            groups.append([source])
    alone += [group[0] for group in groups if len(group) == 1]
    for number, group in (*enumerate(groups), ("-", alone)):
        for member in group if len(group) > 1 or number == "-" else []:
            print(number, "torch" if member.torch else "plain", member.path)


if __name__ == "__main__":
    main(sys.argv[1:])
