"""What transformers computes for the first layers of a model, in fp32: run by `check model`.

Arguments: the model's directory, the number of layers, texts as JSON lists of token ids, a file to
write. The file holds, for every text t, "t.0" (the embedding's output), "t.1", ... (each layer's)
and "t.logits" (of the last position, after the last of these layers), all fp32.
"""
import json
import sys

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText


def cut(config, layers):
    """Makes `config` that of a model with so many layers."""
    text = getattr(config, "text_config", config)
    text.num_hidden_layers = layers
    for name in ("layer_types", "no_rope_layers"):
        kinds = getattr(text, name, None)
        if isinstance(kinds, (list, tuple)):
            setattr(text, name, list(kinds)[:layers])
    return config


def layers_of(model, layers):
    """The decoder's layers, whatever their list is called."""
    for name, module in model.named_modules():
        tower = any(word in name for word in ("vision", "visual", "audio"))
        if isinstance(module, torch.nn.ModuleList) and len(module) == layers and not tower:
            kinds = {type(layer).__name__ for layer in module}
            if all(kind.endswith(("DecoderLayer", "Block", "Layer")) for kind in kinds):
                return list(module)
    raise SystemExit("no list of decoder layers found in " + type(model).__name__)


def main():
    directory, layers, texts, out = sys.argv[1:]
    layers = int(layers)
    config = cut(AutoConfig.from_pretrained(directory), layers)
    kind = AutoModelForImageTextToText if hasattr(config, "text_config") else AutoModelForCausalLM
    model = kind.from_pretrained(directory, config=config, dtype=torch.float32,
                                 attn_implementation="eager").eval()
    states = {}

    position = {}

    def hook(module, args, kwargs, output):
        layer = position[module]
        entered = args[0] if args else kwargs["hidden_states"]
        left = output[0] if isinstance(output, tuple) else output
        if layer == 0:
            states[f"{number}.0"] = entered.reshape(-1, entered.shape[-1]).clone()
        states[f"{number}.{layer + 1}"] = left.reshape(-1, left.shape[-1]).clone()

    for layer, module in enumerate(layers_of(model, layers)):
        position[module] = layer
        module.register_forward_hook(hook, with_kwargs=True)
    with torch.no_grad():
        for number, text in enumerate(json.loads(texts)):
            logits = model(input_ids=torch.tensor([text]), use_cache=False).logits
            states[f"{number}.logits"] = logits[0, -1].float().clone()
    save_file({name: value.float().contiguous() for name, value in states.items()}, out)


main()
