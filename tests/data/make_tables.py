#!/usr/bin/env python3
"""Makes tables here: the same rows as JSONL and as Parquet, as different programs write it, and
files that claim or become more than they should.

Needs pyarrow, polars and duckdb (made with pyarrow 26.0.1, polars 2.1.0, duckdb 2.0.0). Run it in
this folder: python3 make_tables.py
"""

import json
import pathlib

import duckdb
import polars
import pyarrow
import pyarrow.parquet

HERE = pathlib.Path(__file__).parent / "tables"

ROWS = [
    {"messages": [{"role": "user", "content": "caf\u00e9 \u4f60\u597d \U0001f600"},
                  {"role": "assistant", "content": "a \"quoted\" line\nand a second\t\u0001 \\"}],
     "id": 1, "score": 0.5, "good": True, "tags": ["a", "b"]},
    {"messages": [{"role": "system", "content": "Be brief."},
                  {"role": "user", "content": "?"},
                  {"role": "assistant", "content": "!"}],
     "id": -2, "score": None, "good": None, "tags": []},
    {"messages": [{"role": "user", "content": "x" * 300}, {"role": "assistant", "content": "y"}],
     "id": 2**40, "score": 1e300, "good": False, "tags": None},
    {"messages": [{"role": "user", "content": None, "name": "n"},
                  {"role": "assistant", "content": ""}],
     "id": None, "score": -0.25, "good": True, "tags": ["c", None]},
]
MESSAGE = pyarrow.struct([("role", pyarrow.string()), ("content", pyarrow.string()),
                          ("name", pyarrow.string())])
SCHEMA = pyarrow.schema([("messages", pyarrow.list_(MESSAGE)), ("id", pyarrow.int64()),
                         ("score", pyarrow.float64()), ("good", pyarrow.bool_()),
                         ("tags", pyarrow.list_(pyarrow.string()))])


def without_nulls(value):
    """No table tells a member that is null from one that is not there."""
    if isinstance(value, dict):
        return {k: without_nulls(v) for k, v in value.items() if v is not None}
    if isinstance(value, list):
        return [without_nulls(v) for v in value]
    return value


def write_same_rows():
    rows = [dict(row, id=row["id"] if row["id"] != 1 else i) for i in range(5) for row in ROWS]
    lines = [json.dumps(without_nulls(row), ensure_ascii=False) + "\n" for row in rows]
    (HERE / "rows.jsonl").write_text("".join(lines), encoding="utf-8")
    table = pyarrow.Table.from_pylist(rows, schema=SCHEMA)

    def write(name, **options):
        pyarrow.parquet.write_table(table, HERE / f"{name}.parquet", **options)

    write("snappy", row_group_size=7)
    write("plain", compression="none", use_dictionary=False)
    write("zstd_v2", compression="zstd", data_page_version="2.0")
    write("gzip", compression="gzip")
    write("lz4", compression="lz4", data_page_version="2.0")
    write("small_pages", compression="snappy", use_dictionary=False, data_page_size=1,
          write_batch_size=3)
    texts = ["messages.list.element.content", "messages.list.element.role"]
    write("delta", compression="zstd", use_dictionary=False,
          column_encoding={texts[0]: "DELTA_BYTE_ARRAY", texts[1]: "DELTA_LENGTH_BYTE_ARRAY",
                           "id": "DELTA_BINARY_PACKED", "score": "BYTE_STREAM_SPLIT"})
    write("brotli", compression="brotli")
    polars.from_arrow(table).write_parquet(HERE / "polars.parquet", row_group_size=6)
    duckdb.sql("copy (from 'tables/snappy.parquet') to 'tables/duckdb.parquet' (compression zstd)")


def write_empty_groups():
    """Row groups of 0 rows are first, between others and last; their columns have no pages."""
    schema = pyarrow.schema([("text", pyarrow.string()), ("id", pyarrow.int64()),
                             ("tags", pyarrow.list_(pyarrow.string()))])
    rows = [{"text": letter * 3, "id": i, "tags": ["x"] * i} for i, letter in enumerate("abcd")]

    def write(name, groups, **options):
        with pyarrow.parquet.ParquetWriter(HERE / f"{name}.parquet", schema, **options) as writer:
            for group in groups:
                writer.write_table(pyarrow.Table.from_pylist(group, schema=schema))

    write("empty_groups", [[], rows[:2], [], rows[2:], []])
    write("empty_groups_plain", [[], rows[:2], [], rows[2:], []], use_dictionary=False,
          compression="none")
    write("no_rows", [[]])


def write_pairs():
    """Pairs in the schema of ultrafeedback_binarized."""
    def talk(*turns):
        return [{"role": role, "content": content} for role, content in turns]

    rows = []
    for question, good, bad in (("q?", "yes", "no"), ("caf\u00e9", "\u00e9", "e")):
        asked = ("user", question)
        chosen = talk(asked, ("assistant", good))
        rows.append({"prompt": question, "prompt_id": "f" * 64, "chosen": chosen,
                     "rejected": talk(asked, ("assistant", bad)), "messages": chosen,
                     "score_chosen": 8.5, "score_rejected": 8.0})
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
    (HERE / "pairs.jsonl").write_text("".join(lines), encoding="utf-8")
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), HERE / "pairs.parquet")


JSON_ROWS = [
    {"prompt": [{"role": "user", "content": "q\n"}],
     "chosen": [{"role": "assistant", "content": "a"}],
     "rejected": [{"role": "assistant", "content": "b"}],
     "messages": [{"role": "user", "content": "q"},
                  {"role": "assistant", "content": None, "tool_calls": [
                      {"function": {"name": "f", "arguments": {"z": 2**63, "a": [0.1, None]}}}]}],
     "nested": {"inner": {"x": "1"}}, "input_ids": [5, 6]},
    {"prompt": None, "chosen": "text", "rejected": [], "messages": [], "nested": {},
     "input_ids": None}]


def write_json_columns():
    """Columns of JSON, as `datasets` 4.8 writes those of its type Json(): alone, in a list and in a
    struct. In json_named.parquet only the metadata of `datasets` says what they are."""
    def text(value):
        return None if value is None else json.dumps(value, indent=1)

    def table(kind):
        names = ["prompt", "chosen", "rejected", "input_ids"]
        columns = {n: pyarrow.array([text(r[n]) for r in JSON_ROWS], pyarrow.string()).cast(kind)
                   for n in names}
        elements = [text(m) for r in JSON_ROWS for m in r["messages"]]
        columns["messages"] = pyarrow.ListArray.from_arrays(
            [0, 2, 2], pyarrow.array(elements, pyarrow.string()).cast(kind))
        inner = pyarrow.array(
            [text(r["nested"].get("inner")) for r in JSON_ROWS], pyarrow.string())
        columns["nested"] = pyarrow.StructArray.from_arrays([inner.cast(kind)], ["inner"])
        return pyarrow.table(columns)

    typed = {"_type": "Json"}
    features = {n: typed for n in ["prompt", "chosen", "rejected", "input_ids"]}
    features |= {"messages": {"feature": typed, "_type": "List"}, "nested": {"inner": typed}}
    named = table(pyarrow.string()).replace_schema_metadata(
        {"huggingface": json.dumps({"info": {"features": features}})})
    pyarrow.parquet.write_table(named, HERE / "json_named.parquet")
    pyarrow.parquet.write_table(table(pyarrow.json_(pyarrow.string())),
                                HERE / "json_columns.parquet")
    lines = [json.dumps({n: v for n, v in row.items() if v is not None}) for row in JSON_ROWS]
    (HERE / "json_columns.jsonl").write_text("".join(line + "\n" for line in lines))


def zigzag(value):
    value <<= 1
    out = b""
    while value > 0x7f:
        out += bytes([value & 0x7f | 0x80])
        value >>= 7
    return out + bytes([value])


def write_teacher():
    """Rows of token ids with the tokens of a teacher, which no first token has."""
    lists = [("input_ids", pyarrow.list_(pyarrow.int32())),
             ("teacher_ids", pyarrow.list_(pyarrow.list_(pyarrow.int32()))),
             ("teacher_logps", pyarrow.list_(pyarrow.list_(pyarrow.float32())))]
    rows = [{"input_ids": [5, 6, 7], "teacher_ids": [None, [6, 9], [7]],
             "teacher_logps": [None, [-0.5, -1.0], [-0.25]]},
            {"input_ids": [5, 6], "teacher_ids": [[4]], "teacher_logps": [[0.0]]}]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows, schema=pyarrow.schema(lists)),
                                HERE / "teacher.parquet")


def write_zero_dictionary():
    """plain.parquet as older writers have it: an offset of zero where there is no dictionary. In
    the footer's Thrift, field 11 goes in after field 9 of every column."""
    data = (HERE / "plain.parquet").read_bytes()
    size = int.from_bytes(data[-8:-4], "little")
    footer = data[-8 - size:-8]
    metadata = pyarrow.parquet.ParquetFile(HERE / "plain.parquet").metadata
    for group in range(metadata.num_row_groups):
        for column in range(metadata.num_columns):
            offset = metadata.row_group(group).column(column).data_page_offset
            at = footer.index(b"\x26" + zigzag(offset)) + 1 + len(zigzag(offset))
            footer = footer[:at] + b"\x26\x00" + bytes([footer[at] - 0x20]) + footer[at + 1:]
    (HERE / "zero_dictionary.parquet").write_bytes(
        data[:-8 - size] + footer + len(footer).to_bytes(4, "little") + b"PAR1")


def write_bombs():
    def write(name, values, **options):
        table = pyarrow.table({"text": values})
        pyarrow.parquet.write_table(table, HERE / f"bomb_{name}.parquet", **options)

    write("letters", ["a" * (100 << 20)], compression="zstd", compression_level=19,
          use_dictionary=False, write_statistics=False)
    numbers = pyarrow.array([7] * (6 << 20), pyarrow.int32())
    lists = pyarrow.ListArray.from_arrays(pyarrow.array([0, len(numbers)]), numbers)
    write("list", lists, compression="zstd")
    # The dictionary has one text, and thousands of rows refer to it.
    text = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * 50_000, pyarrow.int32()),
                                               ["b" * 4000])
    write("dictionary", text, compression="zstd")
    # A dictionary of 16 Mi texts of no byte, for one row. The footer's Thrift has the column's
    # sizes before and after compression in fields 6 and 7.
    write("entries", [""], compression="zstd")
    path = HERE / "bomb_entries.parquet"
    data = path.read_bytes()
    size = int.from_bytes(data[-8:-4], "little")
    footer = data[-8 - size:-8]
    column = pyarrow.parquet.ParquetFile(path).metadata.row_group(0).column(0)
    page = bytes(64 << 20)
    packed = pyarrow.compress(page, codec="zstd", asbytes=True)
    header = (b"\x15\x04\x15" + zigzag(len(page)) + b"\x15" + zigzag(len(packed))
              + b"\x4c\x15" + zigzag(len(page) // 4) + b"\x15\x00\x00\x00")
    rest = data[column.data_page_offset:-8 - size]
    sizes = [b"\x16" + zigzag(column.total_uncompressed_size) + b"\x16" + zigzag(total)
             for total in (column.total_compressed_size, len(header + packed + rest))]
    assert footer.count(sizes[0]) == 1
    footer = footer.replace(*sizes)
    path.write_bytes(data[:4] + header + packed + rest + footer
                     + len(footer).to_bytes(4, "little") + b"PAR1")


if __name__ == "__main__":
    HERE.mkdir(exist_ok=True)
    write_same_rows()
    write_empty_groups()
    write_pairs()
    write_teacher()
    write_json_columns()
    write_zero_dictionary()
    write_bombs()
