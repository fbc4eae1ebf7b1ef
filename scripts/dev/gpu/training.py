"""Step times of Llama-shaped models with random weights, beside the roofline and beside peers.

A run is ended when it has done its steps: writing a checkpoint of 8B would take minutes of a
machine that is lent for minutes."""
import json
import random
import re
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
MORE_STEPS = 1000  # than any run does here
STEP = re.compile(r"step (\d+)/")
GOAL_OF_ROOFLINE = 0.92
GOAL_OF_PEERS = 3.0
PEERS = {"fsdp2": "fsdp2_offload.py"}


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
    memory = "auto" if cap is None else f"{cap}GiB"
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
steps = {MORE_STEPS}
sequences_per_step = {ROWS}
micro_batch = 1
[precision]
compute = "bf16"
[offload]
state_format = "split-bf16"
device_memory = "{memory}"
[checkpoint]
every_steps = 1000000
export = "never"
[device]
kind = "cuda"
"""


def prepare(job, size):
    folder = job.setup.scratch / f"model-{size}"
    make_model(folder, size)
    rows = job.setup.scratch / "rows.jsonl"
    if not rows.exists():
        make_rows(rows)
    return folder, rows


def step_seconds(path):
    """Of the steps after the warm-up, sorted; what a run that was ended has left."""
    seconds = []
    for text in path.read_text(errors="replace").splitlines() if path.exists() else []:
        try:
            entry = json.loads(text)
        except ValueError:
            continue  # the last line of a run that was ended
        if entry.get("kind") == "step":
            seconds.append(entry["seconds"])
    return sorted(seconds[WARM_UP:])


def is_done(line):
    found = STEP.match(line)
    return found is not None and int(found[1]) > STEPS


def train(job, size, cap):
    """The median of a step's seconds, and the plan's line on device bytes."""
    folder, rows = prepare(job, size)
    name = f"{size}-{'tight' if cap is None else cap}"
    out = job.setup.scratch / f"run-{name}"
    shutil.rmtree(out, ignore_errors=True)
    file = job.setup.scratch / f"{name}.toml"
    file.write_text(run_file(folder, rows, out, cap))
    job.must([job.setup.bin / "longshore", "plan", file], f"plan-{name}")
    trace = job.journal.logs / f"{job.part}-trace.json"
    try:
        code = job.call([job.setup.bin / "longshore", "train", file, "--trace", trace],
                        f"train-{name}", on_line=is_done)
    finally:
        for kept in ("metrics.jsonl", "plan.txt"):
            if (out / kept).exists():
                shutil.copy(out / kept, job.journal.logs / f"{job.part}-{kept}")
        seconds = step_seconds(out / "metrics.jsonl")
        shutil.rmtree(out, ignore_errors=True)
    if not seconds:
        raise RuntimeError(f"train {name} ended with {code} before step {WARM_UP + 1}: "
                           f"{job.tail(f'train-{name}')}")
    fits = re.search(r"fits: device ([^,]*)", job.log(f"plan-{name}").read_text(errors="replace"))
    return seconds[len(seconds) // 2], fits[1] if fits else "?"


def measured_machine(job):
    """GEMM FLOP/s, link and memory bandwidths, measured by torch and kept for later parts."""
    kept = job.setup.scratch / "machine.json"
    if not kept.exists():
        job.must([sys.executable, job.setup.bench / "peers/gpu_speeds.py", kept], "machine")
    return json.loads(kept.read_text())


def measure(job, size, cap):
    machine = measured_machine(job)
    bound, walls = roofline(size, machine)
    seconds, device = train(job, size, cap)
    share = bound / seconds
    row = {"model": size, "device": device, "tokens_per_step": ROWS * ROW_TOKENS,
           "seconds_per_step": seconds, "tokens_per_second": ROWS * ROW_TOKENS / seconds,
           "roofline_seconds": bound, "share_of_roofline": share, **walls}
    reached = share >= GOAL_OF_ROOFLINE
    return {"status": "passed" if reached else "failed", "measured": [row],
            "failures": [] if reached else [f"{share:.1%} of the roofline, goal 92 %"]}


def compare(job, peer, size):
    """A peer on the same model, cap and batch."""
    cap = 24
    folder, rows = prepare(job, size)
    ours = ROWS * ROW_TOKENS / train(job, size, cap)[0]
    found = job.setup.scratch / f"{peer}-{size}.json"
    found.unlink(missing_ok=True)
    job.must([sys.executable, job.setup.bench / "peers" / PEERS[peer], "--config",
              folder / "config.json", "--rows", rows, "--rows-per-step", ROWS, "--cap-gib", cap,
              "--out", found], f"{peer}-{size}")
    theirs = json.loads(found.read_text())
    share = ours / theirs["tokens_per_second"]
    measured = [{"model": size, "cap_gib": cap, "system": "Longshore", "tokens_per_second": ours},
                {"model": size, "cap_gib": cap, "system": theirs["system"],
                 "tokens_per_second": theirs["tokens_per_second"]}]
    reached = share >= GOAL_OF_PEERS
    return {"status": "passed" if reached else "failed", "measured": measured,
            "failures": [] if reached else [f"{share:.2f} times {peer}, goal {GOAL_OF_PEERS:.0f}"]}
