"""Whether what is said of data foretells a run's end: lines through made-up runs whose slope is known."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from scipy import stats

from humanline.reproduce import foretold as module
from humanline.reproduce.cells import OBJECTIVES, around, core, paper
from humanline.reproduce.foretold import (
    KINDS,
    QUARTERS,
    DataLevel,
    cells_on,
    find_levels,
    foretold_rows,
    write_foretold,
)
from humanline.reproduce.outcome import Outcome
from humanline.reproduce.start import make_pairs, make_start
from humanline.system.stop import StopRequested
from tests.helpers.micro_testbed import MICRO

LEVELS = {"quarter 1": -0.9, "quarter 2": -0.5, "quarter 3": -0.3, "quarter 4": -0.2}
SLOPES = (0.5, 0.4, 0.6)  # of the start models


def runs(sign: float = 1.0) -> list[Outcome]:
    """Runs of DPO on quarters, whose score is a line of the level, and moves up and down between draws and rates."""
    found = []
    for data in QUARTERS:
        for number, cell in enumerate([*cells_on(data, "dpo", "offline"), *cells_on(data, "dpo", "humanline")]):
            for start, slope in enumerate(SLOPES):
                for draw in (0, 1):
                    values = dict.fromkeys(Outcome.__dataclass_fields__, math.nan)
                    values |= {"testbed": "letters", "cell": cell, "start": start, "draw": draw, "status": "done"}
                    wobble = 0.05 * (-1) ** draw + 0.03 * (-1) ** number
                    found.append(Outcome(**{**values, "score": start + sign * slope * LEVELS[data] + wobble}))
    return found


def said() -> list[DataLevel]:
    return [
        DataLevel(start, draw, data, level + 0.01 * (-1) ** draw, -0.4, level + 0.4, "within", "at")
        for data, level in LEVELS.items()
        for start in range(3)
        for draw in (0, 1)
    ]


def row(rows, variant="offline", by="level", kind="quarters of near pairs"):
    (found,) = [
        one
        for one in rows
        if (one["kind"], one["objective"], one["variant"], one["foretold by"]) == (kind, "dpo", variant, by)
    ]
    return found


def test_the_slope_is_that_of_the_line_with_students_interval_over_start_models():
    rows = foretold_rows(runs(), said())
    found = row(rows)
    assert found["slope"] == pytest.approx(sum(SLOPES) / 3) and (found["sets"], found["starts"]) == (4, 3)
    low, high = stats.ttest_1samp(SLOPES, 0.0).confidence_interval(0.95)
    assert (found["low"], found["high"]) == pytest.approx((low, high))
    assert found["p"] == pytest.approx(stats.ttest_1samp(SLOPES, 0.0, alternative="greater").pvalue)
    assert found["ordered"] == 1.0 and found["verdict"] == "holds here"
    assert found["adjusted"] == pytest.approx(2 * found["p"])  # with that of the other variant
    assert row(rows, by="gap")["slope"] == pytest.approx(found["slope"])  # the own level is the same for all sets
    assert row(rows, kind="writers of the pairs")["verdict"] == "not run"


def test_a_line_that_falls_is_against_the_proxy():
    found = row(foretold_rows(runs(-1.0), said()))
    assert (found["verdict"], found["ordered"]) == ("does not hold here", 0.0)
    p = stats.ttest_1samp([-slope for slope in SLOPES], 0.0, alternative="less").pvalue
    assert (found["contrary"], found["contrary_adjusted"]) == (pytest.approx(p), pytest.approx(2 * p))


def test_a_line_that_falls_is_corrected_as_one_that_rises():
    """Each of two rows lies below 0 at .03: alone it would decide, and of two neither does."""
    wide = [replace(one, score=one.score - 0.42 * LEVELS[QUARTERS[one.cell.quartile - 1]]) for one in runs()]
    slopes = [slope - 0.42 for slope in SLOPES]
    shift = next(
        shift
        for shift in (0.01 * number for number in range(200))
        if stats.ttest_1samp([slope - shift for slope in slopes], 0.0, alternative="less").pvalue < 0.035
    )
    wide = [replace(one, score=one.score - shift * LEVELS[QUARTERS[one.cell.quartile - 1]]) for one in wide]
    found = row(foretold_rows(wide, said()))
    assert 0.025 < found["contrary"] < 0.05 < found["contrary_adjusted"]
    assert found["verdict"] == "undecided here"


def test_a_start_that_lacks_a_set_or_an_inspection_is_left_out():
    lacking = [one for one in runs() if (one.start, one.cell.quartile, one.draw) != (0, 3, 1)]
    assert row(foretold_rows(lacking, said()))["starts"] == 2
    assert row(foretold_rows(runs(), [one for one in said() if one.start]))["starts"] == 2
    broken = [one for one in runs() if one.start]
    assert row(foretold_rows(broken[:1], said()))["verdict"] == "not run"


def test_the_sets_are_those_that_the_grid_runs():
    known = {*core(), *around(), *paper()}
    for kind, sets in KINDS.items():
        for objective in OBJECTIVES if "writers" in kind else ("dpo",):
            for data in sets:
                for variant in ("offline", "humanline"):
                    cells = cells_on(data, objective, variant)
                    assert len(cells) == 2 and set(cells) <= known


@pytest.mark.slow  # three start models are trained
def test_what_is_said_is_what_an_inspection_says(tmp_path):
    """Levels of quarters rise, those of their rows together are the set's, and each lies by its gap above the own."""
    make_start(MICRO, "near", 0, tmp_path / "starts")
    for source in ("far", "better"):
        make_start(MICRO, source, 0, tmp_path / "starts")
    found = {one.data: one for one in find_levels(MICRO, [(0, 0)], tmp_path / "starts", tmp_path / "levels")}
    assert list(found) == ["near", *QUARTERS, "far", "better"]
    levels = [found[name].level for name in QUARTERS]
    assert levels == sorted(levels) and levels[0] < found["near"].level < levels[-1]
    tree = json.loads((tmp_path / "levels" / "near-0-0" / "inspection.json").read_text())
    assert tree["verdict"]["own"]["level"]["value"] == pytest.approx(found["near"].own)
    for one in found.values():
        assert one.gap == pytest.approx(one.level - one.own, abs=1e-9) and one.paper_side in (
            "below",
            "within",
            "above",
        )
    assert make_pairs(MICRO, "far", 0, 0, tmp_path / "starts").count  # which the inspection had made


def test_an_inspection_that_may_begin_one_set_each_time_gets_to_its_end(tmp_path, monkeypatch):
    """What was inspected is not asked about; before a set that was not, nothing of it is made."""
    made, asked = [], []

    def inspect(config, *, out, **_):
        (Path(out)).mkdir(parents=True, exist_ok=True)
        (Path(out) / "inspection.json").write_text("{}")
        found = SimpleNamespace(own_level=SimpleNamespace(mean=-0.4), gap=SimpleNamespace(mean=0.1), paper="x", own="y")
        found.level = SimpleNamespace(mean=-0.3)
        return SimpleNamespace(verdict=found, quartiles=None)

    def one_alone():
        asked.append(True)
        if len(asked) > 1:
            raise StopRequested("--minutes 1")

    monkeypatch.setattr("humanline.evaluate.inspect_run.inspect_data", inspect)
    monkeypatch.setattr("humanline.evaluate.inspect_run.config_of_file", lambda *_: None)
    monkeypatch.setattr(module, "make_start", lambda *one: made.append(one) or SimpleNamespace(model="m"))
    monkeypatch.setattr(module, "pairs_at", lambda *one: SimpleNamespace(file="f"))
    given = (MICRO, [(0, 0)], tmp_path / "starts", tmp_path / "levels")
    for number in range(1, 3):
        asked.clear()
        made.clear()
        with pytest.raises(StopRequested):
            find_levels(*given, before=one_alone)
        assert len(list(tmp_path.glob("levels/*/inspection.json"))) == number == len(made)
    asked.clear()
    assert [one.data for one in find_levels(*given, before=one_alone)] == ["near", "far", "better"] and len(asked) == 1
    asked.clear()
    assert len(find_levels(*given, before=one_alone)) == 3 and not asked


def test_nothing_is_inspected_where_no_runs_on_several_sets_are(tmp_path):
    asked = []

    def find(places):
        asked.append(list(places))
        return said()

    near = [one for one in runs() if one.cell.quartile == 1]
    assert write_foretold(tmp_path / "none", near, find) == [] and not asked
    files = write_foretold(tmp_path / "some", runs(), find)
    assert [file.name for file in files] == ["levels.csv", "foretold.csv", "foretold.md"]
    assert asked == [[(start, draw) for start in range(3) for draw in (0, 1)]]
    assert "holds here" in files[2].read_text() and "quarter 1 | -0.9" in files[2].read_text()
