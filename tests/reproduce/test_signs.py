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
    """H5 holds, and items are 24 of equal settings and 8 across learning rates."""
    rows = outcomes(CLEAR, 0)
    found = compared(rows)
    assert [found[rival].table.shape for rival in RIVALS] == [(24, 3), (24, 3), (8, 3)]
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
    """Scores of a draw's own offline runs change no prediction about it."""
    rows = outcomes(World(), 5)
    rules = replace(RULES, starts=(0, 1))

    def rights(scale):
        # of draw 0 alone: orders of scores are kept, so that the truth is the same
        these = [replace(row, score=scale * row.score) if row.draw == 0 else row for row in rows]
        table = arrange(these, core(), rules)
        only = [
            replace(row, score=math.nan) if row.draw != 0 and row.cell.variant == "humanline" else row for row in these
        ]
        assert table.missing == 0
        return advantages(arrange(only, core(), rules), rules)

    # humanline runs of other draws collapse, so the sign there is the same whatever scores are
    first, second = rights(1.0), rights(1000.0)
    seen = [np.abs(a.table - b.table).max() for a, b in zip(first, second, strict=True)]
    assert max(seen) < 0.5  # other draws' predictions use draw 0, its own do not


def test_collapsed_runs_are_worse_and_two_of_them_tell_nothing():
    """A pair with one collapsed run has a better one; a pair of two is not used, and counted."""
    rows = outcomes(CLEAR, 0)
    humanline = [replace(r, status="not finite", score=math.nan) if r.cell.variant == "humanline" else r for r in rows]
    found = compared(humanline)["always offline"]
    assert found.unused == 0
    assert found.right == 0.5  # a distance is lacking, so the curve has no opinion
    assert (found.table == -0.5).all()
    both = [replace(r, status="not finite") if r.cell.objective == "kto" and r.draw == 1 else r for r in rows]
    assert compared(both)["always offline"].unused == 18 * 3


def test_one_draw_has_no_other_draws():
    """With a single draw there is no curve of others, and H5 is not judged."""
    rules = replace(RULES, draws=(0,))
    assert judge(outcomes(World(draws=1), 0), rules)[4].verdict == "no overlap"
