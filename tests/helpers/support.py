"""Run the real training loop on the toy task, and look into it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from humanline.train.config import TrainConfig
from humanline.train.loop import take_steps, train
from humanline.train.run.metrics import read_metrics
from humanline.train.run.result import RunResult
from humanline.train.setup import Run, set_up

SCHEDULES = {
    "never": {"kind": "never"},
    "before_1": {"kind": "before_step", "every": 1},
    "before_3": {"kind": "before_step", "every": 3},
    "after_2": {"kind": "after_step", "every": 2},
    "round_4": {"kind": "each_round", "round_steps": 4},
}
CLIP = {"kind": "clip", "log_eps_low": -0.01, "log_eps_high": 0.02}  # tight, so that toy steps reach it
REJECT = {
    "kind": "beta_rejection",
    "policy": {"a": 0.6, "b": 1.0},
    "ref": {"a": 0.7, "b": 1.3},
    "policy_ratio_bound": 3.0,
    "ref_ratio_bound": 3.0,
}
OBJECTIVES = {
    "dpo": {"kind": "dpo", "beta": 0.5},
    "kto": {"kind": "kto", "beta": 0.5},
    "grpo": {"kind": "grpo", "clip_eps": 0.05, "kl_coef": 0.1},
}
# A section of each kind, with settings that are not the defaults.
EVERY_OBJECTIVE = {
    "nll": {"kind": "nll"},
    "dpo": {"kind": "dpo", "beta": 0.5},
    "dpo-conservative": {"kind": "dpo", "beta": 0.5, "label_smoothing": 0.2},
    "ipo": {"kind": "ipo", "beta": 0.5, "length_normalised": True},
    "apo_zero": {"kind": "apo_zero", "beta": 0.5},
    "apo_down": {"kind": "apo_down", "beta": 0.5},
    "kto": {"kind": "kto", "beta": 0.5, "undesirable_weight": 0.7},
    "bco": {"kind": "bco", "beta": 0.5},
    "grpo": {"kind": "grpo", "clip_eps": 0.05, "kl_coef": 0.1},
}
#: Losses of pairs that differ from DPO's in their formula alone: what takes one through a run takes the others.
PAIRS = ("dpo-conservative", "ipo", "apo_zero", "apo_down")


def config(toy: dict[str, str], output: Path, objective: str | dict[str, Any] = "dpo", **changes: Any) -> TrainConfig:
    """A short run; `section__key=value` replaces one value, `section=value` a whole section."""
    tree: dict[str, Any] = {
        "model": toy["model"],
        "output": str(output),
        "objective": OBJECTIVES[objective] if isinstance(objective, str) else objective,
        "data": {"train": toy["pairs"], "max_length": 64, "shape": "preference"},
        "training": {"steps": 8, "batch_size": 8, "micro_batch_size": 8},
        "optimizer": {"lr": 3e-3, "warmup_fraction": 0.0},
    }
    for name, value in changes.items():
        section, _, key = name.partition("__")
        if key:
            tree.setdefault(section, {})[key] = value
        else:
            tree[section] = value
    return TrainConfig.model_validate(tree)


def run(*args: Any, **changes: Any) -> RunResult:
    return train(config(*args, **changes), show_progress=False)


def run_with(change: Callable[[Run], Run], *args: Any, **changes: Any) -> RunResult:
    """Train with what `change` makes of the run before its first step: here spies are handed in."""
    with set_up(config(*args, **changes), show_progress=False) as ready:
        return take_steps(change(ready))


def weights(result: RunResult) -> dict[str, torch.Tensor]:
    return load_file(result.model / "model.safetensors")


def steps(result: RunResult) -> list[dict[str, Any]]:
    return [row for row in read_metrics(result.metrics_file) if "step" in row]


def without_timing(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if k not in ("seconds", "tokens_per_second")} for row in rows]


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
