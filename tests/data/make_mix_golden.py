#!/usr/bin/env python3
"""Makes mix_golden.json: rows of each data set in mixes by datasets.interleave_datasets and TRL.

Needs trl and datasets (made with trl 1.16, datasets 5.2). Run it in this folder:
python3 make_mix_golden.py
"""

import collections
import json
import pathlib
import tempfile

from datasets import Dataset, interleave_datasets
from trl.scripts.utils import DatasetConfig, DatasetMixtureConfig, get_dataset

HERE = pathlib.Path(__file__).parent
CASES = [
    ([1000, 10000], [0.5, 0.5]),
    ([300, 200, 5000], [0.2, 0.3, 0.5]),
    ([4000, 70], [0.9, 0.1]),
    ([1200, 1200], [0.75, 0.25]),
    ([7000], [1.0]),
    ([50, 50, 50], None),
    ([3, 4, 5], None),
]


def counts(of_rows, sets):
    found = collections.Counter(of_rows)
    return [found[i] for i in range(sets)]


def interleaved(rows, probabilities, stopping, seed):
    sets = [Dataset.from_dict({"of": [i] * count}) for i, count in enumerate(rows)]
    mixed = interleave_datasets(sets, probabilities=probabilities, seed=seed,
                                stopping_strategy=stopping)
    return counts(mixed["of"], len(rows))


def trl_mixture(rows, probabilities, directory):
    entries = []
    for i, count in enumerate(rows):
        path = pathlib.Path(directory) / f"{i}-{count}.jsonl"
        path.write_text(f'{{"of": {i}}}\n' * count)
        entries.append(DatasetConfig(path="json", data_files=str(path), fraction=probabilities[i]))
    mixed = get_dataset(DatasetMixtureConfig(datasets=entries))
    return counts(mixed["train"]["of"], len(rows))


def main():
    lines = []
    for rows, probabilities in CASES:
        case = {"rows": rows, "probabilities": probabilities or []}
        for rule, stopping in (("exhaust", "first_exhausted"), ("restart", "all_exhausted")):
            case[rule] = [interleaved(rows, probabilities, stopping, seed) for seed in range(4)]
        with tempfile.TemporaryDirectory() as directory:
            if probabilities:
                case["trl"] = trl_mixture(rows, probabilities, directory)
        lines.append(json.dumps(case))
    (HERE / "mix_golden.json").write_text("[" + ",\n".join(lines) + "]\n")


main()
