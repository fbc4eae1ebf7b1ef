#!/usr/bin/env python3
"""Makes sampling_golden.json: made-up scores of a small vocabulary, settings of sampling, and what
transformers leaves of them: the tokens that can be drawn, with their probabilities, and the
log-probabilities of the scores before any cut.

    .venv/bin/python tests/trainer/make_sampling_golden.py

transformers itself puts its processors in order, for a generation_config of a random model."""
import json
import pathlib

import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM
from transformers.generation.logits_process import LogitsProcessorList

OUT = pathlib.Path(__file__).with_name("sampling_golden.json")
VOCABULARY = 48
SETTINGS = [
    {},
    {"temperature": 0.6},
    {"temperature": 2.5},
    {"top_k": 5},
    {"top_k": 1},
    {"top_k": 200},
    {"top_p": 0.5},
    {"top_p": 0.9},
    {"top_p": 0.01},
    {"min_p": 0.1},
    {"min_p": 1.0},
    {"temperature": 0.7, "top_k": 20, "top_p": 0.8},
    {"temperature": 1.5, "top_p": 0.95, "min_p": 0.05},
    {"temperature": 1.3, "top_k": 12, "top_p": 0.9, "min_p": 0.02},
    {"temperature": 0.8, "top_k": 30, "min_p": 0.2},
]


def random_scores(seed, scale):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(1, VOCABULARY, generator=generator) * scale


def with_equal_scores():
    """The fifth highest score three times: top_k = 5 leaves seven tokens."""
    scores = random_scores(3, 2.0)
    fifth = scores.topk(5).values[0, 4]
    order = scores.argsort(descending=True)[0]
    scores[0, order[6]] = fifth
    scores[0, order[7]] = fifth
    return scores


def processors(model, settings):
    config = GenerationConfig(do_sample=True, **{"temperature": 1.0, "top_k": 0, "top_p": 1.0,
                                                 **settings})
    model.generation_config = config
    return model._get_logits_processor(
        config, input_ids_seq_length=1, encoder_input_ids=torch.zeros(1, 1, dtype=torch.long),
        prefix_allowed_tokens_fn=None, logits_processor=LogitsProcessorList())


def main():
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
        num_attention_heads=1))
    rows = [random_scores(1, 1.0), random_scores(2, 4.0), with_equal_scores()]
    cases = []
    for number, scores in enumerate(rows):
        for settings in SETTINGS:
            left = processors(model, settings)(torch.zeros(1, 1, dtype=torch.long), scores.clone())
            probabilities = left.double().softmax(-1)[0]
            kept = torch.nonzero(torch.isfinite(left[0])).flatten().tolist()
            cases.append({"row": number, "settings": settings, "kept": kept,
                          "probabilities": [round(float(probabilities[i]), 7) for i in kept]})
    golden = {"rows": [row[0].tolist() for row in rows],
              "logprobs": [row.log_softmax(-1)[0].tolist() for row in rows], "cases": cases}
    OUT.write_text(json.dumps(golden) + "\n")
    print(f"{len(cases)} cases in {OUT}, {OUT.stat().st_size} bytes")


if __name__ == "__main__":
    main()
