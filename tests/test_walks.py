"""What two newcomers do from the pages alone: one who knows TRL, and a reader of the paper with a loss of their own.

The third, who studies choice with a data frame, needs one page, whose code `tests/test_docs.py` runs.
"""

from __future__ import annotations

import json
import re
import shlex
import sys

import pytest
import yaml

from humanline.cli import main
from humanline.system.stop import StopRequested
from humanline.train import load_config, train
from tests.conftest import ROOT
from tests.helpers.cases import StopAt
from tests.helpers.pages import blocks, commands
from tests.helpers.trl_quickstarts import file_of, make

DOCS = ROOT / "docs"


def test_who_knows_trl_moves_a_recipe_stops_resumes_and_reports(tmp_path, monkeypatch, capsys):
    """The recipe for a DPO script trains on the script's files, is stopped, goes on, and ends on a page of its own."""
    make(tmp_path)
    monkeypatch.chdir(tmp_path)
    recipe = blocks(DOCS / "switch-from-trl.md", "yaml")[0].text
    for name, file in (
        ("hub:Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B"),
        ('"hub:trl-lib/ultrafeedback_binarized#train"', file_of("ultrafeedback_binarized")),
    ):
        assert recipe.count(name) == 1
        recipe = recipe.replace(name, file)
    (tmp_path / "recipe.yaml").write_text(recipe, encoding="utf-8")
    small = ["training.batch_size=8", "training.epochs=3"]
    with pytest.raises(StopRequested, match=r"after [1-9] of 12 updates.*add --resume"):
        train(load_config("recipe.yaml", small), stop=StopAt(16), show_progress=False)
    assert main(["train", "recipe.yaml", *small, "--resume"]) == 0, capsys.readouterr().err
    rows = [json.loads(line) for line in (tmp_path / "runs/dpo/metrics.jsonl").read_text("utf-8").splitlines()]
    assert [row["step"] for row in rows if row["kind"] == "train"] == list(range(12))
    told = [shlex.split(line)[1:] for _, line in commands(DOCS / "start.md") if "runs/first" in line]
    assert [words[0] for words in told] == ["status", "report"]
    for words in told:
        assert main([word.replace("runs/first", "runs/dpo") for word in words]) == 0, capsys.readouterr().err
    assert {path.name for path in tmp_path.glob("first*")} == {"first.html", "first.json", "first-curves.csv"}


def test_a_reader_tries_a_loss_in_the_simulator_and_trains_with_it(tmp_path, monkeypatch, capsys):
    """Loss and transform of the page run in the simulator; with its schedule they train in the README's recipe."""
    for name, text in re.findall(
        r"```python\n# (\w+\.py)\n(.*?)```", (DOCS / "own-parts.md").read_text(encoding="utf-8"), re.DOTALL
    ):
        (tmp_path / name).write_text(text, encoding="utf-8")
    (simulated,) = [one for one in blocks(DOCS / "own-parts.md", "python") if "simulate" in one.text]
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    names: dict = {}
    exec(simulated.text, names)
    for module in ("hinge", "soft_clip", "lag"):
        sys.modules.pop(module, None)
    assert len(names["ends"][0]) == 24 and names["lead"].half_width > 0
    assert "paired difference" in capsys.readouterr().out
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    whole = yaml.safe_load(blocks(ROOT / "README.md", "yaml")[0].text)
    parts = yaml.safe_load(blocks(DOCS / "own-parts.md", "yaml")[0].text)
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(whole | parts), encoding="utf-8")
    for words in (
        ["new-model", "my-model", "--text", "examples/letters/pairs.jsonl"],
        ["validate", "recipe.yaml"],
        ["train", "recipe.yaml", "training.epochs=null", "training.steps=4"],
    ):
        assert main(words) == 0, capsys.readouterr().err
    rows = [json.loads(line) for line in (tmp_path / whole["output"] / "metrics.jsonl").read_text().splitlines()]
    assert [row["kind"] for row in rows].count("train") == 4
    assert all("satisfied" in row for row in rows if row["kind"] == "train")
