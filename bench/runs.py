"""What the scripts of this folder that train need: a small Llama, rows, a run's steps."""
import json
import random

LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
         "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "max_position_embeddings": 2048}


def write_model(folder, sizes):
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(LLAMA | sizes))


def write_rows(path, vocabulary, tokens):
    """64 rows of random tokens, all of them trained."""
    generator = random.Random(0)
    with open(path, "w", encoding="utf-8") as rows:
        for _ in range(64):
            ids = [generator.randrange(vocabulary) for _ in range(tokens)]
            rows.write(json.dumps({"input_ids": ids, "labels": ids}) + "\n")


def steps_of(run):
    """The step lines of a run's record; none where there is no record yet."""
    path = run / "metrics.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [line for line in map(json.loads, lines) if line["kind"] == "step"]
