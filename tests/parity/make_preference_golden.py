#!/usr/bin/env python3
"""Makes tests/parity/golden_preference: preference losses by TRL on models of golden/.

Needs scripts/dev/venv and trl 1.16. Usage: make_preference_golden.py [case ...]; without arguments
all cases. Every case is a directory:

  pairs.jsonl         the pairs as token ids, as TRL's own tokenisation made them; for KTO the rows
  golden.json         the model, the loss and its settings, those of the optimizer, and what TRL's
                      trainer had in each of 20 steps: loss, gradient norm, rewards, logps
  golden_sketches.json  final: a sketch (sketches.py) of each weight after the run

All of it is fp32 on the CPU with eager attention, in batches of 3 pairs or 4 rows of KTO in the
order of the file, without accumulation.

ORPO's first term covers the prompt too in TRL, and is a mean over all tokens of a batch; here it is
a mean over the chosen answer, and pairs have the same weight. Both are equal in its case: a prompt
has one token, which nothing predicts, and chosen answers are equally long. TRL's `sigmoid` ignores
label_smoothing, so dpo with smoothing has no case.
"""
import json
import math
import random
import shutil
import sys
import tempfile

sys.dont_write_bytecode = True
import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from torch.utils.data import SequentialSampler
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast
from trl import DPOConfig, DPOTrainer, KTOConfig, KTOTrainer
from trl.experimental.cpo import CPOConfig, CPOTrainer
from trl.experimental.orpo import ORPOConfig, ORPOTrainer

import make_golden
from sketches import write_sketches

ROOT = make_golden.ROOT.parent / "golden_preference"
STEPS = 20
PAIRS_PER_STEP = 3
PAIRS = 9
ROWS_PER_STEP = 4
# Every step of KTO has rows of both kinds, more or fewer of each.
LABELS = [True, False, False, True, True, True, False, True, False, True, False, False]
ADAMW = {"lr": 2e-3, "betas": [0.9, 0.95], "eps": 1e-6, "weight_decay": 0.0}
# The first gradients of ipo are large. Where they should be 0, a small eps would make whole steps
# of their rounding.
IPO_ADAMW = {**ADAMW, "eps": 1e-4}
# Where gradients of kto nearly cancel, a small eps would make whole steps of their rounding.
KTO_ADAMW = {**ADAMW, "eps": 1e-4}
KTO = {"undesirable_weight": 1.5, "train_sampling_strategy": "sequential"}
KTO_QWEN3 = {"desirable_weight": 1.2, "train_sampling_strategy": "sequential"}

CASES = {
    "dpo": {"base": "llama", "loss": "dpo", "beta": 0.5,
            "trl": (DPOTrainer, DPOConfig, {"loss_type": ["sigmoid"]})},
    "dpo-qwen3": {"base": "qwen3", "loss": "dpo", "beta": 0.1,
                  "trl": (DPOTrainer, DPOConfig, {"loss_type": ["sigmoid"]})},
    "dpo-robust": {"base": "llama", "loss": "dpo-robust", "beta": 0.5, "label_smoothing": 0.1,
                   "trl": (DPOTrainer, DPOConfig, {"loss_type": ["robust"],
                                                   "label_smoothing": 0.1})},
    "ipo": {"base": "llama", "loss": "ipo", "beta": 0.5, "adamw": IPO_ADAMW,
            "trl": (DPOTrainer, DPOConfig, {"loss_type": ["ipo"]})},
    "simpo": {"base": "llama", "loss": "simpo", "beta": 2.0, "gamma": 0.5,
              "trl": (CPOTrainer, CPOConfig, {"loss_type": "simpo", "cpo_alpha": 0.0,
                                              "simpo_gamma": 0.5})},
    "orpo": {"base": "llama", "loss": "orpo", "beta": 0.5, "one_token_prompts": True,
             "trl": (ORPOTrainer, ORPOConfig, {})},
    "kto": {"base": "llama", "loss": "kto", "beta": 0.5, "desirable_weight": 1.0,
            "undesirable_weight": 1.5, "adamw": KTO_ADAMW,
            "trl": (KTOTrainer, KTOConfig, KTO)},
    "kto-qwen3": {"base": "qwen3", "loss": "kto", "beta": 0.1, "desirable_weight": 1.2,
                  "undesirable_weight": 1.0, "adamw": KTO_ADAMW,
                  "trl": (KTOTrainer, KTOConfig, KTO_QWEN3)},
    "dpo-sft": {"base": "llama", "loss": "dpo", "beta": 0.5, "sft_weight": 0.5,
                "trl": (DPOTrainer, DPOConfig, {"loss_type": ["sigmoid", "sft"],
                                                "loss_weights": [1.0, 0.5]})},
    "simpo-sft": {"base": "llama", "loss": "simpo", "beta": 2.0, "gamma": 0.5, "sft_weight": 0.25,
                  "trl": (CPOTrainer, CPOConfig, {"loss_type": "simpo", "cpo_alpha": 0.25,
                                                  "simpo_gamma": 0.5})},
}
METRICS = ["rewards/chosen", "rewards/rejected", "rewards/margins"]
# TRL's other trainers report means over tokens, whose relation to sums differs from pair to pair.
SUMS = ["logps/chosen", "logps/rejected"]


def word_tokenizer():
    """Token n of the models is the word "n", except for those that end a text or pad it."""
    special = ["<unk>", "</s>", "<pad>"]
    words = {special[number] if number < len(special) else str(number): number
             for number in range(make_golden.VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>",
                                   pad_token="<pad>")


def make_pairs(case, seed):
    chance = random.Random(seed)

    def text(count):
        return "".join(f" {chance.randrange(4, make_golden.VOCABULARY)}" for _ in range(count))
    alone = case.get("one_token_prompts", False)
    return [{"prompt": text(1 if alone else chance.randint(2, 6)).strip(),
             "chosen": text(6 if alone else chance.randint(2, 9)),
             "rejected": text(chance.randint(2, 9))} for _ in range(PAIRS)]


def make_rows(seed):
    """Rows of KTO. Prompts and answers share words, so that answers of other rows become likelier
    too, and kl is not 0."""
    chance = random.Random(seed)

    def text(count):
        return "".join(f" {chance.randrange(4, 24)}" for _ in range(count))
    return [{"prompt": text(chance.randint(2, 6)).strip(), "completion": text(chance.randint(2, 9)),
             "label": label} for label in LABELS]


def recording(trainer_class):
    """A trainer that takes rows in order and keeps what each step had, unrounded."""
    class Recording(trainer_class):
        def _get_train_sampler(self, *_):
            return SequentialSampler(self.train_dataset)

        def training_step(self, *arguments, **keywords):
            loss = super().training_step(*arguments, **keywords)
            self.kept.append({"loss": loss.item()})
            return loss

        def log(self, logs, *arguments, **keywords):
            super().log(logs, *arguments, **keywords)
            if "grad_norm" in logs:
                self.kept[-1]["grad_norm"] = float(logs["grad_norm"])
                keys = METRICS + (SUMS if trainer_class in (DPOTrainer, KTOTrainer) else [])
                if trainer_class is DPOTrainer:
                    self.kept[-1]["token_accuracy"] = float(logs["mean_token_accuracy"])
                if trainer_class in (DPOTrainer, KTOTrainer):
                    self.kept[-1]["entropy"] = float(logs["entropy"])
                keys = keys + (["kl"] if trainer_class is KTOTrainer else ["rewards/accuracies"])
                self.kept[-1].update({key: float(logs[key]) for key in keys})
    return Recording


def ids_of(row, tokenizer):
    """The tokens of a row of the trainer's own data set."""
    if "completion_ids" in row:
        return {"prompt_ids": list(row["prompt_ids"]),
                "completion_ids": list(row["completion_ids"]), "label": row["label"]}
    if "prompt_ids" in row:
        return {key: list(row[key]) for key in ("prompt_ids", "chosen_ids", "rejected_ids")}
    prompt = list(row["prompt_input_ids"])
    answers = {}
    for side in ("chosen", "rejected"):
        ids = list(row[f"{side}_input_ids"])
        assert ids[:len(prompt)] == prompt and ids[-1] == tokenizer.eos_token_id, (side, ids)
        answers[f"{side}_ids"] = ids[len(prompt):]
    return {"prompt_ids": prompt, **answers}


def make_case(name):
    case = CASES[name]
    adamw = case.get("adamw", ADAMW)
    directory = ROOT / name
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    tokenizer = word_tokenizer()
    model = AutoModelForCausalLM.from_pretrained(make_golden.ROOT / case["base"],
                                                 dtype=torch.float32, attn_implementation="eager")
    trainer_class, config_class, options = case["trl"]
    unpaired = case["loss"] == "kto"
    per_step = ROWS_PER_STEP if unpaired else PAIRS_PER_STEP
    seed = 4000 + list(CASES).index(name)
    with tempfile.TemporaryDirectory() as folder:
        config = config_class(
            output_dir=folder, max_steps=STEPS, per_device_train_batch_size=per_step,
            gradient_accumulation_steps=1, learning_rate=adamw["lr"],
            lr_scheduler_type="constant", adam_beta1=adamw["betas"][0],
            adam_beta2=adamw["betas"][1], adam_epsilon=adamw["eps"],
            weight_decay=adamw["weight_decay"], max_grad_norm=1e9, logging_steps=1,
            report_to="none", save_strategy="no", bf16=False, use_cpu=True,
            gradient_checkpointing=False, max_length=64, remove_unused_columns=False,
            disable_tqdm=True, beta=case["beta"], **options)
        trainer = recording(trainer_class)(
            model=model, args=config, processing_class=tokenizer,
            train_dataset=Dataset.from_list(
                make_rows(seed) if unpaired else make_pairs(case, seed)))
        trainer.kept = []
        rows = [ids_of(row, tokenizer) for row in trainer.train_dataset]
        trainer.train()
    kept = trainer.kept
    assert len(kept) == STEPS and all("grad_norm" in step for step in kept)
    if "one_token_prompts" in case:
        assert all(len(row["prompt_ids"]) == 1 for row in rows)
        assert len({len(row["chosen_ids"]) for row in rows}) == 1
    (directory / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    final = {f"final.{key}": value.detach().clone().contiguous()
             for key, value in model.named_parameters()}
    write_sketches(final, directory / "golden_sketches.json")
    facts = {"base": case["base"], "loss": case["loss"],
             "preference": {key: case[key] for key in
                            ("beta", "label_smoothing", "gamma", "sft_weight", "desirable_weight",
                             "undesirable_weight") if key in case},
             "adamw": adamw, "pairs_per_step": per_step,
             "steps": {key: [step[key] for step in kept] for key in kept[0]}}
    (directory / "golden.json").write_text(json.dumps(facts, indent=1) + "\n")
    assert all(math.isfinite(step["loss"]) for step in kept)
    print(f"{name}: loss {kept[0]['loss']:.4f} -> {kept[-1]['loss']:.4f}, norm "
          f"{kept[0]['grad_norm']:.3f}, margin {kept[-1]['rewards/margins']:.3f}")


if __name__ == "__main__":
    make_golden.main(CASES, make_case)
