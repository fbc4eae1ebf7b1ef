#!/usr/bin/env python3
"""Makes tests/parity/golden_adapter: LoRA and DoRA adapters of PEFT on models of golden/.

Needs scripts/dev/venv. Usage: make_adapter_golden.py [case ... | older]; without arguments all. The
models and their rows are those of make_golden.py. Every case is a directory:

  adapter/            the adapter that the run starts from, as PEFT's save_pretrained writes it. Its
                      B (an embedding's A) is not zero, so that A (B) has a gradient in the first
                      step
  golden.json         the model, the adapter's settings, the sizes of modules with another rank or
                      alpha, those of the optimizer, losses and gradient norms of the run, and how
                      far the same run in fp64 is from them
  golden_sketches.json  sketches (sketches.py) of final, the values after the run, by PEFT's names,
                      and of merged, parameters after merge_and_unload, by the names of the files

All of it is fp32 on the CPU with eager attention and no dropout.

A new adapter of PEFT has B = 0 and A drawn by torch.nn.init.kaiming_uniform_(a=sqrt(5)), that is
uniform between -1/sqrt(inputs) and 1/sqrt(inputs); with init_lora_weights="gaussian" A is normal
with deviation 1/r (peft/tuners/lora/layer.py, LoraLayer.reset_lora_parameters). A new
magnitude of DoRA is the norm of the weights of its output; an output of an embedding is a column. A
new adapter of an embedding has A = 0 and a normal B. `check_first_values` makes sure of all but the
second.
"""
import copy
import json
import math
import shutil
import sys

sys.dont_write_bytecode = True
import torch
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict
from peft.tuners.lora.layer import Embedding, LoraLayer
from safetensors.torch import load_file, save_file

import make_golden
from sketches import write_sketches
from trajectory_spread import all_in_fp64, apart

ROOT = make_golden.ROOT.parent / "golden_adapter"
LEARNING_RATE = 1e-2  # moves B by a multiple of its first values in 20 steps
DEVIATION_OF_B = 0.05

ALL_LINEAR = {"r": 4, "lora_alpha": 8, "target_modules": "all-linear"}
# Each case names its model, what LoraConfig is given, and the parameters that
# golden_sketches.json has after a merge.
CASES = {
    "llama": {"base": "llama", "lora": ALL_LINEAR,
              "merged": ["model.layers.0.self_attn.k_proj.weight",
                         "model.layers.1.mlp.down_proj.weight", "lm_head.weight"]},
    # Both modules have biases, which stay frozen.
    "qwen2": {"base": "qwen2",
              "lora": {"r": 4, "lora_alpha": 6, "target_modules": ["q_proj", "v_proj"]},
              "merged": ["model.layers.0.self_attn.q_proj.weight",
                         "model.layers.2.self_attn.v_proj.bias"]},
    # The head is the embedding.
    "qwen3": {"base": "qwen3", "lora": ALL_LINEAR,
              "merged": ["model.layers.0.self_attn.q_proj.weight",
                         "model.layers.1.mlp.gate_proj.weight"]},
    # The product is multiplied by alpha / sqrt(r).
    "llama-rslora": {"base": "llama", "lora": {**ALL_LINEAR, "use_rslora": True},
                     "merged": ["model.layers.1.self_attn.v_proj.weight"]},
    # Weights are stored as [inputs, outputs]; c_proj is in the attention and in the MLP.
    "gpt2": {"base": "gpt2", "lora": {"r": 4, "lora_alpha": 8, "fan_in_fan_out": True,
                                      "target_modules": ["c_attn", "c_proj", "c_fc"]},
             "merged": ["transformer.h.0.attn.c_attn.weight", "transformer.h.1.mlp.c_proj.weight"]},
    # The targets are products of several matrices side by side.
    "phi3": {"base": "phi3", "lora": {"r": 4, "lora_alpha": 8,
                                      "target_modules": ["qkv_proj", "o_proj", "gate_up_proj",
                                                         "down_proj"]},
             "merged": ["model.layers.0.self_attn.qkv_proj.weight"]},
    # The norms before attention are trained as a whole.
    "llama-norms": {"base": "llama",
                    "lora": {"r": 4, "lora_alpha": 8, "modules_to_save": ["input_layernorm"],
                             "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"]},
                    "merged": ["model.layers.0.self_attn.o_proj.weight",
                               "model.layers.1.input_layernorm.weight"]},
    # Rank, alpha and target modules are PEFT's defaults for llama.
    "llama-defaults": {"base": "llama", "lora": {},
                       "merged": ["model.layers.0.self_attn.q_proj.weight"]},
    # Every output has a trained magnitude.
    "llama-dora": {"base": "llama", "lora": {**ALL_LINEAR, "use_dora": True},
                   "merged": ["model.layers.0.self_attn.k_proj.weight",
                              "model.layers.1.mlp.down_proj.weight", "lm_head.weight"]},
    # Outputs are columns of the stored weights; all modules have biases.
    "gpt2-dora": {"base": "gpt2", "lora": {"r": 4, "lora_alpha": 8, "fan_in_fan_out": True,
                                           "use_dora": True,
                                           "target_modules": ["c_attn", "c_proj", "c_fc"]},
                  "merged": ["transformer.h.0.attn.c_attn.weight",
                             "transformer.h.1.mlp.c_proj.weight",
                             "transformer.h.1.mlp.c_proj.bias"]},
    # Experts and router are parameters of their modules. PEFT doubles rank and alpha of gate and
    # up, one parameter, and leaves out the MLP of a dense layer. Its LoRA of experts needs
    # rounding that Adam does not enlarge: an eps above it.
    "qwen3_moe": {"base": "qwen3_moe", "lora": ALL_LINEAR, "eps": 1e-4,
                  "merged": ["model.layers.0.mlp.experts.gate_up_proj",
                             "model.layers.2.mlp.experts.down_proj",
                             "model.layers.1.mlp.down_proj.weight"]},
    "mixtral": {"base": "mixtral", "lora": {**ALL_LINEAR, "use_rslora": True}, "eps": 1e-4,
                "merged": ["model.layers.0.mlp.experts.gate_up_proj",
                           "model.layers.1.mlp.gate.weight"]},
    # The text tower of a wrapper, whose names are those of the wrapper's modules.
    "gemma3": {"base": "gemma3",
               "lora": {"r": 4, "lora_alpha": 8, "target_modules": [
                   f"model.language_model.layers.{layer}.{module}" for layer in range(2)
                   for module in ("self_attn.q_proj", "self_attn.o_proj", "mlp.down_proj")]},
               "merged": []},
    # The embedding and the head have adapters of their own; those of the embedding have other
    # names, and its A has a column for each token.
    "llama-tables": {"base": "llama",
                     "lora": {"r": 4, "lora_alpha": 8,
                              "target_modules": ["embed_tokens", "lm_head", "v_proj"]},
                     "merged": ["model.embed_tokens.weight", "lm_head.weight"]},
    # The switch of the expert for all tokens has an adapter; gate and up have the rank of other
    # parameters, as in every family whose experts were not adapted with transformers 4.
    "qwen2_moe": {"base": "qwen2_moe", "eps": 1e-4,
                  "lora": {"r": 4, "lora_alpha": 8,
                           "target_modules": ["q_proj", "shared_expert_gate", "v_proj"],
                           "target_parameters": ["down_proj", "gate.weight", "gate_up_proj"]},
                  "merged": ["model.layers.0.mlp.shared_expert_gate.weight",
                             "model.layers.1.mlp.experts.gate_up_proj"]},
    # Experts are stored as [in, out], gate and up in turn, with biases. PEFT's all-linear has the
    # attention alone, and gate and up have the rank of other parameters.
    "gpt_oss": {"base": "gpt_oss", "eps": 1e-4,
                "lora": {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"],
                         "target_parameters": ["down_proj", "gate_up_proj", "router.weight"]},
                "merged": ["model.layers.0.mlp.experts.gate_up_proj",
                           "model.layers.1.mlp.experts.down_proj",
                           "model.layers.1.mlp.router.weight"]},
    # Scores are sigmoids; dense layers and the expert for all tokens have no adapters.
    "glm4_moe": {"base": "glm4_moe", "lora": ALL_LINEAR, "eps": 1e-4,
                 "merged": ["model.layers.1.mlp.experts.down_proj",
                            "model.layers.1.mlp.gate.weight"]},
    "deepseek_v3": {"base": "deepseek_v3", "lora": ALL_LINEAR, "eps": 1e-4,
                    "merged": ["model.layers.1.mlp.experts.gate_up_proj"]},
    "qwen3_next": {"base": "qwen3_next", "lora": ALL_LINEAR, "eps": 1e-4,
                   "merged": ["model.layers.0.mlp.experts.down_proj"]},
    # The experts have no gates, and a width of their own.
    "nemotron_h-latent": {"base": "nemotron_h-latent", "eps": 1e-4,
                          "lora": {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"],
                                   "target_parameters": ["down_proj", "gate.weight", "up_proj"]},
                          "merged": ["model.layers.0.mixer.experts.up_proj",
                                     "model.layers.3.mixer.experts.down_proj"]},
    # The embedding is trained as a whole and stays the head.
    "qwen3-tied": {"base": "qwen3",
                   "lora": {"r": 4, "lora_alpha": 6, "target_modules": ["q_proj", "v_proj"],
                            "modules_to_save": ["embed_tokens"], "ensure_weight_tying": True},
                   "merged": ["model.embed_tokens.weight"]},
    # Magnitudes of the embedding belong to its columns, those of the head to tokens.
    "llama-tables-dora": {"base": "llama",
                          "lora": {"r": 4, "lora_alpha": 8, "use_dora": True,
                                   "target_modules": ["embed_tokens", "lm_head", "v_proj"]},
                          "merged": ["model.embed_tokens.weight", "lm_head.weight",
                                     "model.layers.1.self_attn.v_proj.weight"]},
    # Ranks and alphas of their own: of a whole name, of an end of names, of a regular expression.
    "llama-patterns": {"base": "llama",
                       "lora": {"r": 4, "lora_alpha": 8,
                                "target_modules": ["q_proj", "k_proj", "v_proj", "up_proj",
                                                   "down_proj"],
                                "rank_pattern": {"^model.layers.0.self_attn.q_proj": 2,
                                                 "down_proj": 6,
                                                 r"layers\.1\..*\.[kv]_proj": 8},
                                "alpha_pattern": {"down_proj": 3, "layers.1.mlp.up_proj": 2.5}},
                       "merged": ["model.layers.0.self_attn.q_proj.weight",
                                  "model.layers.1.self_attn.v_proj.weight",
                                  "model.layers.1.mlp.down_proj.weight"]},
    # Every matrix is scaled by its own alpha / sqrt(r); experts' down has a rank of its own.
    "qwen3_moe-patterns": {"base": "qwen3_moe", "eps": 1e-4,
                           "lora": {**ALL_LINEAR, "use_rslora": True,
                                    "rank_pattern": {"experts.down_proj": 6, "q_proj": 2},
                                    "alpha_pattern": {"mlp.gate.weight": 4}},
                           "merged": ["model.layers.0.self_attn.q_proj.weight",
                                      "model.layers.0.mlp.experts.gate_up_proj",
                                      "model.layers.2.mlp.experts.down_proj"]},
    # Some layers and excluded modules; the embedding is no layer.
    "llama-layers": {"base": "llama",
                     "lora": {"r": 4, "lora_alpha": 8, "layers_to_transform": [1],
                              "exclude_modules": ["v_proj"],
                              "target_modules": ["q_proj", "v_proj", "down_proj"]},
                     "merged": ["model.layers.1.self_attn.q_proj.weight",
                                "model.layers.0.self_attn.q_proj.weight"]},
    # Regular expressions for the whole names of targets and of excluded modules.
    "llama-regex": {"base": "llama",
                    "lora": {"r": 4, "lora_alpha": 8, "exclude_modules": r".*\.0\.mlp\..*",
                             "target_modules":
                                 r"model\.layers\.\d+\.(self_attn\.(q|k)_proj|mlp\.(?!up).+_proj)"},
                    "merged": ["model.layers.0.self_attn.k_proj.weight",
                               "model.layers.1.mlp.down_proj.weight"]},
    # Biases of adapted modules are trained; there are others.
    "qwen2-bias": {"base": "qwen2",
                   "lora": {"r": 4, "lora_alpha": 6, "target_modules": ["q_proj", "up_proj"],
                            "bias": "lora_only"},
                   "merged": ["model.layers.0.self_attn.q_proj.weight",
                              "model.layers.2.self_attn.q_proj.bias",
                              "model.layers.2.self_attn.v_proj.bias"]},
    # All biases are trained, those of norms too. Those of keys have no gradient but for rounding,
    # which a larger eps keeps small.
    "gpt2-bias": {"base": "gpt2", "eps": 1e-4,
                  "lora": {"r": 4, "lora_alpha": 8, "fan_in_fan_out": True, "bias": "all",
                           "target_modules": ["c_attn", "c_fc"]},
                  "merged": ["transformer.h.0.attn.c_attn.weight",
                             "transformer.h.0.attn.c_attn.bias", "transformer.h.1.ln_2.bias"]},
}
SEEDS = {name: 3000 + number for number, name in enumerate(CASES)}


def check_first_values(model):
    """A new A fills the interval that the head of this file names, B is zero, and the magnitude of
    an output is the norm of its weights. Of an embedding A is zero and B normal."""
    weights = dict(model.named_parameters())
    for name, parameter in model.named_parameters():
        if ".lora_A." in name:
            bound = 1.0 / math.sqrt(parameter.shape[1])
            largest = parameter.abs().max().item()
            assert 0.8 * bound < largest <= bound, (name, largest, bound)
        elif ".lora_B." in name:
            assert not parameter.any(), name
        elif ".lora_embedding_A." in name:
            assert not parameter.any(), name
        elif ".lora_embedding_B." in name:
            assert 0.5 < parameter.std() < 2.0, name
        elif ".lora_magnitude_vector." in name:
            module = name[:name.index(".lora_magnitude_vector.")]
            weight = weights[module + ".base_layer.weight"]
            layer = model.get_submodule(module)
            if layer.fan_in_fan_out or isinstance(layer, Embedding):
                weight = weight.T
            assert torch.allclose(parameter, weight.norm(dim=1), rtol=1e-6), name


def directory_of(base):
    experts = "idle" in make_golden.CASES[base]
    return (make_golden.EXPERTS_ROOT if experts else make_golden.ROOT) / base


def adapted(name):
    """A model with a new adapter whose B is not zero; PEFT's wrapper of it."""
    case = CASES[name]
    base = make_golden.load(make_golden.CASES[case["base"]], directory_of(case["base"]))
    torch.manual_seed(SEEDS[name])
    model = get_peft_model(base, LoraConfig(task_type="CAUSAL_LM", lora_dropout=0.0,
                                            **case["lora"]))
    check_first_values(model)
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if ".lora_B." in parameter_name or ".lora_embedding_A." in parameter_name:
                parameter.normal_(std=DEVIATION_OF_B)
            elif ".lora_magnitude_vector." in parameter_name:  # differs from the norm
                parameter.mul_(1.0 + torch.rand(parameter.shape) * 0.1)
            elif ".modules_to_save." in parameter_name or (
                    parameter.requires_grad and parameter_name.endswith(".bias")):
                # Differs from the model's own.
                parameter.add_(torch.randn(parameter.shape) * 0.1)
    # As a run of the repository's root would name it.
    model.peft_config["default"].base_model_name_or_path = str(
        directory_of(case["base"]).relative_to(make_golden.ROOT.parents[2]))
    return model.eval()


def tensors_of(model):
    """What an adapter's file holds."""
    found = get_peft_model_state_dict(model, save_embedding_layers=False)
    return {name: value.detach().clone().contiguous() for name, value in found.items()}


def write_adapter(model, directory):
    model.save_pretrained(directory, save_embedding_layers=False)
    (directory / "README.md").unlink()
    # PEFT writes its sets in an order that differs from run to run.
    path = directory / "adapter_config.json"
    config = json.loads(path.read_text())
    for key in ("target_modules", "target_parameters", "exclude_modules"):
        if isinstance(config[key], list):
            config[key].sort()
    path.write_text(json.dumps(config, indent=2, sort_keys=True))


def targets_of(model, settings):
    """The names of target_modules, or of the modules that are selected in another way."""
    is_open = (isinstance(settings.target_modules, str) or settings.exclude_modules
               or settings.layers_to_transform is not None)
    return sorted(model.targeted_module_names if is_open else settings.target_modules)


def own_sizes(model, settings):
    """Rank and alpha of modules that have others than the settings say, by names in the file."""
    sizes = {}
    for name, module in model.named_modules():
        if not isinstance(module, LoraLayer):
            continue
        size = {"r": module.r["default"], "lora_alpha": module.lora_alpha["default"]}
        if size != {"r": settings.r, "lora_alpha": settings.lora_alpha}:
            sizes[name] = size
    return sizes


def run_in_fp64(model, rows, adamw):
    exact = copy.deepcopy(model).double()
    with all_in_fp64():
        losses, norms = make_golden.train(exact, rows, 0.0, adamw)
    return losses, norms, tensors_of(exact)


def make_case(name):
    case = CASES[name]
    directory = ROOT / name
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    model = adapted(name)
    write_adapter(model, directory / "adapter")
    first = tensors_of(model)
    stored = load_file(directory / "adapter" / "adapter_model.safetensors")
    assert first.keys() == stored.keys()
    assert all(torch.equal(value, stored[key]) for key, value in first.items())

    rows = [json.loads(line) for line in
            (directory_of(case["base"]) / "train.jsonl").open()]
    adamw = {**make_golden.adamw_of(make_golden.CASES[case["base"]]), "lr": LEARNING_RATE}
    adamw["eps"] = case.get("eps", adamw["eps"])
    exact_losses, exact_norms, exact = run_in_fp64(model, rows, adamw)
    losses, norms = make_golden.train(model, rows, 0.0, adamw)
    final = tensors_of(model)
    golden = {f"final.{key}": value for key, value in final.items()}

    settings = model.peft_config["default"]
    merged = dict(copy.deepcopy(model).merge_and_unload().named_parameters())
    for key in case["merged"]:
        golden.update({f"merged.{in_file}": value.detach().clone() for in_file, value in
                       make_golden.named_in_files(make_golden.CASES[case["base"]], key,
                                                  merged[key])})
    write_sketches(golden, directory / "golden_sketches.json")
    fp64 = {"loss": apart(losses, exact_losses), "grad_norm": apart(norms, exact_norms),
            "weights": max(((value - exact[key]).norm() / exact[key].norm()).item()
                           for key, value in final.items())}
    facts = {"base": case["base"],
             "adapter": {"r": settings.r, "lora_alpha": settings.lora_alpha,
                         "use_dora": settings.use_dora, "use_rslora": settings.use_rslora,
                         "fan_in_fan_out": settings.fan_in_fan_out,
                         "target_modules": targets_of(model, settings),
                         "target_parameters": sorted(settings.target_parameters or []),
                         "modules_to_save": settings.modules_to_save, "bias": settings.bias},
             "sizes": own_sizes(model, settings),
             "steps": make_golden.STEPS, "sequences_per_step": make_golden.SEQUENCES_PER_STEP,
             "adamw": adamw, "apart_from_fp64": fp64,
             "runs": {"free": {"max_grad_norm": 0.0, "loss": losses, "grad_norm": norms}}}
    (directory / "golden.json").write_text(json.dumps(facts, indent=1) + "\n")
    size = sum(file.stat().st_size for file in directory.rglob("*") if file.is_file())
    moved = min(((value - first[key]).norm() / first[key].norm()).item()
                for key, value in final.items())
    print(f"{name}: {size / 1024:.0f} KiB, loss {losses[0]:.3f} -> {losses[-1]:.3f}, "
          f"norm {min(norms):.2f} .. {max(norms):.2f}, least move of a tensor {moved:.2f}, "
          f"from fp64: loss {fp64['loss']:.1e}, norm {fp64['grad_norm']:.1e}, "
          f"weights {fp64['weights']:.1e}")


def make_older():
    """tests/parity/golden_adapter_older: an adapter with matrices of single experts, as PEFT wrote
    it with transformers 4 (older/), and what PEFT 0.21 makes of it (adapter/)."""
    directory = ROOT.parent / "golden_adapter_older"
    shutil.rmtree(directory, ignore_errors=True)
    (directory / "older").mkdir(parents=True)
    base = directory_of("mixtral")
    generator = torch.Generator().manual_seed(4000)
    rank, tensors = 2, {}
    for name, value in load_file(base / "model.safetensors").items():
        last = name.split(".")[-2]
        if last in ("q_proj", "w1", "w2", "w3", "gate"):
            module = "base_model.model." + name[:-len(".weight")]
            tensors[module + ".lora_A.weight"] = torch.randn(rank, value.shape[1],
                                                             generator=generator)
            tensors[module + ".lora_B.weight"] = 0.05 * torch.randn(value.shape[0], rank,
                                                                    generator=generator)
    save_file(tensors, directory / "older" / "adapter_model.safetensors", {"format": "pt"})
    LoraConfig(task_type="CAUSAL_LM", r=rank, lora_alpha=4, inference_mode=True,
               target_modules=["gate", "q_proj", "w1", "w2", "w3"],
               base_model_name_or_path="tests/parity/golden_moe/mixtral").save_pretrained(
                   directory / "older")
    model = make_golden.load(make_golden.CASES["mixtral"], base)
    write_adapter(PeftModel.from_pretrained(model, directory / "older"), directory / "adapter")


if __name__ == "__main__":
    if sys.argv[1:] == ["older"]:
        make_older()
    else:
        make_golden.main(CASES, make_case)
        if len(sys.argv) == 1:
            make_older()
