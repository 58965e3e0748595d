"""The data of the example: next-token rows from the training questions, preference pairs from graded solutions."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

# File -> the name it has in the folder grade_school_math/data of the repository it comes from.
FILES = {"gsm8k-train.jsonl": "train.jsonl", "gsm8k-model-solutions.jsonl": "example_model_solutions.jsonl"}
SOURCE = "https://github.com/openai/grade-school-math"
MODELS = {"6b_finetuning": 6, "6b_verification": 6, "175b_finetuning": 175, "175b_verification": 175}  # 10^9 weights

Row = dict[str, Any]


class MissingData(FileNotFoundError):
    """The public files are not there; the message says which and where they come from."""


def find_data(folder: Path) -> dict[str, Path]:
    """Return the path of each file of `FILES`, under its own name or the one it has at its source.

    Raises
    ------
    MissingData
        If one is absent.
    """
    found = {
        ours: [folder / name for name in (ours, theirs) if (folder / name).is_file()] for ours, theirs in FILES.items()
    }
    missing = [name for name, paths in found.items() if not paths]
    if missing:
        names = "\n".join(f"  {name}  (there: grade_school_math/data/{FILES[name]})" for name in missing)
        raise MissingData(
            f"{len(missing)} of the {len(FILES)} data files are not in {folder}:\n{names}\n"
            f"They are public (MIT licence): {SOURCE}\n"
            "Download them into a folder, under either name, and give it with --data DIR."
        )
    return {name: paths[0] for name, paths in found.items()}


def read_lines(path: Path) -> list[Row]:
    """Return the objects of a JSON lines file."""
    with open(path, encoding="utf-8") as lines:
        return [json.loads(line) for line in lines if line.strip()]


def write_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write objects as JSON lines; leave a file alone that holds just these."""
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def split_rows(rows: Sequence[Row], *, held_out: int, seed: int) -> tuple[list[Row], list[Row]]:
    """Return rows to train on and `held_out` others, split by a seeded shuffle."""
    shuffled = list(rows)
    random.Random(seed).shuffle(shuffled)
    return shuffled[held_out:], shuffled[:held_out]


def build_pairs(rows: Sequence[Row], *, held_out: int, seed: int) -> tuple[list[Row], list[Row]]:
    """Make one preference pair of every question with both right and wrong solutions, split by question.

    Of all (right, wrong) combinations of a question one is taken that brings three running counts of its split
    closest to balance: chosen longer against shorter, chosen from a larger against a smaller model, and chosen from a
    verified against a plainly sampled model. Ties are drawn. Where questions leave too little choice, an imbalance
    stays; `giveaways` reports it.

    Parameters
    ----------
    rows : sequence of dict
        `question`, and for each of `MODELS` a `solution` with `is_correct`.
    held_out : int
        Questions to hold out.
    seed : int

    Returns
    -------
    train, held_out : lists of dict
        `prompt`, `chosen`, `rejected`, `chosen_model`, `rejected_model`.
    """
    both = [row for row in rows if len({bool(row[model]["is_correct"]) for model in MODELS}) == 2]
    parts = split_rows(both, held_out=held_out, seed=seed)
    train, rest = (_balanced(part, random.Random(seed + 1 + i)) for i, part in enumerate(parts))
    return train, rest


def _balanced(rows: Sequence[Row], rng: random.Random) -> list[Row]:
    pairs: list[Row] = []
    counts = [0] * len(SIGNS)

    def imbalance(pair: Row) -> int:
        return sum((count + sign(pair)) ** 2 for count, sign in zip(counts, SIGNS.values(), strict=True))

    for row in rows:
        right = [model for model in MODELS if row[model]["is_correct"]]
        wrong = [model for model in MODELS if not row[model]["is_correct"]]
        candidates = [
            {
                "prompt": row["question"],
                "chosen": row[better]["solution"],
                "rejected": row[worse]["solution"],
                "chosen_model": better,
                "rejected_model": worse,
            }
            for better, worse in product(right, wrong)
        ]
        rng.shuffle(candidates)
        pairs.append(min(candidates, key=imbalance))
        counts = [count + sign(pairs[-1]) for count, sign in zip(counts, SIGNS.values(), strict=True)]
    return pairs


def length_sign(pair: Row) -> int:
    """Return 1, 0 or -1 as the chosen answer has more, as many or fewer characters than the rejected one."""
    return _sign(len(pair["chosen"]) - len(pair["rejected"]))


def size_sign(pair: Row) -> int:
    """Return 1, 0 or -1 as the chosen answer comes from a larger model, one as large, or a smaller one."""
    return _sign(MODELS[pair["chosen_model"]] - MODELS[pair["rejected_model"]])


def verified_sign(pair: Row) -> int:
    """Return 1 or -1 as only the chosen or only the rejected answer was picked by a verifier, else 0."""
    chosen, rejected = (pair[name].endswith("_verification") for name in ("chosen_model", "rejected_model"))
    return int(chosen) - int(rejected)


def decimal_sign(pair: Row) -> int:
    """Return 1, 0 or -1 as the chosen answer writes more, as many or fewer whole results as `18.0` in its sums."""
    return _sign(pair["chosen"].count(".0>>") - pair["rejected"].count(".0>>"))


def _sign(number: int) -> int:
    return (number > 0) - (number < 0)


SIGNS = {"longer": length_sign, "larger_model": size_sign, "verified": verified_sign}  # what pairs are balanced by


def giveaways(pairs: Sequence[Row]) -> dict[str, tuple[float, float]]:
    """Return, for each surface feature, the shares of pairs in which the chosen and the rejected answer has more."""
    features = SIGNS | {"decimals": decimal_sign}
    signs = {name: [sign(pair) for pair in pairs] for name, sign in features.items()}
    return {name: (found.count(1) / len(pairs), found.count(-1) / len(pairs)) for name, found in signs.items()}
