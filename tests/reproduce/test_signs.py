"""Which of two runs is better, by the curve and by rules without one."""

import math
from dataclasses import replace

import numpy as np
import pytest

from humanline.reproduce.cells import core
from humanline.reproduce.frontier import arrange
from humanline.reproduce.hypotheses import judge
from humanline.reproduce.power import World, outcomes
from humanline.reproduce.rules import Rules
from humanline.reproduce.signs import RIVALS, advantages

RULES = Rules()
CLEAR = World(curve="quadratic", between_cells=0.001, between_draws=0.001, heights=0.01)


def compared(rows):
    return {one.rival: one for one in advantages(arrange(rows, core(), RULES), RULES)}


def test_on_a_clear_curve_the_sign_is_right_nearly_always():
    """H5 holds, and items are 32 of equal settings and 8 across learning rates."""
    rows = outcomes(CLEAR, 0)
    found = compared(rows)
    assert [found[rival].table.shape for rival in RIVALS] == [(32, 3), (32, 3), (8, 3)]
    assert min(one.right for one in found.values()) > 0.9
    assert judge(rows, RULES)[4].verdict == "holds"


def test_rules_are_right_as_often_as_plain_loops_say():
    """The rules' shares, recovered from advantages, are those of a loop over pairs of runs."""
    rows = outcomes(World(), 4)
    found = compared(rows)
    runs = {(row.cell, row.start, row.draw): row.score for row in rows}
    shares: dict[str, list[float]] = {rival: [] for rival in RIVALS}
    for (a, start, draw), first in runs.items():
        for b in core():
            if a.variant != "offline" or b.variant != "humanline":
                continue
            if (a.objective, a.beta, a.clip_eps) != (b.objective, b.beta, b.clip_eps):
                continue
            better = runs[b, start, draw] > first
            if a.lr == b.lr:
                shares["always humanline"].append(better)
                shares["always offline"].append(not better)
            else:
                shares["smaller lr x steps"].append(better == (b.lr < a.lr))
    for rival, values in shares.items():
        assert found[rival].pairs == len(values)
        theirs = found[rival].right - found[rival].table.mean()
        assert theirs == pytest.approx(np.mean(values))


def test_a_curve_that_is_wrong_fails():
    """Where humanline is the worse however far it went, "always offline" beats the curve for certain."""
    rows = [
        replace(row, score=row.score - 0.5) if row.cell.variant == "humanline" else row for row in outcomes(CLEAR, 0)
    ]
    finding = judge(rows, RULES)[4]
    assert finding.verdict == "fails"
    assert "closest rule: always offline" in finding.reason
    assert finding.high < 0


def test_curves_are_of_other_draws():
    """What a draw's own offline runs scored changes no prediction about it.

    Humanline runs of the other draws collapse, so that there nothing depends on a score; in draw 0 scores change and
    keep their order, so that the truth is the same.
    """
    rows = [
        replace(row, status="not finite") if row.draw and row.cell.variant == "humanline" else row
        for row in outcomes(World(), 5)
    ]
    steep = [row if row.draw else replace(row, score=math.exp(60 * row.score)) for row in rows]
    for rival in RIVALS:
        assert (compared(rows)[rival].table == compared(steep)[rival].table).all()


def test_distances_beyond_the_range_count_as_its_end():
    """Further than the furthest offline cell the curve has no opinion against it: it is not extrapolated."""
    rows = [replace(row, kl_to_start=row.cell.lr * 1e4 / (row.cell.beta or 1.0)) for row in outcomes(CLEAR, 0)]
    last = {"objective": "dpo", "lr": 1e-3, "beta": 0.1}

    def is_far(row):
        return row.cell.variant == "humanline" and all(getattr(row.cell, name) == last[name] for name in last)

    rows = [replace(row, kl_to_start=1e5, score=-1.0) if is_far(row) else row for row in rows]
    assert (compared(rows)["always offline"].table[3] == -0.5).all()


def test_collapsed_runs_are_worse_and_two_of_them_tell_nothing():
    """A pair with one collapsed run has a better one; a pair of two is not used, and counted."""
    rows = outcomes(CLEAR, 0)
    humanline = [replace(r, status="not finite", score=math.nan) if r.cell.variant == "humanline" else r for r in rows]
    found = compared(humanline)["always offline"]
    assert found.unused == 0
    assert found.right == 0.5  # a distance is lacking, so the curve has no opinion
    assert (found.table == -0.5).all()
    both = [replace(r, status="not finite") if r.cell.objective == "kto" and r.draw == 1 else r for r in rows]
    assert compared(both)["always offline"].unused == 24 * 3


def test_one_draw_has_no_other_draws():
    """With a single draw there is no curve of others, and H5 is not judged."""
    rules = replace(RULES, draws=(0,))
    assert judge(outcomes(World(draws=1), 0), rules)[4].verdict == "no overlap"
