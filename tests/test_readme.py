"""What the README shows works as shown."""

from __future__ import annotations

import csv
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


def test_the_table_has_the_numbers_of_its_sources():
    """Scores of the letters task in "When does it help?" are those of the committed table of tuned cells."""
    with open(ROOT / "studies" / "frontier" / "letters" / "best.csv", encoding="utf-8") as file:
        best = {(row["objective"], row["series"]): row for row in csv.DictReader(file)}

    def told(objective: str, series: str) -> str:
        row = best[objective, series]
        score, low, high = (f"{float(row[name]):.{digits}f}"[1:] for name, digits in SHOWN)
        return f"{score} ({low} .. {high})"

    rows = {row.split("|")[1].strip(): row for row in README.splitlines() if row.startswith("| ")}
    for objective in ("dpo", "kto", "grpo"):
        row = rows[f"given pairs, {objective.upper()}, both tuned (letters)"]
        assert told(objective, "offline") in row and told(objective, "humanline, k = 32") in row
    worst = [float(best[one, "humanline, k = 1"]["score"]) for one in ("dpo", "kto", "grpo")]
    assert f"{min(worst):.2f}"[1:] + " to " + f"{max(worst):.2f}"[1:] in rows["k = 1 (letters)"]
    for name, row in best.items():
        if name[1] == "humanline, k = 1":
            assert float(row["score"]) < min(float(best[name[0], f"humanline, k = {k}"]["score"]) for k in (8, 32))
    rounds = rows["sampling anew in rounds instead (letters)"]
    online = [float(best[one, "online"]["score"]) for one in ("dpo", "kto", "grpo")]
    assert f"{min(online):.2f}"[1:] + " to " + f"{max(online):.2f}"[1:] in rounds
    for one in ("dpo", "kto"):
        told_of = f"{one.upper()} ({float(best[one, 'online humanline, k = 8']['score']):.2f}".replace("0.", ".")
        assert told_of in rounds


def test_the_rows_of_other_testbeds_have_the_numbers_of_their_sources():
    """Differences to offline, and to the offline cells that may go further, are those of the committed tables."""
    folder = ROOT / "studies" / "frontier"
    rows = {row.split("|")[1].strip(): row for row in README.splitlines() if row.startswith("| ")}
    with open(folder / "instructions" / "paper.csv", encoding="utf-8") as file:
        found = {row["objective"]: row for row in csv.DictReader(file) if "its own k" in row["says"]}

    def told(row: dict[str, str]) -> str:
        low, high = (f"{float(row[name]):.2f}".replace("0.", ".") for name in ("low", "high"))
        return f"{float(row['difference']):+.2f}".replace("0.", ".") + f" ({low} .. {high})"

    row = rows["given pairs, tuned (instructions)"]
    assert f"GRPO better, {told(found['grpo'])}; KTO {told(found['kto'])}, DPO {told(found['dpo'])}: undecided" in row
    assert [found[one]["verdict"].split()[0] for one in ("dpo", "kto", "grpo")] == ["undecided", "undecided", "holds"]
    with open(folder / "arithmetic" / "paper.csv", encoding="utf-8") as file:
        found = {row["objective"]: row for row in csv.DictReader(file) if "its own k" in row["says"]}
    row = rows["given pairs, tuned (arithmetic, held out)"]
    assert f"GRPO {told(found['grpo'])}, KTO {told(found['kto'])}, DPO {told(found['dpo'])}: undecided" in row
    assert {found[one]["verdict"] for one in ("dpo", "kto", "grpo")} == {"undecided here"}
    row = rows["GRPO, four passes"]
    for bed, word, verdict in (("letters", "lower", "does not hold here"), ("instructions", "better", "holds here")):
        with open(folder / bed / "further" / "further.csv", encoding="utf-8") as file:
            (one,) = [line for line in csv.DictReader(file) if "of four passes" in line["says"]]
        with open(folder / bed / "further" / "best.csv", encoding="utf-8") as file:
            chosen = [line["chosen"] for line in csv.DictReader(file) if line["series"] == "offline, both kinds"]
        assert "grpo-offline-lr0.0003-eps1-4passes (3)" in chosen
        assert f"{bed}: {word}, {told(one)}" in row and one["verdict"] == verdict


SHOWN = (("score", 3), ("low", 2), ("high", 2))


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
