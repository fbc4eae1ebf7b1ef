"""What is mutated: a tiny model, data in every format, and the traces of two runs that trained on
them, one with its state on drives. And which command reads which file."""
import dataclasses
import json
import shutil
import struct
import subprocess
import sys

TEMPLATE = """{{ bos_token or '' }}{% for message in messages %}<{{ message.role }}>
{% if message.role == 'assistant' %}{% generation %}{{ message.content | trim }}{% endgeneration %}
{% else %}{{ message.content | trim }}{% endif %}
{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}
"""
RUN = """[run]
dir = "runs/{name}"
seed = 3
[model]
path = "{model}"
[data]
train = ["{data}"]
eval = ["data/eval.jsonl"]
cache = "cache"
max_tokens = 96
overlength = "truncate"
threads = 1
{more_data}
[train]
steps = 2
sequences_per_step = 2
micro_batch = 1
[optimizer]
lr = 1e-3
[precision]
compute = "fp32"
[device]
threads = 1
[offload]
threads = 1
state_format = "split-bf16"
{more_offload}
[checkpoint]
every_steps = 1
export = "end"
[eval]
sequences = 2
"""
WORDS = ("the quick brown fox jumps over a lazy dog while seven wizards boil quartz jugs of "
         "vexing liquid and nobody asks why").split()
MODEL = ["config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"]
DATA = ["text.jsonl", "chat.jsonl", "tokens.jsonl", "pairs.jsonl", "book.txt", "zipped.jsonl.gz",
        "zipped.jsonl.zst"]
MAY_CHANGE = ("runs", "cache", "drives", "out", "answers")


@dataclasses.dataclass
class Target:
    """Files of one kind with the commands that read them; `{toml}` belongs to the file."""
    name: str
    files: str  # a glob
    kind: str
    commands: list
    toml: str = "host.toml"
    weight: int = 2


TRAIN = "train {toml} --train.steps=3"
FRESH = "train {toml} --train.steps=1 --run.dir=runs/fresh --checkpoint.export=never"
STATE = [TRAIN, TRAIN, "ckpt verify {toml}", "export {toml} --to out/model",
         "generate {toml} --prompt the --max-new-tokens 4", "eval {toml}"]
GENERATE = "generate {toml} --from model --chat --max-new-tokens 2 --in data/prompts.jsonl --out "
TARGETS = [
    Target("run file", "host.toml", "toml", ["check run {toml}", "plan {toml}",
                                             "config dump --diff {toml}", "plan --json {toml}"],
           weight=6),
    Target("config.json", "model/config.json", "json", ["plan {toml}", FRESH, "check run {toml}"],
           weight=6),
    Target("generation_config.json", "model/generation_config.json", "json",
           ["generate {toml} --prompt the --max-new-tokens 4", "export {toml} --to out/model"]),
    Target("tokenizer.json", "model/tokenizer.json", "json",
           ["prepare {toml} --data.cache=cache/new", "tokenizer encode model", FRESH], weight=6),
    Target("tokenizer_config.json", "model/tokenizer_config.json", "json",
           ["prepare {toml} --data.cache=cache/new", "check data {toml}"], toml="chat.toml",
           weight=3),
    Target("chat template", "model/chat_template.jinja", "template",
           ["prepare {toml} --data.cache=cache/new", "check data {toml}"], toml="chat.toml",
           weight=6),
    Target("weights", "model/*.safetensors", "safetensors",
           [FRESH, "plan {toml}", "generate {toml} --from model --prompt the --max-new-tokens 4"],
           weight=5),
    Target("weights in several files", "indexed/*.safetensors", "safetensors", [FRESH],
           toml="tokens.toml"),
    Target("experts in MXFP4", "mxfp4/*.safetensors", "safetensors",
           [FRESH, "plan {toml}", "check model mxfp4",
            "generate {toml} --from model --prompt the --max-new-tokens 4"], toml="mxfp4.toml",
           weight=5),
    Target("config.json of MXFP4", "mxfp4/config.json", "json", [FRESH, "plan {toml}"],
           toml="mxfp4.toml", weight=4),
    Target("index of weights", "indexed/*.index.json", "json", [FRESH, "check run {toml}"],
           toml="tokens.toml", weight=4),
    *[Target(name, f"data/{name}", "lines" if name.endswith(".jsonl") else "bytes",
             [f"prepare {{toml}} --data.cache=cache/new '--data.train=[\"data/{name}\"]'",
              f"check data {{toml}} --data.cache=cache/new '--data.train=[\"data/{name}\"]'"],
             toml={"chat.jsonl": "chat.toml", "tokens.jsonl": "tokens.toml"}.get(name, "host.toml"),
             weight=3)
      for name in DATA],
    Target("prompts", "data/prompts.jsonl", "lines", [GENERATE + "out/answers.jsonl"],
           toml="chat.toml", weight=3),
    Target("answers", "answers/*", "lines", [GENERATE + "answers/answers.jsonl"],
           toml="chat.toml"),
    Target("prepared data", "cache/**/*", "bytes",
           [FRESH, TRAIN, "prepare {toml}", "check data {toml}"], weight=5),
    Target("checkpoint manifest", "runs/host/checkpoints/*/*.json", "json", STATE, weight=6),
    Target("checkpoint data", "runs/host/checkpoints/**/*", "bytes", STATE, weight=4),
    Target("records of a run", "runs/host/*.json", "json",
           [TRAIN, "report --terminal runs/host"], weight=4),
    Target("metrics", "runs/host/metrics.jsonl", "lines",
           [TRAIN, "report --terminal runs/host"], weight=4),
    Target("other files of a run", "runs/host/*", "bytes", [TRAIN, "report --terminal runs/host"]),
    Target("state on drives", "drives/**/*", "bytes", ["train {toml} --train.steps=8"],
           toml="drives.toml", weight=8),
    Target("records of a run on drives", "runs/drives/*", "json", ["train {toml} --train.steps=8"],
           toml="drives.toml", weight=4),
]


def write_rows(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def make_data(folder):
    folder.mkdir()
    sentence = lambda i: " ".join(WORDS[(i * 7 + j * j) % len(WORDS)] for j in range(9 + i % 5))
    texts = [{"text": sentence(i)} for i in range(40)]
    write_rows(folder / "text.jsonl", texts)
    write_rows(folder / "eval.jsonl", texts[:6])
    write_rows(folder / "chat.jsonl",
               [{"messages": [{"role": "user", "content": sentence(i)},
                              {"role": "assistant", "content": sentence(i + 1)}]}
                for i in range(20)])
    write_rows(folder / "prompts.jsonl",
               [{"id": i, "prompt": WORDS[i % len(WORDS)]} for i in range(6)] +
               [{"messages": [{"role": "user", "content": WORDS[i % len(WORDS)]}]}
                for i in range(6)])
    write_rows(folder / "pairs.jsonl",
               [{"prompt": sentence(i), "completion": sentence(i + 1)} for i in range(20)])
    write_rows(folder / "tokens.jsonl",
               [{"input_ids": [(i * j) % 90 + 1 for j in range(1, 20)]} for i in range(20)])
    (folder / "book.txt").write_text("\n".join(sentence(i) for i in range(200)))
    subprocess.run(["gzip", "-nk9", folder / "text.jsonl"], check=True)
    (folder / "text.jsonl.gz").rename(folder / "zipped.jsonl.gz")
    raw = (folder / "text.jsonl").read_bytes()  # a zstd frame of one raw block, known size
    (folder / "zipped.jsonl.zst").write_bytes(
        b"\x28\xb5\x2f\xfd\xa0" + struct.pack("<I", len(raw)) +
        struct.pack("<I", len(raw) << 3 | 1)[:3] + raw)


def make(binary, root, repository, environment):
    """Everything under `root`; ends where a command that must work does not."""
    root.mkdir(parents=True)

    def longshore(*words):
        done = subprocess.run([binary, *words], cwd=root, env=environment, capture_output=True)
        if done.returncode != 0:
            sys.exit(f"longshore {' '.join(words)}: exit code {done.returncode}\n"
                     + done.stderr.decode(errors="replace"))

    make_data(root / "data")
    (root / "out").mkdir()
    longshore("init-model", "--preset", "tiny-llama", "--vocabulary", "300", "--text",
              "data/text.jsonl", "model")
    (root / "model/chat_template.jinja").write_text(TEMPLATE)
    (root / "model/generation_config.json").write_text(json.dumps(
        {"bos_token_id": 1, "eos_token_id": [2], "temperature": 0.7, "max_length": 64}))
    shutil.copytree(repository / "tests/parity/golden/llama-indexed", root / "indexed")
    shutil.copytree(repository / "tests/parity/golden_mxfp4/gpt_oss-mxfp4", root / "mxfp4",
                    ignore=shutil.ignore_patterns("golden*", "train.jsonl"))
    drives = 'optimizer = "nvme"\nparameters = "nvme"\nnvme = ["drives/a", "drives/b"]'
    write = lambda name, **more: (root / f"{name}.toml").write_text(
        RUN.format(**{"name": name, "model": "model", "data": "data/text.jsonl", "more_data": "",
                      "more_offload": "", **more}))
    write("host")
    write("chat", data="data/chat.jsonl")
    write("tokens", model="indexed", data="data/tokens.jsonl", more_data='format = "tokens"')
    write("drives", more_offload=drives)
    write("mxfp4", model="mxfp4", data="data/tokens.jsonl", more_data='format = "tokens"')
    for name in ("tokens.toml", "mxfp4.toml"):
        text = (root / name).read_text()
        (root / name).write_text(text.replace('eval = ["data/eval.jsonl"]\n', ""))
    for drive in "ab":
        (root / "drives" / drive).mkdir(parents=True)
    longshore("train", "host.toml")
    longshore("prepare", "chat.toml")
    (root / "answers").mkdir()
    longshore("generate", "chat.toml", "--from", "model", "--chat", "--max-new-tokens", "2",
              "--in", "data/prompts.jsonl", "--out", "answers/answers.jsonl")
    longshore("train", "drives.toml", "--checkpoint.every_steps=0", "--checkpoint.export=never",
              "--train.steps=4")
    # Steps that only the drives have.
    shutil.rmtree(root / "runs/drives/checkpoints")
    (root / "runs/drives/checkpoints").mkdir()
