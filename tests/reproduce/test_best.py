"""The best cell of each variant, chosen on other start models than it is reported on."""

from __future__ import annotations

import dataclasses
import math

import pytest

from humanline.reproduce.best import best_rows
from humanline.reproduce.cells import core
from humanline.reproduce.outcome import Outcome

CELLS = [cell for cell in core() if cell.objective == "dpo" and cell.variant == "offline"][:3]
SERIES = dict.fromkeys(CELLS, "offline")


def outcome(cell: int, start: int, score: float, **changes) -> Outcome:
    values = dict.fromkeys(Outcome.__dataclass_fields__, math.nan)
    values |= {"testbed": "letters", "cell": CELLS[cell], "start": start, "draw": 0, "status": "done", "task": ""}
    return Outcome(**(values | {"score": score, "kl_to_start": 1.0 + cell} | changes))


def test_a_cell_that_is_best_by_luck_from_one_start_is_not_reported_there():
    """Cell 0 shines from start 0 alone: the other starts choose cell 1 for it, and it chooses cell 0 for them."""
    scores = [[0.9, 0.5, 0.5], [0.6, 0.6, 0.6], [0.1, 0.1, 0.1]]
    runs = [outcome(cell, start, scores[cell][start]) for cell in range(3) for start in range(3)]
    (row,) = best_rows(runs, SERIES)
    assert row["score"] == pytest.approx((0.6 + 0.5 + 0.5) / 3) and row["kl_to_start"] == pytest.approx((2 + 1 + 1) / 3)
    assert row["chosen"] == f"{CELLS[1].name}; {CELLS[0].name} (2)" and (row["cells"], row["starts"]) == (3, 3)
    assert row["low"] < row["score"] < row["high"]


def test_collapsed_and_missing_cells_are_not_chosen():
    """A cell without a run from every start, or with a collapsed one, is none to choose; one start chooses nothing."""
    runs = [outcome(0, start, 0.9) for start in range(2)] + [outcome(1, start, 0.6) for start in range(3)]
    runs += [outcome(2, start, 0.8) for start in range(3)]
    runs[-1] = dataclasses.replace(runs[-1], status="not finite", score=math.nan)
    (row,) = best_rows(runs, SERIES)
    assert row["cells"] == 1 and row["score"] == pytest.approx(0.6)
    (row,) = best_rows([outcome(0, 0, 0.9)], SERIES)
    assert math.isnan(row["score"]) and row["starts"] == 0
