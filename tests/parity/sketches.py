"""Sketches of tensors, which the golden cases hold in place of their values.

A sketch is the Euclidean norm, the place and value of the largest element, and eight sums of all
elements, each with random signs. If a tensor differs from another by d, each sum differs by the
sum of d's elements with those signs: its square is |d|^2 on average, and exactly that if one
element differs. So the root of the mean of the eight squares estimates |d|.

tests/fakes/sketch.cpp reads the file and computes the same. The signs of element i are eight bits
of Philox4x32-10 with the key 0 and the counter i / 16: byte i % 16, one bit for each sum.
"""
import json
import math

PROJECTIONS = 8


def philox4x32(counter, key):
    """The generator of src/base/random.h."""
    low, high = key
    for _ in range(10):
        product0, product1 = 0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]
        counter = [product1 >> 32 ^ counter[1] ^ low, product1 & 0xFFFFFFFF,
                   product0 >> 32 ^ counter[3] ^ high, product0 & 0xFFFFFFFF]
        low, high = low + 0x9E3779B9 & 0xFFFFFFFF, high + 0xBB67AE85 & 0xFFFFFFFF
    return counter


SIGNS = [[] for _ in range(PROJECTIONS)]  # of each sum, by element


def signs(projection, count):
    """The signs of the first elements in one of the sums."""
    while len(SIGNS[0]) < count:
        words = philox4x32([len(SIGNS[0]) // 16, 0, 0, 0], (0, 0))
        for bits in b"".join(word.to_bytes(4, "little") for word in words):
            for bit in range(PROJECTIONS):
                SIGNS[bit].append(-1.0 if bits >> bit & 1 else 1.0)
    return SIGNS[projection]


def sketch_of(values):
    """The norm, the largest element's place and value, and the sums."""
    place = max(range(len(values)), key=lambda i: abs(values[i]))
    sums = [math.fsum(map(float.__mul__, signs(k, len(values)), values))
            for k in range(PROJECTIONS)]
    return [math.sqrt(math.fsum(value * value for value in values)), place, values[place], *sums]


def text_of(numbers):
    return "[" + ",".join(str(n) if isinstance(n, int) else f"{n:.7g}" for n in numbers) + "]"


def write_sketches(tensors, path):
    """Writes sketches of tensors named <kind>.<name>, one name a line: its shape and its kinds."""
    lines = {}
    for whole, tensor in tensors.items():
        kind, name = whole.split(".", 1)
        shape = text_of(list(tensor.shape))
        members = lines.setdefault(name, {"shape": shape})
        assert members["shape"] == shape, whole
        members[kind] = text_of(sketch_of(tensor.flatten().tolist()))
    path.write_text("{\n" + ",\n".join(
        json.dumps(name) + ":{" + ",".join(f'"{key}":{text}' for key, text in members.items()) + "}"
        for name, members in lines.items()) + "\n}\n")
