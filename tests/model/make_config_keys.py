"""Writes config_keys.json: for each family the keys that transformers' configuration class has, and
those that its model and the shared masks read without one. Needs the sources of transformers, not
torch: python make_config_keys.py SITE_PACKAGES/transformers > config_keys.json

The file was made with transformers 5.23.0.
"""
import ast
import json
import re
import sys
from pathlib import Path

FAMILIES = """llama mistral qwen2 qwen3 gemma2 gemma3_text gemma4_text phi3 olmo2 olmo3 smollm3
glm4 hunyuan_v1_dense ministral3 ministral starcoder2 ernie4_5 granite seed_oss
exaone4 cohere cohere2 qwen3_moe qwen2_moe mixtral olmoe gpt_oss qwen3_5_text
qwen3_5_moe_text qwen3_next glm4_moe deepseek_v3 lfm2 nemotron_h qwen3_5 qwen3_5_moe
gemma3 gemma4 mistral3 muse_glimmer_text muse_glimmer gpt2""".split()
ROOT = Path(sys.argv[1])
CLASSES = {}


def strings_of(call, source):
    return re.findall(call + r"\(\s*['\"](\w+)['\"]", source)


def scan(path):
    for node in ast.parse(path.read_text()).body:
        if not isinstance(node, ast.ClassDef):
            continue
        keys, found = set(), {}
        for part in node.body:
            if isinstance(part, ast.AnnAssign) and "ClassVar" not in ast.unparse(part.annotation):
                keys.add(part.target.id)
            if isinstance(part, ast.Assign) and isinstance(part.targets[0], ast.Name):
                name = part.targets[0].id
                if name == "attribute_map":
                    keys.update(ast.literal_eval(part.value))
                if name == "model_type":
                    found["type"] = part.value.value
            if isinstance(part, ast.FunctionDef) and part.name == "__post_init__":
                keys.update(strings_of(r"kwargs\.(?:pop|get|setdefault)", ast.unparse(part)))
        bases = [ast.unparse(base).split(".")[-1] for base in node.bases]
        CLASSES[node.name] = (keys, bases, found.get("type"))


def keys_of(name):
    if name not in CLASSES:
        return set()
    keys, bases, _ = CLASSES[name]
    return keys.union(*[keys_of(base) for base in bases])


scan(ROOT / "configuration_utils.py")
for file in sorted(ROOT.glob("models/*/configuration_*.py")):
    scan(file)
MASKS = (ROOT / "masking_utils.py").read_text()
SHARED = set(re.findall(r"getattr\(config, ['\"](\w+)['\"]", MASKS))
LIST = {}
for family in FAMILIES:
    name = next(name for name, value in CLASSES.items() if value[2] == family)
    keys = keys_of(name) | SHARED
    folder = family.removesuffix("_text")
    if folder == family:  # the file of a wrapper also has its other towers
        text = (ROOT / f"models/{folder}/modeling_{folder}.py").read_text()
        if "vision_config" not in keys:
            keys |= set(re.findall(r"getattr\((?:self\.)?config, ['\"](\w+)['\"]", text))
    LIST[family] = sorted(key for key in keys if not key.startswith("_"))
print("{\n" + ",\n".join(f'"{name}": {json.dumps(LIST[name])}' for name in LIST) + "\n}")
