"""What the README shows works as shown."""

from __future__ import annotations

import re

import pytest

from humanline.train.config import load_config
from tests.conftest import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")


def block(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", README, re.DOTALL)
    assert found
    return found.group(1)


def test_the_ten_lines_of_python_run():
    """The README's Python runs, and its gamble is worth less to the median person than its expectation of 50."""
    names: dict = {}
    exec(block("python"), names)
    assert names["loss"].isfinite()
    assert names["subjective_utility"]([100.0, 50.0, 0.0], [0.2, 0.6, 0.2], **names["human"]) < 50
    assert len([line for line in block("python").splitlines() if line.strip()]) <= 11


def test_the_recipe_is_valid(tmp_path):
    """The README's recipe is a valid configuration."""
    path = tmp_path / "recipe.yaml"
    path.write_text(block("yaml"), encoding="utf-8")
    assert load_config(path).reference.schedule.kind == "before_step"


def test_the_two_commands_are_targets_of_the_makefile():
    """Make demo and make test exist, and CI runs the second."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert re.search(r"^demo:", makefile, re.MULTILINE) and re.search(r"^test:", makefile, re.MULTILINE)
    assert "make test" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


TREE = README.split("## The tree")[1].split("```")[1]


@pytest.mark.parametrize("name", re.findall(r"^  ([a-z_]+/|[a-z_]+\.py)", TREE, re.MULTILINE))
def test_the_tree_is_as_drawn(name):
    """Every folder and file of the package that the README draws exists."""
    assert (ROOT / "humanline" / name).exists()


def test_the_rooms_of_training_are_as_drawn():
    """The README draws every room of training, and none that is not there."""
    drawn = set(re.findall(r"(?<=[ ])([a-z_]+)/  ", TREE.split("  train/ ")[1].split("  sim/")[0]))
    folders = {path.name for path in (ROOT / "humanline" / "train").iterdir() if (path / "__init__.py").exists()}
    assert drawn == folders


def test_no_placeholder_is_left():
    """No number is left to be filled in."""
    assert "@@" not in README
