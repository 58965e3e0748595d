"""The page on the curves names every number that runs write, and none that there is not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from humanline.train.loop import train
from humanline.train.run.metrics import read_metrics
from tests.helpers.rounds import online
from tests.helpers.support import config

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/reading-the-curves.md").read_text(encoding="utf-8")
NAMED = {"kind", "step", "updates", "held_out", "round", "steps"}
KEYS = {
    name for line in PAGE.splitlines() if line.startswith("| `") for name in re.findall(r"`(\w+)`", line.split("|")[1])
} - {"train", "look", "sample", "break"}


def keys(rows) -> set[str]:
    return {name for row in rows for name in row} | {name for row in rows for name in row.get("held_out", ())}


def test_the_page_names_what_runs_write(toy, prompts, tmp_path):
    """Pairs with a clip and held-out data; groups in rounds with held-out prompts and a KL term."""
    held_out = {"train": toy["pairs"], "eval": toy["pairs"], "max_length": 64, "shape": "preference"}
    clip = {"kind": "clip", "log_eps_low": -0.05, "log_eps_high": 0.05}
    runs = [
        config(toy, tmp_path / "pairs", training__steps=2, data=held_out, transform=clip),
        online(
            toy,
            prompts,
            tmp_path / "groups",
            {"kind": "grpo", "clip_eps": 0.2, "kl_coef": 0.1},
            rounds={"contexts_per_round": 8, "samples": 2, "count": 1, "steps": 1},
            data={"train": prompts, "eval": prompts, "max_length": 64},
        ),
    ]
    written = set()
    for run in runs:
        written |= keys(list(read_metrics(train(run, show_progress=False).metrics_file)))
    unnamed = {name for name in written - KEYS - NAMED if "/" not in name}
    assert not unnamed
    assert len(written & KEYS) > 30
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(code.replace("RUN/", f"{tmp_path}/pairs/"), {})


@pytest.mark.parametrize("name", sorted(KEYS))
def test_every_number_of_the_page_is_in_the_code(name):
    """No key is made up: the training code has it, whole or with its ending put on."""
    code = "\n".join(
        path.read_text(encoding="utf-8")
        for folder in ("train", "objectives")
        for path in (ROOT / "humanline" / folder).rglob("*.py")
    )
    stem = re.sub(r"_(se|rms|max|answers|truncated|left_out)$", "", name)
    assert re.search(rf"[\"']({re.escape(name)}|{re.escape(stem)})[\"'_]", code), name
