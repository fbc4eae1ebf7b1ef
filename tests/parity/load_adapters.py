#!/usr/bin/env python3
"""Loads adapters that Longshore exported with PEFT, and compares their merge with Longshore's.

Needs scripts/dev/venv. Usage: load_adapters.py MODEL ADAPTER [MERGED]: the model's directory, that
of the adapter, and that of the merged model if there is one. Every tensor of the adapter must have
a place in PEFT's model and its value there, every part of an adapter that PEFT makes must be in the
file, and the settings must be the ones that PEFT would write. With MERGED, merge_and_unload of PEFT
in fp32 must give its weights within 2 units in the last place of each tensor's largest element, in
the type of MERGED.
"""
import json
import sys
import warnings
from pathlib import Path

sys.dont_write_bytecode = True
import torch
from peft import LoraConfig, PeftModel, get_peft_model_state_dict
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText
from transformers import logging as transformers_logging

from expert_cases import in_files


def load_model(directory):
    wrapper = "text_config" in json.loads((Path(directory) / "config.json").read_text())
    kind = AutoModelForImageTextToText if wrapper else AutoModelForCausalLM
    return kind.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager")


def weights_of(directory):
    return {name: value for file in sorted(Path(directory).glob("model*.safetensors"))
            for name, value in load_file(file).items()}


def wrong_settings(directory):
    """Keys that PEFT would write otherwise for the same adapter."""
    path = Path(directory) / "adapter_config.json"
    mine = json.loads(path.read_text())
    theirs = {key: sorted(value) if isinstance(value, set) else value
              for key, value in LoraConfig.from_pretrained(directory).to_dict().items()}
    mine["target_modules"] = sorted(mine["target_modules"])
    return [key for key in mine.keys() | theirs.keys()
            if mine.get(key, "absent") != theirs.get(key, "absent")]


def compare_adapter(model, directory):
    """Problems of the adapter in PEFT's model; PEFT itself only warns of most."""
    stored = load_file(Path(directory) / "adapter_model.safetensors")
    held = get_peft_model_state_dict(model, save_embedding_layers=False)
    problems = [f"{name}: PEFT has no place for it" for name in stored.keys() - held.keys()]
    problems += [f"{name}: not in the file" for name in held.keys() - stored.keys()]
    problems += [f"{name}: PEFT holds other values" for name in stored.keys() & held.keys()
                 if not torch.equal(held[name], stored[name].float())]
    return problems, len(stored)


def compare_merged(model, merged_directory):
    state, merged = model.merge_and_unload().state_dict(), weights_of(merged_directory)
    case = {"config": model.config.to_dict()}
    if any(".experts." in name for name in merged):
        case.update(idle=[], fused=any(name.endswith("gate_up_proj") for name in merged))
    found = dict(pair for name, value in state.items() for pair in in_files(case, name, value))
    problems, furthest, compared = [], 0.0, 0
    for name, mine in merged.items():
        theirs = found.get(name, found.get("transformer." + name))
        if theirs is None:
            problems.append(f"{name}: transformers has no such parameter")
            continue
        largest = theirs.to(mine.dtype).abs().max()
        ulp = (torch.nextafter(largest, torch.full_like(largest, torch.inf)) - largest).double()
        off = ((mine.double() - theirs.double()).abs().max() / ulp).item()
        furthest, compared = max(furthest, off), compared + 1
        if off > 2.0:
            problems.append(f"{name}: {off:.1f} units in the last place from PEFT's merge")
    return problems, furthest, compared


def main():
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    model_directory, adapter = sys.argv[1:3]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = PeftModel.from_pretrained(load_model(model_directory), adapter).eval()
    problems, tensors = compare_adapter(model, adapter)
    problems += [f"adapter_config.json: {key} differs" for key in wrong_settings(adapter)]
    problems += [str(warning.message) for warning in caught if "adapter" in str(warning.message)]
    print(f"{adapter}: {tensors} tensors")
    if len(sys.argv) == 4:
        more, furthest, compared = compare_merged(model, sys.argv[3])
        problems += more
        print(f"{sys.argv[3]}: {compared} tensors, at most {furthest:.2f} units in the last place "
              "from merge_and_unload")
    print("\n".join(problems) or "as it should")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
