#!/usr/bin/env python3
"""Makes tests/parity/golden_generation: greedy answers of transformers for every family.

Needs scripts/dev/venv; made with transformers 5.23.0. Usage: make_generation_golden.py [case ...];
without arguments all. A case is a golden model (make_golden.py), or golden/llama with an adapter of
golden_adapter or in NF4 (golden_nf4). Its file has

  base      the golden model; `adapter` is a folder of golden_adapter, `packed` names NF4
  config    a JSON merge patch of the model's config.json: it has room for PLACES positions
  drawn     if some of the model's tables are drawn anew, how: as weights.json (weights.py)
  gap       the least distance between the best logit and the second, over all answers
  answers   for prompts of several lengths the answer's tokens, and the log-probability of each

Every answer has 64 tokens, at least 16 different ones, none that ends a text or stands for an
image; best and second logit are at least 1e-4 apart (2e-4 here); at least 16 tokens are others than
those that follow their last token alone, so that an answer without its state is wrong; and no
router's choice is near. Random models that are this small tend to repeat a token. So the tables of
a case are drawn anew, with other keys and deviations, until prompts with such answers are found
among random ones. The longest prompt is longer than every window, and longrope's original length
(phi3) is passed while decoding.

The answers are those of generate(use_cache=False), in fp32 with eager attention on one thread. A
loop over model(input_ids, use_cache=False) finds them and gives the logits; that generate() has the
same tokens is checked for each. Its cached decoding of nemotron_h differs from this one.
"""
import copy
import json
import re
import shutil
import sys
import tempfile
from pathlib import Path

sys.dont_write_bytecode = True
import torch
import transformers
from peft import PeftModel
from safetensors.torch import load_file, save_file

import make_golden
import weights
from expert_cases import TRAINING_MARGIN, Routing

ROOT = make_golden.ROOT.parent / "golden_generation"
ADAPTERS = make_golden.ROOT.parent / "golden_adapter"
NF4 = make_golden.ROOT.parent / "golden_nf4"
TOKENS, DIFFERENT, LEAST_GAP, FROM_STATE = 64, 16, 2e-4, 16
LENGTHS = [1, 4, 9, 14, 23]
PLACES = 96
CANDIDATES = 32
DEVIATIONS = [1.0, 0.1, 0.25, 0.03]
ATTEMPTS = 80
# These differ from another case in their files or in training alone.
LEFT_OUT = {"llama-bf16", "llama-indexed", "qwen3_moe-balanced", "qwen3_moe-fused",
            "gpt_oss-balanced", "gpt_oss-mxfp4", "nemotron_h-fused"}
CASES = {name: {"base": name} for name in make_golden.CASES if name not in LEFT_OUT}
CASES.update({"llama-lora": {"base": "llama", "adapter": "llama"},
              "llama-dora": {"base": "llama", "adapter": "llama-dora"},
              "llama-nf4": {"base": "llama", "packed": "nf4"}})
TABLE = re.compile(r"(^|\.)(embed_tokens|embeddings|wte|wpe|lm_head)\.weight$")


def folder_of(base):
    roots = (make_golden.ROOT, make_golden.EXPERTS_ROOT)
    return next(root / base for root in roots if (root / base).exists())


def patch_of(config):
    """What gives the config room for PLACES positions."""
    patch = {key: PLACES for key in ("max_position_embeddings", "n_positions")
             if config.get(key, PLACES) < PLACES}
    inner = patch_of(config["text_config"]) if "text_config" in config else {}
    return {**patch, "text_config": inner} if inner else patch


def merged(config, patch):
    return {**config, **{key: merged(config[key], value) if isinstance(value, dict) else value
                         for key, value in patch.items()}}


def not_answers(config):
    """Tokens that end a text or stand for something else than text."""
    found = {1, 2}  # of all golden models
    for key, value in config.items():
        if re.search(r"(image|video|boi|eoi|vision_\w+)_token_(id|index)$", key):
            found.add(value)
    return found


def nf4_values():
    """The matrices of golden_nf4, in fp32: level times scale, by their names."""
    files = load_file(NF4 / "model.safetensors")
    values = {}
    for name in [key.removesuffix(".absmax") for key in files if key.endswith(".weight.absmax")]:
        state = json.loads(bytes(files[name + ".quant_state.bitsandbytes__nf4"].tolist()))
        codes = files[name + ".absmax"].long()
        largest = files[name + ".nested_absmax"][torch.arange(len(codes)) // 256]
        scales = files[name + ".nested_quant_map"][codes] * largest + state["nested_offset"]
        pairs = files[name].flatten().int()
        levels = files[name + ".quant_map"][torch.stack([pairs >> 4, pairs & 15], 1).flatten()]
        values[name] = (levels.view(-1, 64) * scales[:, None]).view(state["shape"])
    return values


class Case:
    """A golden model in a folder of its own, with tables that can be drawn anew."""

    def __init__(self, name, folder):
        self.facts, self.folder = CASES[name], Path(folder)
        base = self.facts["base"]
        self.golden = make_golden.CASES[base]
        weights.copy_with_weights(folder_of(base), folder)
        config = json.loads((self.folder / "config.json").read_text())
        self.patch = patch_of(config)
        self.not_answers = not_answers(config)
        (self.folder / "config.json").write_text(json.dumps(merged(config, self.patch)))
        self.files = load_file(self.folder / "model.safetensors")
        if "packed" in self.facts:
            self.files.update(nf4_values())

    def recipe(self, key, deviation):
        """How the tables are drawn; with no deviation those alone that need more rows."""
        tensors = {}
        for name, table in sorted(self.files.items()):
            if not TABLE.search(name) or "vision" in name:
                continue
            if name.endswith("wpe.weight"):
                tensors[name] = [[PLACES, table.shape[1]], 0.0, deviation or 0.25]
            elif deviation is not None:
                tensors[name] = [list(table.shape), 0.0, deviation]
        return {"key": key, "tensors": tensors} if tensors else None

    def model(self, recipe):
        files = dict(self.files)
        for number, (name, tensor) in enumerate(recipe["tensors"].items() if recipe else []):
            values = bytearray(weights.draw(recipe["key"], number, *tensor))
            files[name] = torch.frombuffer(values, dtype=torch.float32).view(tensor[0])
        save_file(files, self.folder / "model.safetensors", metadata={"format": "pt"})
        model = make_golden.load(self.golden, self.folder)
        model.generation_config.eos_token_id = None
        if "adapter" in self.facts:
            model = PeftModel.from_pretrained(model, ADAPTERS / self.facts["adapter"] / "adapter")
        return model.eval()


def next_logits(model, ids):
    return model(input_ids=ids, use_cache=False).logits[:, -1].float()


def decode(model, prompts):
    """The answers to prompts of the same length, the log-probabilities of their tokens, and how
    far the best logit is from the second."""
    ids, chosen, gaps = prompts, [], []
    for _ in range(TOKENS):
        logits = next_logits(model, ids)
        best = logits.topk(2)
        gaps.append(best.values[:, 0] - best.values[:, 1])
        chosen.append(logits.log_softmax(-1).gather(1, best.indices[:, :1])[:, 0])
        ids = torch.cat([ids, best.indices[:, :1]], 1)
    return ids[:, prompts.shape[1]:], torch.stack(chosen, 1), torch.stack(gaps, 1).amin(1)


def is_fit(case, tokens, gap):
    return (gap >= LEAST_GAP and len(set(tokens)) >= DIFFERENT
            and not case.not_answers & set(tokens))


def answer(case, model, routing, prompt):
    """The answer to one prompt, with its gap; None where it is not fit."""
    if routing:
        routing.margin = float("inf")
    tokens, chosen, gaps = decode(model, prompt)
    tokens, chosen, gap = tokens[0].tolist(), chosen[0].tolist(), gaps[0].item()
    if not is_fit(case, tokens, gap) or (routing and routing.margin < TRAINING_MARGIN):
        return None
    alone = next_logits(model, torch.tensor([prompt[0, -1:].tolist() + tokens[:-1]]).T).argmax(-1)
    if sum(token != other for token, other in zip(tokens, alone.tolist())) < FROM_STATE:
        return None
    generated = model.generate(input_ids=prompt, attention_mask=torch.ones_like(prompt),
                               do_sample=False, use_cache=False, max_new_tokens=TOKENS,
                               pad_token_id=0, return_dict_in_generate=True).sequences
    assert generated[0, prompt.shape[1]:].tolist() == tokens, "generate() has other tokens"
    return {"prompt": prompt[0].tolist(), "tokens": tokens,
            "log_probabilities": [float(f"{value:.7g}") for value in chosen]}, gap


def answers(case, model, seed):
    """A fit answer for each length and the least gap; None where there is none for a length."""
    routing = Routing(model) if "idle" in case.golden else None
    generator = torch.Generator().manual_seed(seed)
    found = []
    for length in LENGTHS:
        prompts = torch.randint(3, 250, (CANDIDATES, length), generator=generator)
        tokens, _, gaps = decode(model, prompts)
        fit = (answer(case, model, routing, prompts[i:i + 1]) for i in range(CANDIDATES)
               if is_fit(case, tokens[i].tolist(), gaps[i].item()))
        first = next((one for one in fit if one is not None), None)
        if first is None:
            return None
        found.append(first)
    return [one for one, _ in found], min(gap for _, gap in found)


def text_of(facts):
    """JSON with a line for each list of numbers and each drawn tensor."""
    lists = []

    def held(value):
        if isinstance(value, list) and value and not isinstance(value[0], dict):
            lists.append(json.dumps(value, separators=(",", ":")))
            return f"@{len(lists) - 1}@"
        if isinstance(value, list):
            return [held(one) for one in value]
        return {key: held(one) for key, one in value.items()} if isinstance(value, dict) else value

    text = json.dumps(held(copy.deepcopy(facts)), indent=0)
    return re.sub(r'"@(\d+)@"', lambda match: lists[int(match[1])], text) + "\n"


def make_case(name):
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        case = Case(name, folder)
        for attempt in range(ATTEMPTS):
            deviation = DEVIATIONS[(attempt - 1) % len(DEVIATIONS)] if attempt else None
            recipe = case.recipe(attempt, deviation)
            found = answers(case, case.model(recipe), seed=attempt)
            if found is not None:
                break
        assert found is not None, f"{name}: no weights are fit"
    facts = {**CASES[name], "config": case.patch, **({"drawn": recipe} if recipe else {}),
             "gap": float(f"{found[1]:.2g}"), "answers": found[0]}
    ROOT.mkdir(exist_ok=True)
    (ROOT / f"{name}.json").write_text(text_of(facts))
    different = [len(set(one["tokens"])) for one in found[0]]
    print(f"{name}: attempt {attempt}, deviation {deviation}, different tokens {different}, "
          f"least gap {found[1]:.1e}", flush=True)


if __name__ == "__main__":
    assert transformers.__version__ == "5.23.0", transformers.__version__
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    if len(sys.argv) == 1:
        shutil.rmtree(ROOT, ignore_errors=True)
    make_golden.main(CASES, make_case)
