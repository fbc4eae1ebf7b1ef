#!/usr/bin/env python3
"""Makes preference_rows.jsonl: rows with pairs of answers and the token ids that TRL makes of them.

Needs trl, transformers and datasets (made with trl 1.16, transformers 5.23). Run it in this folder:
python3 make_preference_golden.py
"""

import json
import pathlib
import types

from datasets import Dataset
from transformers import AutoTokenizer
from trl import DPOTrainer
from trl.data_utils import maybe_extract_prompt

HERE = pathlib.Path(__file__).parent
TEXT = HERE.parent / "text"


def message(role, content):
    return {"role": role, "content": content}


QUESTION = message("user", "What color is the sky?")
FIRST = [message("system", "Be brief."), QUESTION, message("assistant", "It is blue."),
         message("user", "And the sea?")]
TEXTS = [
    {"prompt": "The sky is", "chosen": " blue.", "rejected": " green."},
    # Tokens join the end of the prompt with the beginning of an answer.
    {"prompt": "the th", "chosen": "e other", "rejected": " other"},
    {"prompt": "the ", "chosen": "then", "rejected": "12"},
    {"prompt": "The sky is", "chosen": " blue.</s>", "rejected": " green.<|end_of_text|>"},
    # As in Anthropic's hh-rlhf: the prompt is the common beginning.
    {"chosen": "\n\nHuman: Is it the one?\n\nAssistant: Yes, it is.",
     "rejected": "\n\nHuman: Is it the one?\n\nAssistant: No, it is not."},
    {"chosen": "Q: caf\u00e9? A: \u6f22\u5b57", "rejected": "Q: caf\u00e9? A: \u6f23\u5b57"},
    {"chosen": "one two three", "rejected": "one two four"},
]
CHATS = [
    {"prompt": [QUESTION], "chosen": [message("assistant", "It is blue.")],
     "rejected": [message("assistant", "It is green.")]},
    {"prompt": FIRST, "chosen": [message("assistant", "Blue too.")],
     "rejected": [message("assistant", "Green.")]},
    {"chosen": FIRST + [message("assistant", "Blue too.")],
     "rejected": FIRST + [message("assistant", "Green.")]},
    # As in ultrafeedback_binarized: the prompt is a text beside whole conversations.
    {"prompt": QUESTION["content"], "prompt_id": "x", "score_chosen": 8.0, "score_rejected": 2.5,
     "messages": [QUESTION, message("assistant", "Blue.")],
     "chosen": [QUESTION, message("assistant", "Blue.")],
     "rejected": [QUESTION, message("assistant", "Green.")]},
]
CASES = [("llama2", None, TEXTS), ("llama3", None, TEXTS), ("gpt2", None, TEXTS[:3]),
         ("bytes", "llama3_1", CHATS)]


def prepared(row, tokenizer):
    config = types.SimpleNamespace(dataset_num_proc=None, max_length=None,
                                   truncation_mode="keep_start")
    trainer = types.SimpleNamespace(_is_vision_dataset=False, _tokenizer=tokenizer)
    rows = Dataset.from_list([{**row, **maybe_extract_prompt(row)}])
    made = DPOTrainer._prepare_dataset(trainer, rows, tokenizer, config, "train")
    return {name: made[0][name] for name in ("prompt_ids", "chosen_ids", "rejected_ids")}


def main():
    lines = []
    for name, template, rows in CASES:
        tokenizer = AutoTokenizer.from_pretrained(TEXT / "golden" / name)
        if template:
            path = TEXT / "published_templates" / f"{template}.jinja"
            tokenizer.chat_template = path.read_text(encoding="utf-8")
        for row in rows:
            case = {"tokenizer": name, "template": template or "", "row": row}
            lines.append(json.dumps({**case, **prepared(row, tokenizer)}) + "\n")
    (HERE / "preference_rows.jsonl").write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
