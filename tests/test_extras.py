"""The extras that messages, documents and the Makefile name are there, and hold what they say."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from humanline.cli import main
from humanline.plots import FIGURES, NEED_TORCH
from humanline.system.install import install

ROOT = Path(__file__).parents[1]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
TEXTS = (
    *(ROOT / "humanline").rglob("*.py"),
    *(ROOT / "humanline").rglob("*.md"),
    *(ROOT / "docs").rglob("*.md"),
    *(ROOT / "examples").rglob("*.md"),
    *(ROOT / "figures").glob("*.md"),
    *ROOT.glob("*.md"),
    ROOT / "Makefile",
)


def named(text: str) -> list[str]:
    """Return the extras that a text tells people to install."""
    lists = re.findall(r"(?:humanline|'\.|\"\.|editable \.)\[([a-z][a-z, -]*)\]", text)
    lists += re.findall(r"\binstall\([\"']([a-z-]+)[\"']\)", text)
    return [name.strip() for names in lists for name in names.split(",")]


def test_every_extra_that_is_named_is_there():
    """A message never sends people to an extra that does not exist."""
    found = {name: path.relative_to(ROOT) for path in TEXTS for name in named(path.read_text(encoding="utf-8"))}
    assert {"train", "plots", "rewards", "kernels", "low-memory"} <= found.keys()
    assert {name: place for name, place in found.items() if name not in EXTRAS} == {}
    assert named("pip install 'humanline[nothing]' --editable '.[train,more]'") == ["nothing", "train", "more"]


def test_nobody_is_sent_to_an_index_without_humanline():
    """No page and no message says `pip install humanline`: `humanline.system.install` knows where this copy is from."""
    told = re.compile(r"pip install [^`\n]{0,20}\bhumanline\b(?!/)")
    assert [str(path) for path in TEXTS if told.search(path.read_text(encoding="utf-8"))] == []
    assert told.search("pip install 'humanline[trl]'") and told.search("pip install -U humanline")


def test_plots_are_matplotlib_alone():
    """Figures of the theory need nothing else; the earlier name is the same."""
    assert [re.split("[<>=]", one)[0] for one in EXTRAS["plots"]] == ["matplotlib"]
    assert EXTRAS["figures"] == EXTRAS["plots"]


def test_figures_that_need_torch_say_so(tmp_path, monkeypatch, capsys):
    """Without torch the others are made, and the message names those that were not, and the extra."""
    import importlib.util

    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == "torch" else find(name, *more))
    wanted = ["sequence_utility", "capacity_families", "bandit_runs"]
    assert main(["figures", *wanted, "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert "sequence_utility, bandit_runs need torch (the other 1 are in" in said
    assert install("train") in said
    assert {path.stem for path in (tmp_path / "out").iterdir()} == {"capacity_families"}


def test_the_list_of_figures_that_need_torch_is_right():
    """Each of them, and no other, imports the simulator."""
    source = {name: (ROOT / "humanline" / "plots" / f"{name}.py").read_text(encoding="utf-8") for name in FIGURES}
    needing = re.compile(r"^\s*(from humanline\.(sim|objectives|train)|import torch|from torch)", re.MULTILINE)
    assert {name for name in FIGURES if needing.search(source[name])} == set(NEED_TORCH)
