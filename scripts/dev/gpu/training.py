"""Step times of Llama-shaped models with random weights, beside the roofline and beside peers.

A run is ended when it has done its steps: writing a checkpoint of 8B would take minutes of a
machine that is lent for minutes."""
import dataclasses
import json
import os
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


def roofline(size, machine, rows=ROWS, adapter=False, clipping=True):
    """Seconds of a step at least, as docs/measurements/gpu_roofline.md counts: one GPU, block
    inputs on the device, the update deferred into forward, or in backward without clipping. A step
    that trains an adapter computes no gradients of weights, moves none and updates next to
    nothing."""
    body, head, parameters, q = counts(size)
    tokens, layers = rows * ROW_TOKENS, SHAPES[size]["num_hidden_layers"]
    attended = ROW_TOKENS / 2  # keys of a position, on average: attention is causal
    flops, up, down, dram = (machine["flops"], machine["h2d"], machine["d2h"], machine["dram"])
    update_bytes = 18  # split-bf16
    forward = {"compute": (2 * body + 4 * attended * q * layers) * tokens / flops,
               "h2d": 2 * parameters / up}
    update = {} if adapter else {"dram": parameters * update_bytes / dram}
    backward = {"compute": ((4 if adapter else 6) * body + (4 if adapter else 6) * head +
                            14 * attended * q * layers) * tokens / flops,
                "h2d": 2 * parameters / up}
    if not adapter:
        backward["d2h"] = 2 * parameters / down
    (forward if clipping else backward).update(update)
    return max(forward.values()) + max(backward.values()), {
        "forward_wall": max(forward, key=forward.get),
        "backward_wall": max(backward, key=backward.get)}


@dataclasses.dataclass(frozen=True)
class Run:
    """What a training run differs by."""
    size: str
    cap: int | None = None  # GiB of the device; None: what the plan needs, to the byte
    rows: int = ROWS
    steps: int = STEPS
    micro_batch: int = 1  # rows
    adapter: bool = False  # LoRA of rank 16 on every matrix of a block
    clipping: bool = True  # without it the update runs in backward
    activations: str = "device"  # where activation checkpoints are kept

    @property
    def name(self):
        cap = "tight" if self.cap is None else self.cap
        return (f"{self.size}-{cap}" + ("" if self.rows == ROWS else f"-{self.rows}-rows")
                + ("" if self.micro_batch == 1 else f"-by-{self.micro_batch}")
                + ("-lora" if self.adapter else "") + ("" if self.clipping else "-unclipped")
                + ("" if self.activations == "device" else f"-inputs-{self.activations}"))


ADAPTER = """[adapter]
kind = "lora"
r = 16
alpha = 32
targets = ["all-linear"]
"""


def run_file(folder, data, out, run, memory):
    return f"""
[run]
dir = "{out}"
[model]
path = "{folder}"
init = "random"
[data]
train = ["{data}"]
format = "tokens"
max_tokens = {ROW_TOKENS}
packing = false
shuffle = false
[train]
steps = {MORE_STEPS}
sequences_per_step = {run.rows}
micro_batch = {run.micro_batch}
{"" if run.clipping else "max_grad_norm = 0"}
[optimizer]
overlap = "{"forward" if run.clipping else "backward"}"
[precision]
compute = "bf16"
[offload]
state_format = "split-bf16"
activations = "{run.activations}"
device_memory = "{memory}"
[checkpoint]
every_steps = 1000000
export = "never"
[device]
kind = "cuda"
{ADAPTER if run.adapter else ""}"""


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


def write_run(job, run, out):
    """The run's file, and the device bytes that its plan has. A tight cap is what the plan takes
    where it may take all: the step then has no byte more than was planned."""
    folder, data = prepare(job, run.size)
    file = job.setup.scratch / f"{run.name}.toml"
    memory = "auto" if run.cap is None else f"{run.cap}GiB"
    file.write_text(run_file(folder, data, out, run, memory))
    plan = job.program_json(["plan", file, "--json"], f"plan-{run.name}")
    planned = plan["device"]["total_bytes"]
    if run.cap is None:
        file.write_text(run_file(folder, data, out, run, f"{planned}B"))
    return file, planned


def done_after(steps):
    """Whether a line of a run's output says that it has done more steps than these, so that the
    record of the last one is written."""
    def is_done(line):
        found = STEP.match(line)
        return found is not None and int(found[1]) > steps
    return is_done


def train(job, run):
    """The median of a step's seconds, and the plan's device bytes."""
    out = job.setup.scratch / f"run-{run.name}"
    shutil.rmtree(out, ignore_errors=True)
    file, planned = write_run(job, run, out)
    kept = job.journal.logs
    command = [job.setup.bin / "longshore", "train", file, "--trace",
               kept / f"{job.part}-trace.json"]
    try:
        code = job.call(command, f"train-{run.name}", on_line=done_after(run.steps))
    finally:
        for name in ("metrics.jsonl", "plan.txt", "environment.json"):
            if (out / name).exists():
                shutil.copy(out / name, kept / f"{job.part}-{name}")
        seconds = step_seconds(out / "metrics.jsonl")
        shutil.rmtree(out, ignore_errors=True)
    if not seconds:
        raise RuntimeError(f"train {run.name} ended with {code} before step {WARM_UP + 1}: "
                           f"{job.tail(f'train-{run.name}')}")
    return seconds[len(seconds) // 2], planned


def found_in(json_value, key):
    """The first value of the key, however deep."""
    if isinstance(json_value, dict):
        if key in json_value:
            return json_value[key]
        json_value = list(json_value.values())
    if isinstance(json_value, list):
        return next((found for one in json_value
                     if (found := found_in(one, key)) is not None), None)
    return None


def forecast(job, run):
    """The seconds of a step that the plan has once the machine and the model's units are measured;
    plans of later parts have them too."""
    file, _ = write_run(job, run, job.setup.scratch / f"run-{run.name}")
    # Its exit code is about the machine's settings.
    job.call([job.setup.bin / "longshore", "check", "machine", file, "--rates"], "rates")
    plan = job.program_json(["plan", file, "--json"], "plan")
    seconds = found_in(plan, "step_seconds")
    return {"status": "failed" if seconds is None else "passed",
            "measured": [{"run": run.name, "planned_seconds_per_step": seconds}],
            "failures": ["the plan has no time of a step"] if seconds is None else []}


def speeds(job):
    """Rates of a block's parts and of links, each with torch alone."""
    found = measured_machine(job)
    rows = [{"what": name, "gb_per_second": found[name] / 1e9} for name in ("h2d", "d2h", "dram")]
    rows.append({"what": "product 8192^3", "tflop_per_second": found["flops"] / 1e12})
    failures = [f"{row['what']}: {row['error']}" for row in found["rows"] if "error" in row]
    return {"status": "failed" if failures else "passed", "measured": rows + found["rows"],
            "failures": failures}


def measured_machine(job):
    """GEMM FLOP/s, link and memory bandwidths, measured once and kept for later parts. The host's
    memory is as fast as the faster of torch's copies and the bound of the optimizer's loop."""
    kept = job.setup.scratch / "machine.json"
    if not kept.exists():
        new = job.setup.scratch / "machine.new.json"
        try:
            job.must([sys.executable, job.setup.bench / "peers/gpu_speeds.py", new], "machine")
        finally:
            if new.exists():
                shutil.copy(new, job.journal.logs / f"{job.part}-machine.json")
        found = json.loads(new.read_text())
        update = job.program_json(["bench", "optimizer", "--json", "--format", "split-bf16",
                                   "--threads", os.cpu_count() or 1], "bound")["figures"][0]
        found["dram"] = max(found["dram"], update["bytes_per_second"] / update["share_of_bound"])
        kept.write_text(json.dumps(found))
    return json.loads(kept.read_text())


def measure(job, run):
    machine = measured_machine(job)
    bound, walls = roofline(run.size, machine, run.rows, run.adapter, run.clipping)
    seconds, planned = train(job, run)
    share, tokens = bound / seconds, run.rows * ROW_TOKENS
    row = {"model": run.size + (" LoRA" if run.adapter else ""), "device_gib": planned / GIB,
           "tokens_per_step": tokens, "micro_batch": run.micro_batch,
           "clipping": run.clipping, "activations": run.activations,
           "seconds_per_step": seconds, "tokens_per_second": tokens / seconds,
           "roofline_seconds": bound, "share_of_roofline": share, **walls}
    reached = share >= GOAL_OF_ROOFLINE
    return {"status": "passed" if reached else "failed", "measured": [row],
            "failures": [] if reached else [f"{share:.1%} of the roofline, goal 92 %"]}


def compare(job, peer, size, rows_of_peer):
    """A peer on the same model, cap and batch; each with the micro-batch that suits it."""
    run = Run(size, cap=24, micro_batch=4)
    folder, rows = prepare(job, size)
    ours = ROWS * ROW_TOKENS / train(job, run)[0]
    found = job.setup.scratch / f"{peer}-{size}.json"
    found.unlink(missing_ok=True)
    job.must([sys.executable, job.setup.bench / "peers" / PEERS[peer], "--config",
              folder / "config.json", "--rows", rows, "--rows-per-step", ROWS, "--rows-at-once",
              rows_of_peer, "--cap-gib", run.cap, "--out", found], f"{peer}-{size}")
    theirs = json.loads(found.read_text())
    share = ours / theirs["tokens_per_second"]
    measured = [{"model": size, "cap_gib": run.cap, "system": "Longshore",
                 "tokens_per_second": ours},
                {"model": size, "cap_gib": run.cap, "system": theirs["system"],
                 "tokens_per_second": theirs["tokens_per_second"]}]
    reached = share >= GOAL_OF_PEERS
    return {"status": "passed" if reached else "failed", "measured": measured,
            "failures": [] if reached else [f"{share:.2f} times {peer}, goal {GOAL_OF_PEERS:.0f}"]}
