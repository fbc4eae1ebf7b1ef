"""Mutations of input files: of bytes, and of what JSON, TOML, templates and safetensors consist of.

Each takes bytes and a random.Random and returns bytes; each may give back what it got.
"""
import json
import os
import struct

INTEGERS = [0, -1, 1, 2, 127, 128, 255, 65535, 2**31 - 1, 2**31, -(2**31), 2**32, 2**53, 2**63 - 1,
            2**63, -(2**63), 2**64, 10**30]
TEXTS = ["", "x", "../../outside", "/", "\0", "\x1b[31mred\x1b[0m", "é" * 300, "a" * 100_000,
         "\u202e", "nan", "{{", "%s%n", "\n", "\r", ".", "~", "-1"]
REALS = [0.0, -0.0, 1e308, -1e308, 1e-320, 0.5, 1.5, -1.5]
# As text, because not all of it is JSON.
RAW = ["NaN", "Infinity", "-Infinity", "1e999", "-0", "01", "0x10", "[" * 3000, "{\"a\":" * 2000,
       "\"\\ud800\"", "\"\\u0000\"", "1" * 5000, "tru", "'a'", "//"]


def edge_value(rng):
    kind = rng.randrange(6)
    if kind == 0:
        return rng.choice(INTEGERS)
    if kind == 1:
        return rng.choice(TEXTS)
    if kind == 2:
        return rng.choice(REALS)
    if kind == 3:
        return rng.choice([None, True, False])
    if kind == 4:
        return rng.choice([[], {}, [[]], [{}], {"": ""}, [None] * 1000, [[1, 2], "a"]])
    return rng.randrange(-300, 300)


def flip_bits(data, rng):
    data = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 8, 64])):
        if data:
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(data)


def cut(data, rng):
    return data[:rng.randrange(len(data) + 1)]


def grow(data, rng):
    return data + rng.choice([b"\0" * 4096, b"\xff", data, b"\n", b"}"])


def zero_part(data, rng):
    begin = rng.randrange(len(data) + 1)
    size = rng.choice([1, 8, 512, 4096])
    return data[:begin] + b"\0" * len(data[begin:begin + size]) + data[begin + size:]


def splice(data, rng):
    a, b = sorted(rng.randrange(len(data) + 1) for _ in range(2))
    at = rng.randrange(len(data) + 1)
    return data[:at] + data[a:min(b, a + 4096)] + data[at:]


def drop_part(data, rng):
    begin = rng.randrange(len(data) + 1)
    return data[:begin] + data[begin + rng.choice([1, 4, 64, 4096]):]


def put_integer(data, rng):
    width, letter = rng.choice([(1, "B"), (2, "H"), (4, "I"), (8, "Q")])
    if len(data) < width:
        return data
    at = rng.randrange(0, len(data) - width + 1)
    at -= at % width if rng.random() < 0.7 else 0
    value = rng.choice(INTEGERS) % (1 << (8 * width))
    return data[:at] + struct.pack("<" + letter, value) + data[at + width:]


def put_bytes(data, rng):
    at = rng.randrange(len(data) + 1)
    piece = rng.choice([b"\xff\xfe", b"\x80", b"\xef\xbb\xbf", b"\0", b"\x1b[2J", b"\r\n", b"\"",
                        b"\xed\xa0\x80", b"\x7f"])
    return data[:at] + piece + data[at:]


BYTES = [flip_bits, flip_bits, cut, grow, zero_part, splice, drop_part, put_integer, put_integer,
         put_bytes]


def places(value, path=()):
    """Every place below `value`, as a path of keys."""
    found = []
    if isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, list):
        items = list(enumerate(value))[:200]
    else:
        return found
    for key, inner in items:
        found.append(path + (key,))
        found.extend(places(inner, path + (key,)))
    return found


def change_tree(tree, rng):
    """Changes one place; returns JSON text."""
    spots = places(tree)
    if not spots:
        return json.dumps(edge_value(rng))
    path = rng.choice(spots)
    holder = tree
    for key in path[:-1]:
        holder = holder[key]
    key = path[-1]
    kind = rng.randrange(9)
    if kind <= 2:
        holder[key] = edge_value(rng)
    elif kind == 3 and isinstance(holder[key], (int, float)):
        holder[key] = holder[key] + rng.choice([1, -1, 0.5, 1e18])
    elif kind == 4:
        del holder[key]
    elif kind == 5 and isinstance(holder, dict):
        holder[rng.choice(TEXTS[:12] + ["__proto__"])] = holder.pop(key)
    elif kind == 6 and isinstance(holder, list):
        holder[key:key] = [holder[key]] * rng.choice([1, 2, 300])
    elif kind == 7:
        other = rng.choice(spots)
        source = tree
        for step in other:
            source = source[step]
        holder[key] = json.loads(json.dumps(source))
    else:
        mark = "@here@"
        holder[key] = mark
        return json.dumps(tree).replace(json.dumps(mark), rng.choice(RAW))
    text = json.dumps(tree)
    if kind == 8 and isinstance(holder, dict):
        pair = json.dumps({key: holder.get(key)})[1:-1]
        text = "{" + pair + "," + text.lstrip("{")
    return text


def change_json(data, rng):
    try:
        return change_tree(json.loads(data), rng).encode("utf-8", "surrogatepass")
    except (ValueError, RecursionError, KeyError, TypeError):
        return flip_bits(data, rng)


def change_lines(data, rng):
    """A line of JSON lines, or the order and number of lines."""
    lines = data.split(b"\n")
    at = rng.randrange(len(lines))
    kind = rng.randrange(6)
    if kind <= 2 and lines[at]:
        lines[at] = change_json(lines[at], rng)
    elif kind == 3:
        lines[at:at] = [lines[at]] * rng.choice([1, 50])
    elif kind == 4:
        del lines[at]
    else:
        lines[at] = rng.choice([b"", b"   ", b"null", b"[]", b"{}", b"\xef\xbb\xbf{}", b"x"])
    return b"\n".join(lines)


def change_toml(data, rng):
    lines = data.decode("utf-8", "replace").split("\n")
    settings = [i for i, line in enumerate(lines) if "=" in line]
    at = rng.choice(settings)
    key = lines[at].split("=")[0].strip()
    values = [str(edge_value(rng)).lower() if rng.random() < 0.5 else json.dumps(rng.choice(TEXTS)),
              "[]", "{}", "[1, \"a\"]", "1e999", "nan", "inf", "-inf", "0x7fffffffffffffff",
              "2024-01-01", "\"9999999999TiB\"", "\"1e3GiB\"", "\"-1s\"", "{ a = { b = [] } }",
              "\"\\u0000\"", "[[[[[[]]]]]]", "'''x'''", ""]
    kind = rng.randrange(6)
    if kind <= 2:
        lines[at] = f"{key} = {rng.choice(values)}"
    elif kind == 3:
        lines.insert(at, lines[rng.choice(settings)])
    elif kind == 4:
        lines[at] = f"{key}{rng.choice(['_', '.x', 's'])} = 1"
    else:
        lines.insert(at, rng.choice(["[run]", "[x", "[[data]]", "[a.b]", "= 1", "\"\" = 1"]))
    return "\n".join(lines).encode("utf-8", "surrogatepass")


FRAGMENTS = ["{% for i in range(100000) %}{{ i }}{% endfor %}", "{{ 'a' * 1000000000 }}",
             "{{ messages | length ** 9 }}", "{{ raise_exception('x') }}", "{% set x = x ~ x %}",
             "{{ messages[99].content }}", "{{ messages | tojson | replace('a', 'aaaaaaaa') }}",
             "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "{{ 1 // 0 }}", "{{ 1 / 0 }}",
             "{% generation %}x{% endgeneration %}", "{{ [1] * 100000000 }}", "{% if %}", "{{",
             "{{ 'x' | indent(1000000000) }}", "{{ 9223372036854775807 + 1 }}", "\x1b[2J",
             "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}",
             "{{ ''.join(messages) }}", "{{ messages[-1:0:-1] }}", "{{ strftime_now('%Y') }}"]


def change_template(data, rng):
    text = data.decode("utf-8", "replace")
    at = rng.randrange(len(text) + 1)
    if rng.random() < 0.6:
        return (text[:at] + rng.choice(FRAGMENTS) + text[at:]).encode("utf-8", "surrogatepass")
    return drop_part(data, rng) if rng.random() < 0.5 else splice(data, rng)


def change_safetensors(data, rng):
    if len(data) < 8:
        return flip_bits(data, rng)
    size = struct.unpack("<Q", data[:8])[0]
    kind = rng.randrange(4)
    if kind == 0:
        header = change_json(data[8:8 + size], rng)
        return struct.pack("<Q", len(header)) + header + data[8 + size:]
    if kind == 1:
        return struct.pack("<Q", rng.choice(INTEGERS) % 2**64) + data[8:]
    if kind == 2:  # non-finite weights
        at = 8 + size + 4 * rng.randrange(max(1, (len(data) - 8 - size) // 4))
        return data[:at] + rng.choice([b"\xff" * 4, b"\0\0\x80\x7f", b"\xff\xff\x7f\x7f"]) + \
            data[at + 4:]
    return rng.choice(BYTES)(data, rng)


def change_file(path, rng):
    """Not what is in the file but what it is. Returns what was done."""
    kind = rng.choice(["missing", "empty", "directory", "fifo", "link", "dangling", "sparse"])
    data = path.read_bytes()
    path.unlink()
    if kind == "empty":
        path.write_bytes(b"")
    elif kind == "directory":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "link":
        other = path.parent / (path.name + ".real")
        other.write_bytes(data)
        path.symlink_to(other)
    elif kind == "dangling":
        path.symlink_to("nowhere/at/all")
    elif kind == "sparse":
        with open(path, "wb") as file:
            file.write(data)
            file.truncate(1 << 40)
    return kind


def mutate(path, kinds, rng):
    """Changes the file at `path`; returns what was done."""
    if rng.random() < 0.08:
        return change_file(path, rng)
    structure = {"json": change_json, "lines": change_lines, "toml": change_toml,
                 "template": change_template, "safetensors": change_safetensors}
    data = path.read_bytes()
    names = []
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        change = rng.choice(BYTES)
        if kinds in structure and rng.random() < 0.7:
            change = structure[kinds]
        data = change(data, rng)
        names.append(change.__name__)
    path.write_bytes(data)
    return "+".join(names)
