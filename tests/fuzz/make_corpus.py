#!/usr/bin/env python3
"""Makes tests/fuzz/corpus of the files that other tests have and of what a program writes: inputs
named valid_* are accepted by their target. Inputs that a search found are added by hand.

  python3 tests/fuzz/make_corpus.py build/test/longshore
"""
import gzip
import json
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile

TESTS = pathlib.Path(__file__).resolve().parents[1]
CORPUS = TESTS / "fuzz/corpus"
NEXT_FILE = b"\x1e"


def put(target, name, content):
    path = CORPUS / target / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())


def safetensors(header, data_bytes):
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(i % 120 for i in range(data_bytes))


def tensor(dtype, shape, begin, end):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def nf4_matrix():
    """A matrix of 3 x 5 values as bitsandbytes writes it, with double quantisation."""
    levels = [-1.0, -0.6961928, -0.52507305, -0.39491749, -0.28444138, -0.18477343, -0.09105004,
              0.0, 0.0795803, 0.1609302, 0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295684,
              1.0]
    state = {"quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16", "shape": [3, 5],
             "nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": 0.5}
    parts = {"w.quant_map": ("F32", struct.pack("<16f", *levels)),
             "w.nested_absmax": ("F32", struct.pack("<f", 1.5)),
             "w.nested_quant_map": ("F32", struct.pack("<256f", *(i / 128 - 1
                                                                  for i in range(256)))),
             "w": ("U8", bytes(range(8))), "w.absmax": ("U8", b"\xff"),
             "w.quant_state.bitsandbytes__nf4": ("U8", json.dumps(state).encode())}
    header, data = {}, b""
    for name, (dtype, content) in parts.items():
        shape = [8, 1] if name == "w" else [len(content) // (4 if dtype == "F32" else 1)]
        header[name] = tensor(dtype, shape, len(data), len(data) + len(content))
        data += content
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def model_files():
    weights = safetensors({"__metadata__": {"format": "pt"}, "w": tensor("F32", [2, 3], 0, 24),
                           "b\u00e9": tensor("BF16", [], 24, 26),
                           "e": tensor("U8", [0, 4], 26, 26)}, 26)
    put("safetensors", "valid", weights)
    put("safetensors", "valid_empty", safetensors({}, 0))
    put("safetensors", "hole", safetensors({"w": tensor("F32", [2], 8, 16)}, 16))
    put("safetensors", "overlap", safetensors({"a": tensor("U8", [4], 0, 4),
                                               "b": tensor("U8", [4], 2, 6)}, 6))
    put("safetensors", "product_overflows",
        safetensors({"a": tensor("U8", [2**32, 2**32], 0, 0)}, 0))
    put("safetensors", "length_2_63", struct.pack("<Q", 2**63) + b"{}")
    put("safetensors", "lfs_pointer",
        "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    index = {"metadata": {"total_size": 26}, "weight_map": {"w": "model.safetensors",
                                                            "b\u00e9": "model.safetensors",
                                                            "e": "model.safetensors"}}
    put("weight_index", "valid", json.dumps(index))
    put("weight_index", "valid_two_files", json.dumps(
        {"metadata": {"total_size": 38}, "weight_map": {"a": "model-1.safetensors",
                                                        "c": "model-2.safetensors"}}, indent=2))
    put("weight_index", "leaves_the_directory",
        json.dumps({"weight_map": {"a": "../m.safetensors"}}))
    config = (TESTS / "parity/golden/llama/config.json").read_bytes()
    put("model", "valid", config + NEXT_FILE + NEXT_FILE + weights)
    put("model", "valid_index",
        config + NEXT_FILE + json.dumps(index).encode() + NEXT_FILE + weights)
    packed = {"w_blocks": tensor("U8", [2, 3, 2, 16], 0, 192),
              "w_scales": tensor("U8", [2, 3, 2], 192, 204)}
    put("model", "valid_mxfp4", json.dumps(
        {"model_type": "gpt_oss", "quantization_config": {"quant_method": "mxfp4"}}).encode()
        + NEXT_FILE + NEXT_FILE + safetensors(packed, 204))
    packed = {"w": tensor("F8_E4M3", [130, 3], 0, 390),
              "w_scale_inv": tensor("F32", [2, 1], 390, 398)}
    put("model", "valid_fp8", json.dumps(
        {"model_type": "llama", "quantization_config": {
            "quant_method": "fp8", "weight_block_size": [128, 128]}}).encode()
        + NEXT_FILE + NEXT_FILE + safetensors(packed, 398))
    put("model", "valid_nf4", json.dumps(
        {"model_type": "llama", "quantization_config": {
            "quant_method": "bitsandbytes", "load_in_4bit": True}}).encode()
        + NEXT_FILE + NEXT_FILE + nf4_matrix())
    settings = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "bias": "none",
                "target_modules": ["q"], "modules_to_save": ["n"]}
    base = "base_model.model."
    adapter = safetensors({base + "q.lora_A.weight": tensor("F32", [2, 3], 0, 24),
                           base + "q.lora_B.weight": tensor("F16", [1, 2], 24, 28),
                           base + "n.weight": tensor("BF16", [3], 28, 34)}, 34)
    put("adapter", "valid", json.dumps(settings).encode() + NEXT_FILE + adapter)
    put("adapter", "valid_dora", json.dumps(
        {"peft_type": "LORA", "r": 2, "use_dora": True, "use_rslora": True, "target_modules": ["q"]}
        ).encode() + NEXT_FILE + safetensors(
            {base + "q.lora_A.weight": tensor("F32", [2, 3], 0, 24),
             base + "q.lora_B.weight": tensor("F32", [1, 2], 24, 32),
             base + "q.lora_magnitude_vector": tensor("F32", [1], 32, 36)}, 36))
    put("adapter", "pattern",
        json.dumps(dict(settings, target_modules=".*q")).encode() + NEXT_FILE + adapter)
    for family in ("llama", "gpt2", "gemma3", "gemma4", "qwen3_5", "phi3-long", "mistral3"):
        put("config", f"valid_{family}",
            (TESTS / f"parity/golden/{family}/config.json").read_bytes())
    for family in ("qwen3_moe", "gpt_oss"):
        for path in sorted((TESTS / "parity/golden_moe").glob(f"{family}*/config.json"))[:1]:
            put("config", f"valid_{family}", path.read_bytes())
    put("config", "python_numbers",
        '{"model_type": "llama", "a": 1e400, "b": NaN, "c": ' + "9" * 40 + "}")
    put("config", "members",
        R'{"a": "\"dtype\": }", "quantization_config" : {"b": ["{", {"k": "v"}]},'
        R' "text_config": {"dtype": "bfloat16"}, "torch_dtype" : "bfloat16", "n": null}')
    put("dataset_card", "valid", "---\nlicense: mit\nconfigs:\n- config_name: &n a\n"
        "  data_files: {train: [a/*, 'b']}\n  default: yes\n- {<<: &m {config_name: b}, data_dir: "
        "\"c\\u00e9\"}\n- *m\n- config_name: >-\n    c\n  data_files:\n  - split: test # one\n"
        "    path: !!str 1\n---\n")
    put("dataset_card", "aliases", "---\na: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n---\n")


def texts():
    for name in ("bytes", "flags", "special_map", "word_piece", "unigram"):
        folder = TESTS / "text/golden" / name
        files = [folder / f"{part}.json"
                 for part in ("tokenizer", "tokenizer_config", "special_tokens_map",
                              "generation_config", "config")]
        put("tokenizer", f"valid_{name}",
            NEXT_FILE.join(file.read_bytes() if file.exists() else b"" for file in files))
    vocabulary = {"model": {"type": "WordLevel", "vocab": {"a": 0, "<unk>": 1},
                            "unk_token": "<unk>"}}
    grows = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 64}
    put("tokenizer", "normaliser_grows", json.dumps(
        dict(vocabulary, normalizer={"type": "Sequence", "normalizers": [grows] * 4})))
    put("tokenizer", "pattern", json.dumps(dict(
        vocabulary, pre_tokenizer={"type": "Split", "pattern": {"Regex": "(a*)*b"},
                                   "behavior": "Isolated", "invert": False})))
    for name in ("chatml", "chatml_generation", "qwen3", "python_words"):
        put("chat_template", f"valid_{name}",
            (TESTS / f"text/chat_templates/{name}.jinja").read_bytes())
    put("chat_template", "grows", "{{ messages * 99999999 }}{{ 'a' * 99999999999 }}")
    put("chat_template", "recurses", "{% macro a() %}{{ a() }}{% endmacro %}{{ a() }}")


def rows():
    lines = ['{"text": "caf\\u00e9"}', '{"input_ids": [1, 2, 3], "labels": [-100, 2, 3]}',
             '{"prompt": "a", "completion": "b"}',
             '{"instruction": "a", "input": "b", "output": "c"}',
             '{"messages": [{"role": "user", "content": "a"},'
             ' {"role": "assistant", "content": "b"}]}',
             '{"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}',
             '{"prompt": "a", "chosen": "b", "rejected": "c"}']
    put("rows", "valid_lines", "\n".join(lines) + "\n")
    put("rows", "valid_array", "[" + ",\n".join(lines) + "]")
    put("rows", "valid_gzip", gzip.compress("\n".join(lines).encode(), mtime=0))
    put("rows", "valid_table", (TESTS / "data/tables/no_rows.parquet").read_bytes())
    put("rows", "python_values", '{"input_ids": [1, NaN, 9223372036854775808, 1e400]}\n')
    put("rows", "two_marks", b"\xef\xbb\xbf\xef\xbb\xbf{}")
    for name in ("zstd_v2", "delta", "gzip", "lz4", "duckdb", "empty_groups_plain"):
        put("parquet", f"valid_{name}", (TESTS / f"data/tables/{name}.parquet").read_bytes())
    put("parquet", "bomb_list", (TESTS / "data/tables/bomb_list.parquet").read_bytes())


def run_files():
    config = TESTS.parent / "config"
    put("run_file", "finetune", (config / "presets/finetune-cpu.toml").read_bytes())
    put("run_file", "valid_units", '[run]\ndir = "r"\n[model]\npath = "m"\n[data]\ntrain = ["d"]\n'
        '[train]\nsteps = 0x10\n[fsdp]\nunits = { groups = [["block.0", "block.1.mlp"]] }\n'
        '[offload]\nhost_memory = "8GiB"\nnvme = ["a", "b"]\noptimizer = "nvme"\n')
    put("run_file", "unknown", "[train]\nstpes = 1\nlr = nan\n[train]\n")
    put("run_file", "three_brackets", '[[[device]]]\nkind = "cpu"\n')
    put("run_file", "deep", "a = " + "[" * 300)


def written_by(program):
    with tempfile.TemporaryDirectory() as folder:
        run = pathlib.Path(folder)
        golden = TESTS / "parity/golden/llama"
        (run / "rows.jsonl").write_text((golden / "train.jsonl").read_text())
        (run / "run.toml").write_text(
            f'[run]\ndir = "{run}/run"\n[model]\npath = "{golden}"\n'
            f'[data]\ntrain = ["{run}/rows.jsonl"]\nformat = "tokens"\ncache = "{run}/cache"\n'
            f'max_tokens = 40\n[train]\nsteps = 2\n'
            f'[offload]\noptimizer = "nvme"\nnvme = ["{run}/drive"]\n'
            f'[checkpoint]\nexport = "never"\nevery_steps = 1\n[device]\nkind = "cpu"\n')
        subprocess.run([program, "train", run / "run.toml"], check=True, stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL)
        manifest = sorted(run.glob("run/checkpoints/step-*/manifest.json"))[-1]
        # The paths of the machine that makes the corpus are nothing that a parser looks at.
        text = manifest.read_bytes().replace(str(TESTS).encode(), b"tests")
        text = text.replace(f"{run}/".encode(), b"run/")
        put("checkpoint_manifest", "valid", text)
        put("checkpoint_manifest", "cut", text[:-100])
        put("token_file", "valid", next(run.glob("cache/*.tok")).read_bytes())
        put("token_file", "cut", next(run.glob("cache/*.tok")).read_bytes()[:4200])
        state = next(run.glob("drive/*.state")).read_bytes()
        for name, at in (("valid", 0), ("valid_second_copy", state.find(b"LONGNVME", 1))):
            put("drive_manifest", name, state[at:at + 4088].rstrip(b"\0"))


def main():
    for folder in CORPUS.iterdir() if CORPUS.exists() else ():
        if folder.name != "store":  # its inputs are made by hand
            shutil.rmtree(folder)
    model_files()
    texts()
    rows()
    run_files()
    written_by(sys.argv[1])


if __name__ == "__main__":
    main()
