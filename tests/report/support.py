"""Folders as runs leave them, written by hand: no model is trained for them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from humanline import __version__
from humanline.train.config import TrainConfig
from humanline.train.config.secrets import written


def settings(objective: str = "dpo", **changes: Any) -> dict[str, Any]:
    tree: dict[str, Any] = {
        "model": "start/final",
        "output": "runs/x",
        "objective": {"kind": objective},
        "data": {"train": "pairs.jsonl", "eval": "held-out.jsonl", "shape": "preference", "max_length": 64},
        "training": {"steps": 3, "batch_size": 4},
        "optimizer": {"lr": 1e-3},
    }
    return written(TrainConfig.model_validate(tree | changes))


def step(number: int, **values: float) -> dict[str, Any]:
    return {"step": number, "loss": 0.7 - number / 10, "margin": number / 5, "grad_norm": 1.0, **values}


def look(updates: int, accuracy: float, **values: float) -> dict[str, Any]:
    found = {"loss": 0.7, "accuracy": accuracy, "accuracy_se": 0.05, "kl_from_start": updates / 10, **values}
    return {"updates": updates, "held_out": found}


ROWS = [look(0, 0.5), step(0), step(1), look(2, 0.8125), step(2), look(3, 0.75)]
DATA = {
    "template": "0" * 64,
    "train": {"path": "/data/pairs.jsonl", "lengths": {"total": 12, "kept": 11, "dropped_too_long": 1}, "prompts": 10},
    "held_out": {"path": "/data/held-out.jsonl", "lengths": {"total": 6, "kept": 6}, "prompts": 6},
}
START = {"training data": "ab" * 32, "held-out data": "cd" * 32}
SOFTWARE = {"humanline": __version__, "torch": "2.13.0", "device": "x86_64", "threads": "1"}


def make_run(
    folder: Path,
    config: Any = None,
    rows: list[dict[str, Any]] | None = None,
    *,
    data: Any = DATA,
    start: Any = START,
    software: Any = SOFTWARE,
    finished: bool = True,
) -> Path:
    """A run's folder."""
    folder.mkdir(parents=True)
    trees = {"config": settings() if config is None else config, "data": data, "start": start}
    for name, tree in trees.items():
        (folder / f"{name}.json").write_text(json.dumps(tree))
    text = "".join(json.dumps(row) + "\n" for row in (ROWS if rows is None else rows))
    (folder / "metrics.jsonl").write_text(text)
    if finished:
        (folder / "final").mkdir()
        (folder / "final" / "manifest.json").write_text("{}")
        (folder / "final" / "humanline.json").write_text(json.dumps({"format": 1, "software": software}))
    return folder


def answer_row(name: str, prompt: str, text: str, scores: list[float] | None = None) -> dict[str, Any]:
    row: dict[str, Any] = {
        "id": name,
        "policy": "0",
        "prompt": [{"role": "user", "content": prompt}],
        "extra": {},
        "completions": [{"text": text, "ids": [1, 2], "finish": "end", "logprobs": None}],
    }
    scored = [{"value": value, "status": "ok", "parts": {}} for value in scores or []]
    return row | ({"scores": scored} if scored else {})


def make_answers(file: Path, *rows: dict[str, Any]) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file
