"""Reads the event files of log.tensorboard as TensorBoard does, by itself: records with checksums,
and of protobuf what they hold."""
import pathlib
import struct


def _crc_table():
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


_TABLE = _crc_table()


def masked_crc(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def records(path):
    """The file's records. One that is torn, or whose checksum is wrong, is an error."""
    data, at = path.read_bytes(), 0
    while at < len(data):
        length, length_crc = struct.unpack_from("<QI", data, at)
        if masked_crc(data[at:at + 8]) != length_crc:
            raise ValueError(f"{path}: a wrong checksum of a length at {at}")
        body = data[at + 12:at + 12 + length]
        [crc] = struct.unpack_from("<I", data, at + 12 + length)
        if masked_crc(body) != crc:
            raise ValueError(f"{path}: a wrong checksum at {at}")
        yield body
        at += 16 + length


def fields(message):
    """(number, value) of a message's fields; floats and doubles as such."""
    at = 0

    def varint():
        nonlocal at
        value, shift = 0, 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(message):
        key = varint()
        number, kind = key >> 3, key & 7
        if kind == 0:
            yield number, varint()
        elif kind == 2:
            length = varint()
            yield number, message[at:at + length]
            at += length
        else:
            form, size = {1: ("<d", 8), 5: ("<f", 4)}[kind]
            yield number, struct.unpack_from(form, message, at)[0]
            at += size


def scalars(folder):
    """{tag: {step: value}} of all the files of a run. A file that begins with a restart at a step
    makes that step and later ones forgotten, as TensorBoard has it."""
    found = {}
    for path in sorted(pathlib.Path(folder).iterdir()):
        for record in records(path):
            event = dict(fields(record))
            step = event.get(2, 0)
            if 7 in event:
                for series in found.values():
                    for later in [other for other in series if other >= step]:
                        del series[later]
            for number, value in fields(event.get(5, b"")):
                if number == 1:
                    scalar = dict(fields(value))
                    found.setdefault(scalar[1].decode(), {})[step] = scalar[2]
    return found
