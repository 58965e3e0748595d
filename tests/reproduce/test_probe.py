"""How far a run will end, told early: the forecasts on journeys whose end is known, and the committed numbers."""

from __future__ import annotations

import math
import runpy
import sys
from pathlib import Path

import pytest

from humanline.reproduce.probe import (
    FORECASTS,
    Journey,
    growth_of_kind,
    own_power,
    probe_rows,
    probe_table,
    read_journeys,
    usual_growth,
    write_journeys,
)

SHARES = tuple(step / 10 for step in range(1, 11))


def power(cell: str, kind: str, height: float, exponent: float) -> Journey:
    return Journey(cell, kind, SHARES, tuple(height * share**exponent for share in SHARES))


def test_a_power_law_is_told_exactly_from_its_own_looks():
    journey = power("a", "offline", 3.0, 1.7)
    assert [own_power(journey, share) for share in (0.2, 0.4)] == pytest.approx([math.log(3.0)] * 2)


def test_other_cells_tell_a_run_that_grows_as_they_do():
    """Two others grow as the powers 1 and 2 of the steps, which is 1.5 on average; of its kind is the second alone."""
    others = [power("b", "offline", 5.0, 1.0), power("c", "humanline", 0.1, 2.0)]
    journey = power("a", "humanline", 3.0, 1.5)
    assert usual_growth(journey, 0.2, others) == pytest.approx(math.log(3.0))
    assert growth_of_kind(journey, 0.2, others) == pytest.approx(math.log(3.0) - 0.5 * math.log(0.2))


def test_errors_are_those_of_the_forecasts():
    """Of runs alike but for the power, each is told by the others' mean: one too far, one too near, one right."""
    rows = probe_rows([power("a", "x", 1.0, 1.0), power("b", "x", 2.0, 1.5), power("c", "x", 4.0, 1.25)])
    (row,) = [one for one in rows if (one["share"], one["forecast"], one["kind"]) == (0.2, "its own power", "all")]
    assert (row["runs"], row["factor"], row["bias"], row["order"]) == pytest.approx((3, 1.0, 1.0, 1.0))
    said = (0.2, "growth of other cells", "x")
    (row,) = [one for one in rows if (one["share"], one["forecast"], one["kind"]) == said]
    wrong = [(other - own) * math.log(5) for own, other in ((1.0, 1.375), (1.5, 1.125), (1.25, 1.25))]
    assert row["factor"] == pytest.approx(math.exp(sorted(map(abs, wrong))[1]))
    assert row["bias"] == pytest.approx(math.exp(sum(wrong) / 3))
    assert len(rows) == 2 * len(FORECASTS) * 2


def test_a_look_that_is_missing_is_named():
    with pytest.raises(ValueError, match=r"a: there is no look near 0\.1 of the run"):
        own_power(Journey("a", "x", (0.2, 1.0), (1.0, 2.0)), 0.2)


def test_journeys_are_read_as_they_were_written(tmp_path):
    found = [power("a", "x", 1.0, 1.0), power("b", "y, k = 8", 2.0, 1.5)]
    write_journeys(tmp_path / "probe.csv", found)
    again = read_journeys(tmp_path / "probe.csv")
    assert [(one.cell, one.kind, one.shares) for one in again] == [(one.cell, one.kind, SHARES) for one in found]
    assert again[1].distances == pytest.approx(found[1].distances, rel=1e-5)
    (tmp_path / "probe.csv").write_text("cell,share\n")
    with pytest.raises(ValueError, match="the first line must name cell, kind, share, kl_to_start"):
        read_journeys(tmp_path / "probe.csv")
    (tmp_path / "probe.csv").write_text("cell,kind,share,kl_to_start\na,x,0.1,1\na,x,0.2")
    with pytest.raises(ValueError, match="is it cut off"):
        read_journeys(tmp_path / "probe.csv")


def test_every_column_of_the_table_has_a_name_and_its_own_numbers():
    """The kind of run stands under its name, and the count of runs under its own."""
    head, _, first, *_ = probe_table([power("a", "x", 1.0, 1.0), power("b", "x", 2.0, 1.5)]).splitlines()
    names, cells = ([one.strip() for one in line.strip("|").split("|")] for line in (head, first))
    assert all(names) and dict(zip(names, cells, strict=True)) | {"90 %": "", "bias": ""} == {
        **{"told after": "20% of the steps", "by": "its own power", "kind of run": "all", "runs": "2"},
        **{"factor, median": "1.00", "90 %": "", "bias": "", "order": "1.00"},
    }


def test_the_committed_table_is_what_its_runs_make(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["make_probe.py", "--check"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "make_probe.py"), run_name="__main__")
    assert ended.value.code == 0
