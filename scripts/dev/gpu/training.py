"""Step times of Llama-shaped models with random weights, beside the roofline and beside FSDP2."""
import json
import random
import shutil
import sys

GIB = 1 << 30
# Shapes of Llama 3.2 1B and 3B and Llama 3.1 8B.
SHAPES = {
    "1b": dict(hidden_size=2048, intermediate_size=8192, num_hidden_layers=16,
               num_attention_heads=32, num_key_value_heads=8, head_dim=64, tie=True),
    "3b": dict(hidden_size=3072, intermediate_size=8192, num_hidden_layers=28,
               num_attention_heads=24, num_key_value_heads=8, head_dim=128, tie=True),
    "8b": dict(hidden_size=4096, intermediate_size=14336, num_hidden_layers=32,
               num_attention_heads=32, num_key_value_heads=8, head_dim=128, tie=False),
}
VOCABULARY = 128256
ROW_TOKENS = 4096
ROWS = 8  # 32,768 tokens a step
STEPS = 6
WARM_UP = 2


def make_model(folder, size):
    shape = dict(SHAPES[size])
    tied = shape.pop("tie")
    folder.mkdir(parents=True, exist_ok=True)
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "bfloat16",
              "vocab_size": VOCABULARY, "hidden_act": "silu", "rms_norm_eps": 1e-5,
              "max_position_embeddings": ROW_TOKENS, "bos_token_id": 1, "eos_token_id": 2,
              "initializer_range": 0.02, "tie_word_embeddings": tied,
              "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}, **shape}
    (folder / "config.json").write_text(json.dumps(config))


def make_rows(path):
    choice = random.Random(1)
    with open(path, "w", encoding="utf-8") as file:
        for _ in range(ROWS * STEPS):
            tokens = [choice.randrange(VOCABULARY) for _ in range(ROW_TOKENS)]
            file.write(json.dumps({"input_ids": tokens}) + "\n")


def counts(size):
    """Parameters of the blocks' matrices, of the head, and all."""
    shape = SHAPES[size]
    h, inner, layers = shape["hidden_size"], shape["intermediate_size"], shape["num_hidden_layers"]
    q = shape["num_attention_heads"] * shape["head_dim"]
    kv = shape["num_key_value_heads"] * shape["head_dim"]
    body = layers * (2 * h * q + 2 * h * kv + 3 * h * inner)
    head = VOCABULARY * h
    return body, head, body + head * (1 if shape["tie"] else 2) + (2 * layers + 1) * h, q


def roofline(size, machine):
    """Seconds of a step at least; the formula is that of the project's notes on rooflines: one
    GPU, block inputs on the device, the update deferred into forward."""
    body, head, parameters, q = counts(size)
    tokens, layers = ROWS * ROW_TOKENS, SHAPES[size]["num_hidden_layers"]
    attended = ROW_TOKENS / 2
    flops, up, down, dram = (machine["flops"], machine["h2d"], machine["d2h"], machine["dram"])
    update_bytes = 18  # split-bf16
    forward = {"compute": (2 * body + 4 * attended * q * layers / 2) * tokens / flops,
               "h2d": 2 * parameters / up,
               "dram": parameters * (update_bytes + 2) / dram}
    backward = {"compute": (6 * body + 6 * head + 14 * attended * q * layers / 2) * tokens / flops,
                "h2d": 2 * parameters / up, "d2h": 2 * parameters / down,
                "dram": parameters * 4 / dram}
    return max(forward.values()) + max(backward.values()), {
        "forward_wall": max(forward, key=forward.get),
        "backward_wall": max(backward, key=backward.get)}


def run_file(folder, rows, out, cap):
    return f"""
[run]
dir = "{out}"
[model]
path = "{folder}"
init = "random"
[data]
train = ["{rows}"]
format = "tokens"
max_tokens = {ROW_TOKENS}
packing = false
shuffle = false
[train]
steps = {STEPS}
sequences_per_step = {ROWS}
micro_batch = 1
[precision]
compute = "bf16"
[offload]
state_format = "split-bf16"
device_memory = "{cap}GiB"
[checkpoint]
every_steps = 1000000
export = "never"
[device]
kind = "cuda"
"""


def prepare(setup, size):
    folder = setup.scratch / f"model-{size}"
    make_model(folder, size)
    rows = setup.scratch / "rows.jsonl"
    if not rows.exists():
        make_rows(rows)
    return folder, rows


def step_seconds(path):
    seconds = []
    with open(path, encoding="utf-8") as file:
        for line in file:
            entry = json.loads(line)
            if entry.get("kind") == "step":
                seconds.append(entry["seconds"])
    return sorted(seconds[WARM_UP:])


def train(setup, deadline, size, cap, call):
    folder, rows = prepare(setup, size)
    out = setup.scratch / f"run-{size}-{cap}"
    shutil.rmtree(out, ignore_errors=True)
    file = setup.scratch / f"run-{size}-{cap}.toml"
    file.write_text(run_file(folder, rows, out, cap))
    log = setup.scratch / f"run-{size}-{cap}.log"
    log.unlink(missing_ok=True)
    code = call(setup, [setup.bin / "longshore", "train", file], deadline, log)
    if code != 0:
        tail = log.read_text(errors="replace")[-400:]
        raise RuntimeError(f"train {size} at {cap} GiB ended with {code}: {tail}")
    seconds = step_seconds(out / "metrics.jsonl")
    shutil.rmtree(out, ignore_errors=True)
    return seconds[len(seconds) // 2]


def measured_machine(setup, deadline, call):
    """GEMM FLOP/s, link and memory bandwidths, measured by torch and kept for later parts."""
    kept = setup.scratch / "machine.json"
    if not kept.exists():
        log = setup.scratch / "machine.log"
        log.unlink(missing_ok=True)
        code = call(setup, [sys.executable, setup.bench / "peers/gpu_speeds.py", kept], deadline,
                    log)
        if code != 0:
            raise RuntimeError(f"gpu_speeds.py: {log.read_text(errors='replace')[-400:]}")
    return json.loads(kept.read_text())


def measure(setup, deadline, size, call):
    machine = measured_machine(setup, deadline, call)
    bound, walls = roofline(size, machine)
    rows, failures = [], []
    for cap in (24, 16):
        seconds = train(setup, deadline, size, cap, call)
        rows.append({"model": size, "cap_gib": cap, "tokens_per_step": ROWS * ROW_TOKENS,
                     "seconds_per_step": seconds,
                     "tokens_per_second": ROWS * ROW_TOKENS / seconds,
                     "roofline_seconds": bound, "share_of_roofline": bound / seconds, **walls})
        if bound / seconds < 0.92:
            failures.append(f"{bound / seconds:.1%} of the roofline at {cap} GiB, goal 92 %")
    return {"status": "failed" if failures else "passed", "measured": rows, "failures": failures}


def compare(setup, deadline, size, call):
    """PyTorch alone, and transformers' model where it is installed; the same cap and batch."""
    cap = 24
    folder, rows = prepare(setup, size)
    ours = ROWS * ROW_TOKENS / train(setup, deadline, size, cap, call)
    found = setup.scratch / f"fsdp2-{size}.json"
    log = setup.scratch / f"fsdp2-{size}.log"
    for path in (found, log):
        path.unlink(missing_ok=True)
    code = call(setup, [sys.executable, setup.bench / "peers/fsdp2_offload.py", "--config",
                        folder / "config.json", "--rows", rows, "--rows-per-step", ROWS,
                        "--cap-gib", cap, "--out", found], deadline, log)
    if code != 0 or not found.exists():
        raise RuntimeError(f"fsdp2_offload.py ended with {code}: "
                           f"{log.read_text(errors='replace')[-400:]}")
    peer = json.loads(found.read_text())
    share = ours / peer["tokens_per_second"]
    rows_out = [{"model": size, "cap_gib": cap, "system": "Longshore", "tokens_per_second": ours},
                {"model": size, "cap_gib": cap, "system": peer["system"],
                 "tokens_per_second": peer["tokens_per_second"]}]
    return {"status": "passed" if share >= 2 else "failed", "measured": rows_out,
            "failures": [] if share >= 2 else [f"{share:.2f} times FSDP2, goal 2"]}
