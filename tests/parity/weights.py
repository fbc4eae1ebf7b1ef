#!/usr/bin/env python3
"""Weights of golden models whose folders hold no weights, but say in weights.json how to draw them.

    weights.py CASE FOLDER    copies a case's folder and writes its model.safetensors there

weights.json has a key and, for each tensor of the file in order, [shape, mean, deviation] or
[shape, mean, deviation, first]. Element i of tensor n is mean + deviation * noise. The noise is the
sum of four uniform numbers less their mean, divided by their deviation: the 22 highest bits of the
four words of Philox4x32-10 for the counter (i, n, 0, 0) and the key (key, 0). `first` is of the
first column: a number that is added to it, or a list of its values. `sum` is over all values of the
file: the bits of the i-th as an integer, times 2i + 1, modulo 2^63. Each reader checks it.

tests/fakes/golden_weights.cpp draws the same, to the bit: each product is exact in fp64.
"""
import atexit
import json
import math
import shutil
import struct
import sys
import tempfile
from pathlib import Path

from sketches import philox4x32

UNIT = float.fromhex("0x1.bb67ae8584caap-22")  # sqrt(3) / 2^22


def fp32(value):
    return struct.unpack("<f", struct.pack("<f", value))[0]


def draw(key, number, shape, mean, deviation, first=None):
    """The tensor's values as fp32, row after row."""
    factor, columns, values = fp32(deviation * UNIT), math.prod(shape[1:]), []
    for i in range(math.prod(shape)):
        words = philox4x32([i, number, 0, 0], (key, 0))
        value = mean + (sum(word >> 10 for word in words) - (1 << 23)) * factor
        if first is not None and i % columns == 0:
            value = first[i // columns] if isinstance(first, list) else value + first
        values.append(value)
    return struct.pack(f"<{len(values)}f", *values)


def draw_all(recipe):
    """The bytes of all tensors, one after another."""
    return b"".join(draw(recipe["key"], number, *tensor)
                    for number, tensor in enumerate(recipe["tensors"].values()))


def sum_of(values):
    words = struct.unpack(f"<{len(values) // 4}I", values)
    return sum(word * (2 * i + 1) for i, word in enumerate(words)) % (1 << 63)


def write_weights(recipe, path):
    """Writes the file that the recipe describes."""
    header, end, values = {"__metadata__": {"format": "pt"}}, 0, draw_all(recipe)
    assert sum_of(values) == recipe["sum"], path
    for name, (shape, *_) in recipe["tensors"].items():
        begin, end = end, end + 4 * math.prod(shape)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + values)


def write_recipe(recipe, path):
    tensors = ",\n".join(json.dumps(name) + ":" + json.dumps(tensor, separators=(",", ":"))
                         for name, tensor in recipe["tensors"].items())
    path.write_text(f'{{"key":{recipe["key"]},"sum":{recipe["sum"]},'
                    f'"tensors":{{\n{tensors}\n}}}}\n')


def copy_with_weights(case, folder):
    """Copies a golden case's folder; the copy is a model with its weights."""
    shutil.copytree(case, folder, dirs_exist_ok=True)
    recipe = Path(folder) / "weights.json"
    if recipe.exists():
        write_weights(json.loads(recipe.read_text()), Path(folder) / "model.safetensors")


def with_weights(case):
    """The case's folder, or a copy with its weights that lasts as long as this process."""
    if not (case / "weights.json").exists():
        return case
    folder = Path(tempfile.mkdtemp(prefix="longshore-golden-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    copy_with_weights(case, folder / case.name)
    return folder / case.name


if __name__ == "__main__":
    copy_with_weights(sys.argv[1], sys.argv[2])
