"""Short runs of every kind with checkpoints, and stops that come at a chosen place of a run."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from humanline.system.stop import StopRequested
from humanline.train.config import TrainConfig
from humanline.train.loop import train
from tests.helpers.support import CLIP, OBJECTIVES, REJECT, SCHEDULES, config

STORAGES = ("score_ahead", "model")
CASES = list(product(OBJECTIVES, SCHEDULES, STORAGES))
SOME = [
    ("dpo", "before_3", "score_ahead"),
    ("kto", "before_1", "score_ahead"),
    ("kto", "round_4", "model"),
    ("grpo", "never", "score_ahead"),
    ("grpo", "after_2", "model"),
]


def case(toy, output: Path, objective: str, schedule: str, storage: str, **changes) -> TrainConfig:
    """Seven steps with two micro-batches each, four of GRPO's rows, evaluated every 3 and saved every 2."""
    baseline = "initial" if objective == "grpo" and schedule != "never" else "reference"
    return config(
        toy,
        output,
        objective,
        **{
            "transform": REJECT if objective == "grpo" else CLIP,
            "reference": {"schedule": SCHEDULES[schedule], "storage": storage, "baseline": baseline},
            "training": {"steps": 7, "batch_size": 8, "micro_batch_size": 4},
            "optimizer": {"lr": 3e-3, "warmup_fraction": 0.4},
            "data__eval": toy["held_out"],
            "evaluation": {"every": 3},
            "checkpoint": {"every": 2, "minutes": None},
            **changes,
        },
    )


def moved(config: TrainConfig, output: Path) -> TrainConfig:
    return config.model_copy(update={"output": str(output)})


class StopAt:
    """A StopSignal that is asked to stop at its n-th safe point."""

    def __init__(self, number: int) -> None:
        self.number, self.asked, self.holding = number, 0, False

    def hold(self) -> None:
        self.holding = True

    @property
    def requested(self) -> str | None:
        self.asked += 1
        return "SIGTERM" if self.asked > self.number else None


def stopped_run(toy, tmp_path, **changes) -> TrainConfig:
    """A run that was stopped after 5 of 7 updates, with checkpoints after 2, 4 and 5."""
    one = case(toy, tmp_path / "run", "kto", "before_3", "score_ahead", checkpoint={"every": 2, "keep": 3}, **changes)

    class AfterFive(StopAt):
        @property
        def requested(self):
            metrics = tmp_path / "run" / "metrics.jsonl"
            return "SIGTERM" if metrics.exists() and '"step": 4' in metrics.read_text() else None

    with pytest.raises(StopRequested, match="after 5 of 7"):
        train(one, stop=AfterFive(0), show_progress=False)
    names = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert names == ["step-00000002", "step-00000004", "step-00000005"]
    return one


class AtStep:
    """A stop signal that is never given, and does something once when the metrics hold a step."""

    def __init__(self, output: str, step: int, act) -> None:
        self.metrics, self.step, self.act = Path(output) / "metrics.jsonl", f'"step": {step},', act

    def hold(self) -> None:
        pass

    @property
    def requested(self) -> None:
        if self.act is not None and self.metrics.is_file() and self.step in self.metrics.read_text():
            act, self.act = self.act, None
            act()
