"""A run that makes its own data in rounds, and what it leaves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from humanline.train.config import TrainConfig
from tests.helpers.support import config

ROUNDS = {"contexts_per_round": 16, "samples": 4, "count": 2, "steps": 4, "score_margin": 0.001}
DRAWN = {"max_tokens": 10, "engine": {"kind": "generate", "batch_size": 16}}
SCORED = {"rewards": [{"kind": "function", "call": "tests.helpers.toy_rewards:digits"}], "workers": 1}


def online(
    toy,
    prompts: str,
    output: Path,
    objective: str = "grpo",
    *,
    rounds: dict = ROUNDS,
    sampling: dict = DRAWN,
    scoring: dict = SCORED,
    **changes: Any,
) -> TrainConfig:
    """Two rounds of 16 prompts with four completions each, of four steps each."""
    return config(
        toy,
        output,
        objective,
        **{
            "data": {"train": prompts, "max_length": 64},
            "source": {"kind": "rounds", **rounds, "sampling": sampling, "scoring": scoring},
            "training": {"batch_size": 8, "micro_batch_size": 4},
            "reference": {"schedule": {"kind": "each_round"}},
            "optimizer": {"lr": 1e-2, "warmup_fraction": 0.0},
            "checkpoint": {"every": 3, "minutes": None},
            **changes,
        },
    )


def round_files(output: str | Path) -> dict[str, bytes]:
    """Return the files that rounds have left on the disk, but for caches, whose order is that of workers."""
    folder = Path(output) / "rounds"
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.startswith("cache")
    }
