"""What the README shows works as shown."""

from __future__ import annotations

import re
import shlex

import pytest

from humanline.cli import main
from tests.conftest import ROOT
from tests.helpers.pages import blocks, commands, prose

PAGE = ROOT / "README.md"
README = PAGE.read_text(encoding="utf-8")
TREE = (ROOT / "docs" / "tree.md").read_text(encoding="utf-8").split("```")[1]


def test_it_is_one_page():
    """It has at most 900 words and one picture, and says what it does and for whom in the first 60 words."""
    assert len(README.split()) <= 900
    assert len(re.findall(r"!\[", README)) == 1
    first = " ".join(README.split()[:60])
    assert "DPO, KTO or GRPO" in first and "people who want to" in first


def test_the_recipe_runs_as_it_is_pasted(tmp_path, monkeypatch, capsys):
    """The recipe and the commands below it run from the repository's root, with nothing but files that are in it."""
    (block,) = blocks(PAGE, "yaml")
    for folder in ("examples", "humanline"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    (tmp_path / "recipe.yaml").write_text(block.text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    lines = [shlex.split(line)[1:] for _, line in commands(PAGE) if line.startswith("humanline ")]
    assert [words[0] for words in lines] == ["new-model", "validate", "train"]
    for words in lines:
        small = ["training.steps=2", "training.epochs=null"] if words[0] == "train" else []
        assert main([*words, *small]) == 0, capsys.readouterr().err
    assert (tmp_path / "runs" / "first" / "final" / "model.safetensors").is_file()
    from transformers import AutoModelForCausalLM

    assert AutoModelForCausalLM.from_pretrained("runs/first/final").num_parameters() > 1e5


def test_the_two_commands_are_targets_of_the_makefile():
    """Make demo and make test exist, and CI runs the second."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert re.search(r"^demo:", makefile, re.MULTILINE) and re.search(r"^test:", makefile, re.MULTILINE)
    assert "make test" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert {"make demo", "make test"} <= {line for _, line in commands(PAGE)}


@pytest.mark.parametrize("name", re.findall(r"^  ([a-z_]+/|[a-z_]+\.py)", TREE, re.MULTILINE))
def test_the_tree_is_as_drawn(name):
    """Every folder and file of the package that docs/tree.md draws exists."""
    assert (ROOT / "humanline" / name).exists()


def test_the_rooms_of_training_are_as_drawn():
    """docs/tree.md draws every room of training, and none that is not there."""
    drawn = set(re.findall(r"(?<=[ ])([a-z_]+)/  ", TREE.split("  train/ ")[1].split("  sim/")[0]))
    folders = {path.name for path in (ROOT / "humanline" / "train").iterdir() if (path / "__init__.py").exists()}
    assert drawn == folders


def test_the_ten_lines_of_python_mean_what_is_said():
    """The gamble of docs/start.md is worth less to the median person than its expectation of 50."""
    (block,) = blocks(ROOT / "docs" / "start.md", "python")
    names: dict = {}
    exec(block.text, names)
    assert names["loss"].isfinite()
    assert names["subjective_utility"]([100.0, 50.0, 0.0], [0.2, 0.6, 0.2], **names["human"]) < 50


def test_no_placeholder_is_left():
    """No number is left to be filled in."""
    assert "@@" not in README and "TODO" not in prose(PAGE)
