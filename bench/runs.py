"""What the scripts of this folder that train need: a small Llama, rows, a run's steps."""
import json
import random
import shutil
import subprocess
import sys

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


def run(command):
    """Runs a program; ends with what it said if it fails."""
    done = subprocess.run(command, text=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                          check=False)
    if done.returncode != 0:
        sys.exit(done.stderr)


def write_weights(binary, run_file, model):
    """Gives a model its file of random weights: what a run with a learning rate of 0 exports."""
    folder = model.with_name("weights")
    run([binary, "train", run_file, f"--run.dir={folder}", "--model.init=random",
         "--adapter.kind=none", "--adapter.base=published", "--optimizer.lr=0.0",
         "--train.steps=1", "--checkpoint.export=end"])
    for file in (folder / "hf").glob("model*.safetensors*"):
        file.rename(model / file.name)
    shutil.rmtree(folder)


def steps_of(run):
    """The step lines of a run's record; none where there is no record yet."""
    path = run / "metrics.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [line for line in map(json.loads, lines) if line["kind"] == "step"]
