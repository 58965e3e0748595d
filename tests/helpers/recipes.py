"""Recipes of the toy task, as files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml


def recipe_that_evaluates(toy, folder: Path, *, data: dict[str, Any], evaluation: dict[str, Any]) -> str:
    """Write a recipe of fixed pairs to a folder, for its model to be evaluated; return the file's name."""
    tree = {
        "model": toy["model"],
        "output": str(folder / "run"),
        "objective": {"kind": "dpo"},
        "data": {"train": toy["pairs"], "max_length": 64, **data},
        "training": {"steps": 1, "batch_size": 2},
        "optimizer": {"lr": 1e-3},
        "evaluation": evaluation,
    }
    (folder / "recipe.yaml").write_text(yaml.safe_dump(tree))
    return "recipe.yaml"
