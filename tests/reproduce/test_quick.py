"""The demo: what the whole grid lets expect of its cells, what came, and what it leaves behind."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest

from humanline.cli import main
from humanline.reproduce import quick as module
from humanline.reproduce.cells import core
from humanline.reproduce.outcome import Outcome
from humanline.reproduce.plan import grid_jobs
from humanline.reproduce.power import World, outcomes
from humanline.reproduce.quick import (
    CELLS,
    demo_picture,
    expected_lines,
    found_lines,
    leave_for_recipes,
    words_of,
)
from humanline.reproduce.rule import LETTERS, Rule, read_rule, rule_of, write_rule
from humanline.reproduce.rules import Rules
from humanline.reproduce.start import Start
from humanline.reproduce.tables import read_outcomes
from humanline.system.folders import verify_folder
from tests.conftest import ROOT

RULE = Rule(
    testbed="letters",
    start=0.5,
    curves={
        "dpo": [(1.0, 0.6), (2.0, 0.7), (4.0, 0.6)],
        "kto": [],
        "grpo": [(0.5, 0.6), (1.0, 0.7), (4.0, 0.65)],
    },
    distances={cell.name: 1.0 + place for place, cell in enumerate(CELLS)},
    scores={cell.name: 0.51 + place / 100 for place, cell in enumerate(CELLS)},
)


def found(cell_number: int, order: int, **changes) -> Outcome:
    values = dict.fromkeys(Outcome.__dataclass_fields__, math.nan)
    values |= {"testbed": "letters", "cell": CELLS[cell_number], "start": 0, "draw": order, "status": "done"}
    values |= {"score": 0.7 + order / 100, "kl_to_start": 1.5 + order, "greedy": 0.8, "task": ""}
    return Outcome(**(values | changes))


def test_the_cells_are_those_of_the_grid_with_the_papers_clips():
    """GRPO offline at Table 3's .5, humanline and online at .15; DPO at two betas; one learning rate; two orders."""
    assert set(CELLS) <= set(core()) and len({cell.lr for cell in CELLS}) == 1 and module.ORDERS == 2
    clips = {(cell.variant, cell.clip_eps) for cell in CELLS if cell.objective == "grpo"}
    assert clips == {("offline", 0.5), ("humanline", 0.15), ("online", 0.15)}
    betas = {cell.beta for cell in CELLS if cell.objective == "dpo"}
    assert len(betas) == 2
    assert {(c.variant, c.every, c.beta) for c in CELLS if c.objective == "dpo"} == {
        (variant, every, beta) for beta in betas for variant, every in (("offline", None), ("humanline", 32))
    }


def test_the_expected_score_is_that_of_the_offline_curve_there():
    """Between its points by the logarithm of the distance; beyond its ends that of the end, and it says so."""
    rule = dataclasses.replace(RULE, distances={CELLS[4].name: math.sqrt(2.0), CELLS[5].name: 9.0, CELLS[6].name: 2.1})
    assert rule.expected(CELLS[4]) == (math.sqrt(2.0), pytest.approx(0.65)) and rule.expected(CELLS[0]) is None
    assert rule.expected(CELLS[5]) == (9.0, 0.6) and rule.peak("dpo") == (2.0, 0.7)
    text = "\n".join(expected_lines(rule))
    lines = {cell: next(line for line in text.splitlines() if line.startswith(words_of(cell))) for cell in CELLS}
    assert "short of the peak" in lines[CELLS[4]] and "further than every offline cell" in lines[CELLS[5]]
    assert "about at the peak" in lines[CELLS[6]] and "the grid does not know" in lines[CELLS[0]]
    assert "1.41      0.650          0.550" in lines[CELLS[4]] and "9.00      0.600          0.560" in lines[CELLS[5]]
    assert "DPO 0.700 at 2.0" in text and "GRPO 0.700 at 1.0" in text


def test_nothing_is_called_better_at_two_orders():
    """Both runs of a cell are shown as they are, collapsed ones too, beside what was expected."""
    outcomes = [found(number, order) for number in range(len(CELLS)) for order in (0, 1)]
    outcomes[3] = found(1, 1, status="not finite", score=math.nan, kl_to_start=math.nan, greedy=math.nan)
    text = "\n".join(found_lines(outcomes, RULE))
    assert "0.700 0.710" in text and "1.50 2.50" in text and "0.700 nan" in text
    assert "1 of 16 runs collapsed" in text and "too few to call" in text
    assert not {"better", "worse", "wins"} & set(text.replace("one cell better than another", "").split())
    picture = demo_picture(outcomes, RULE)
    assert sum(len(points) for series in picture.cells.values() for points in series.values()) == 2 * len(CELLS) - 1


def test_what_was_clipped_is_the_mean_of_runs_that_have_numbers():
    """A collapsed run has none; where no run was clipped nothing is said."""
    broken = {"status": "not finite", "score": math.nan, "kl_to_start": math.nan}
    runs = [found(1, 0, clipped=0.25), found(1, 1, **broken), found(2, 0, **broken), found(2, 1, **broken, clipped=0.9)]
    lines = {line.split("  ")[0]: line for line in found_lines(runs, RULE)}
    assert lines[words_of(CELLS[1])].endswith("25.0%")
    assert not any("nan%" in line or "90" in line for line in lines.values())


def test_what_recipes_begin_from_is_of_one_start_model(tmp_path, monkeypatch):
    """Another start model, a copy that was cut, or pairs that are gone have all of it made anew; else it stays."""
    drawn = []
    monkeypatch.setattr(module, "Model", lambda testbed, path: path)
    monkeypatch.setattr(module, "pairs_of", lambda *_: drawn.append(True) or ([], []))
    model = tmp_path / "starts" / "letters" / "near-0" / "start" / "final"
    pairs = model.parents[1] / "pairs-0" / "pairs.jsonl"
    for folder in (model, pairs.parent):
        folder.mkdir(parents=True)
    pairs.write_text("{}\n")
    (model / "manifest.json").write_text("{}")
    (model / "config.json").write_text("{}")
    copy = tmp_path / "start" / "final"

    def leave(weights="one"):
        (model / "model.safetensors").write_text(weights)
        leave_for_recipes(tmp_path, Start(model, (9.0, 1.0), None))
        assert (copy / "model.safetensors").read_text() == weights and (tmp_path / "pairs.jsonl").read_text() == "{}\n"
        verify_folder(copy)
        return len(drawn)

    assert leave() == 1 and leave() == 1
    assert leave("other") == 2
    (copy / "config.json").unlink()
    assert leave("other") == 3 and (copy / "config.json").is_file()
    (tmp_path / "pairs-held-out.jsonl").unlink()
    assert leave("other") == 4 and (tmp_path / "pairs-held-out.jsonl").is_file()
    monkeypatch.setattr(module, "publish_folder", dying)
    with pytest.raises(OSError, match="half-way"):
        leave("new")
    assert not copy.exists()  # no old model lies beside new pairs


def dying(*_):
    raise OSError("half-way")


def test_the_rule_of_a_grid_is_read_as_it_was_written(tmp_path):
    """Four digits of the curves and distances of a grid's runs."""
    runs = outcomes(World(), 0)
    rule = rule_of(runs, Rules())
    assert set(rule.distances) == {cell.name for cell in core()} and all(len(rule.curves[name]) for name in rule.curves)
    cell = core()[5]
    mean = sum(run.kl_to_start for run in runs if run.cell == cell) / 9
    assert rule.distances[cell.name] == pytest.approx(mean, rel=1e-3)
    mean = sum(run.score for run in runs if run.cell == cell) / 9
    assert rule.scores[cell.name] == pytest.approx(mean, rel=1e-3)
    write_rule(tmp_path / "rule.json", rule)
    assert read_rule(tmp_path / "rule.json") == rule


def test_the_rule_of_the_demo_is_that_of_the_committed_grid():
    """What the demo expects follows from the runs that the study has, and knows all of its cells."""
    runs = read_outcomes(ROOT / "studies" / "frontier" / "letters" / "runs.csv")
    assert json.loads(LETTERS.read_text()) == json.loads(json.dumps(dataclasses.asdict(rule_of(runs, Rules()))))
    rule = read_rule()
    assert all(rule.expected(cell) is not None for cell in CELLS)
    assert len(grid_jobs(["letters"], CELLS, 1, 2)) == 16


@pytest.mark.parametrize("more", [["letters"], ["--known", "runs.csv"], ["--starts", "0"], ["--draws", "3"], ["--all"]])
def test_the_demo_takes_nothing_of_the_grid(more, capsys):
    """It is of the letters task and of its own runs."""
    assert main(["reproduce", "--quick", *more]) == 2
    said = capsys.readouterr().err
    assert "--quick is of the letters task" in said and (more[0] in said or "a testbed" in said)


@pytest.mark.slow
def test_the_whole_demo(tmp_path, capsys):
    """It says what is expected, then what came, and leaves table, figure, models, and what the recipes begin from."""
    out = tmp_path / "out"
    assert main(["demo", "--out", str(out), "--quiet"]) == 0
    printed = capsys.readouterr().out
    assert printed.index("2. expected") < printed.index("3. 16 alignment runs") < printed.index("4. what came")
    assert (out / "table.txt").read_text().strip() in printed
    runs = read_outcomes(out / "runs.csv")
    assert len(runs) == 16 and all(0.5 < run.score < 1 and run.kl_to_start > 0.1 for run in runs)
    assert len(list((out / "runs" / "letters").glob("*/final/model.safetensors"))) == 16
    words = [(out / name).read_text().splitlines() for name in ("words.jsonl", "words-held-out.jsonl")]
    assert [len(some) for some in words] == [2560, 192] and not {*words[0]} & {*words[1]}
    held_out = {json.loads(line)["prompt"] for line in (out / "pairs-held-out.jsonl").read_text().splitlines()}
    assert held_out <= {json.loads(line)["prompt"] for line in words[1]} and len(held_out) > 150
    assert (out / "frontier.png").is_file() and (out / "start" / "final" / "model.safetensors").is_file()
    before = (out / "runs.csv").read_bytes()
    assert main(["demo", "--out", str(out), "--quiet"]) == 0  # again: nothing is run twice
    assert (out / "runs.csv").read_bytes() == before
