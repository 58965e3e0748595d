"""A large vocabulary on a small machine: peak memory of whole runs, each measured in a process of its own."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch

from benchmarks.peak import peak_mib
from humanline.train.policy import build
from tests.helpers import peak_run

VOCABULARY, ROW, PAIRS = 128_256, 1024, 4  # 4 pairs of 2 rows: 8192 tokens


def plain(hidden, head_weight, labels, *, temperature=1.0, softcap=None):
    """Log-probabilities from all the logits at once, as one would write them down."""
    return torch.log_softmax(hidden @ head_weight.T, -1).gather(1, labels[:, None]).squeeze(1)


def prepare_plain(tree: dict[str, Any]) -> Callable[[], object]:
    """Return the same run with plain log-probabilities, for `benchmarks.peak`."""
    build.logprob_function = lambda name, **where: plain
    return peak_run.prepare(tree)


@pytest.mark.slow
def test_a_large_vocabulary_fits_on_a_small_machine(tmp_path):
    """0.1B weights, a vocabulary of 128k and 8192 tokens a pass stay below 6 GiB, where all logits take above 12."""
    letters = "abcdefgh" * ROW
    with (tmp_path / "pairs.jsonl").open("w") as file:
        for i in range(2 * PAIRS):
            answers = {"chosen": letters[i : i + ROW], "rejected": letters[i + 1 : i + 1 + ROW]}
            file.write(json.dumps({"prompt": "a", **answers}) + "\n")
    peak_run.write_model(tmp_path / "model", vocabulary=VOCABULARY, hidden=640, layers=4, tie_word_embeddings=True)
    parameters = sum(p.numel() for p in build.load_outline(str(tmp_path / "model")).parameters())
    assert 0.09e9 < parameters < 0.12e9

    def peak(how: str) -> float:
        tree = {
            "model": str(tmp_path / "model"),
            "output": str(tmp_path / how.rpartition(":")[2]),
            "objective": {"kind": "dpo"},
            "transform": {"kind": "clip"},
            "reference": {"schedule": {"kind": "before_step", "every": 1}},
            "data": {
                "train": str(tmp_path / "pairs.jsonl"),
                "max_length": ROW,
                "template": "plain",
                "too_long": "truncate",
            },
            "training": {"steps": 2, "batch_size": PAIRS, "micro_batch_size": PAIRS},
            "optimizer": {"lr": 1e-5},
            "checkpoint": {"minutes": None},
        }
        return peak_mib(how, tree=tree) / 1024

    ours, theirs = peak("tests.helpers.peak_run:prepare"), peak("tests.train.policy.test_memory:prepare_plain")
    print(f"peak {ours:.2f} GiB, with plain log-probabilities {theirs:.2f} GiB")
    assert ours < 6 and theirs > 12
