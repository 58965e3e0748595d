"""Online GRPO on a model made from nothing: it gets better at what it practises."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest

from humanline.stats import mean_interval
from humanline.train.config import TrainConfig
from humanline.train.loop import train
from humanline.train.policy.new_model import new_model
from humanline.train.run.metrics import read_metrics

PROBLEMS = [(a, b) for a in range(6) for b in range(6)]


def write(path: Path, rows: list[dict[str, str]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def run(**tree: Any) -> Any:
    return train(TrainConfig.model_validate(tree), show_progress=False)


def practise(folder: Path, seed: int) -> float:
    """Teach a new model noisy sums, let it practise them online, and return by how much pass@1 rose.

    Pass@1 is the share of right answers among eight fresh samples of every sum, before the first round's updates and
    before the last round's.
    """
    folder.mkdir()
    rng = random.Random(seed)
    noisy = [
        {"prompt": f"{a}+{b}", "completion": str(a + b if rng.random() < 0.5 else rng.randrange(12))}
        for _ in range(20)
        for a, b in PROBLEMS
    ]
    text = write(folder / "noisy.jsonl", noisy)
    sums = write(folder / "sums.jsonl", [{"prompt": f"{a}+{b}", "answer": str(a + b)} for a, b in PROBLEMS])
    blank = new_model(
        folder / "blank", text=text, vocab_size=280, hidden_size=64, layers=2, heads=4, max_length=32, seed=seed
    )
    start = run(
        model=str(blank),
        output=str(folder / "start"),
        seed=seed,
        objective={"kind": "nll"},
        data={"train": text, "max_length": 24},
        training={"steps": 800, "batch_size": 64},  # right in half of its answers, on any processor
        optimizer={"lr": 3e-3},
    )
    result = run(
        model=str(start.model),
        output=str(folder / "online"),
        seed=seed,
        objective={"kind": "grpo"},
        reference={"schedule": {"kind": "each_round"}},
        data={"train": sums, "max_length": 24},
        source={
            "kind": "rounds",
            "contexts_per_round": 36,
            "samples": 8,
            "count": 12,
            "steps": 4,
            "sampling": {"max_tokens": 6, "engine": {"kind": "generate", "batch_size": 288}},
            "scoring": {"rewards": [{"kind": "number"}], "workers": 1},
        },
        training={"batch_size": 36},
        optimizer={"lr": 1e-3, "warmup_fraction": 0.0},
    )
    scores = [row["score"] for row in read_metrics(result.metrics_file) if "round" in row]
    return scores[-1] - scores[0]


SAMPLES = 8 * len(PROBLEMS)  # that each of the two shares is taken over


@pytest.mark.slow
def test_practice_raises_pass_at_1(tmp_path):
    """Pass@1 on the sums it practised rises by more than an unchanged policy shows once in a million (Hoeffding)."""
    assert practise(tmp_path / "0", 0) > math.sqrt(math.log(1e6) / SAMPLES)


@pytest.mark.slow
def test_practice_raises_pass_at_1_over_seeds(tmp_path):
    """Over five seeds, each with its own model, the interval of the rise is above 0."""
    rises = [practise(tmp_path / str(seed), seed) for seed in range(5)]
    found = mean_interval(rises)
    print(rises, found)
    assert found.excludes_zero and found.mean > 0, f"{rises}: {found}"
