"""The frontier of a testbed: runs in a table, the offline curve, and which cells may be held against it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from humanline.reproduce.cells import Cell, Objective
from humanline.reproduce.curves import Array, Curves, choose_degree, fit_curves
from humanline.reproduce.outcome import Outcome
from humanline.reproduce.rules import Rules


@dataclass(frozen=True, slots=True)
class Table:
    """Runs of cells by start models by draws.

    Attributes
    ----------
    cells : tuple of C Cell
    starts, draws : tuples of int
    runs : (C, M, R) array of Outcome, or None where a run has not been made
    """

    cells: tuple[Cell, ...]
    starts: tuple[int, ...]
    draws: tuple[int, ...]
    runs: NDArray[Any]

    def of(self, *, cells: Iterable[Cell], draws: Iterable[int] | None = None) -> Table:
        """Return the part with these of its cells, and these of its draws."""
        cells, draws = tuple(cells), self.draws if draws is None else tuple(draws)
        places = {cell: place for place, cell in enumerate(self.cells)}
        rows, columns = [places[cell] for cell in cells], [self.draws.index(draw) for draw in draws]
        return Table(cells, self.starts, draws, self.runs[rows][:, :, columns])

    def values(self, read: Callable[[Outcome], float]) -> Array:
        """Return a (C, M, R) array of what is read of each run; nan where there is none."""
        found = [math.nan if run is None else read(run) for run in self.runs.ravel()]
        return np.array(found, dtype=np.float64).reshape(self.runs.shape)

    @property
    def missing(self) -> int:
        """Return how many runs of these cells have not been made."""
        return sum(run is None for run in self.runs.ravel())

    def collapsed(self) -> int:
        """Return how many runs have no finite score or distance."""
        return int((self.values(lambda run: not is_finite(run)) == 1).sum())


def arrange(outcomes: Iterable[Outcome], cells: Iterable[Cell], rules: Rules) -> Table:
    """Arrange the outcomes of one testbed: those of some cells, from the starts and draws that are judged.

    Raises
    ------
    ValueError
        If there is none of these, outcomes are of several testbeds, or a run is there twice.
    """
    cells = tuple(cells)
    runs: dict[tuple[Cell, int, int], Outcome] = {}
    testbeds = set()
    for outcome in outcomes:
        key = (outcome.cell, outcome.start, outcome.draw)
        testbeds.add(outcome.testbed)
        if key in runs:
            raise ValueError(
                f"outcomes: {outcome.cell.name}, start {outcome.start}, draw {outcome.draw} is there twice; "
                "keep one of the two runs"
            )
        runs[key] = outcome
    if len(testbeds) > 1:
        raise ValueError(f"outcomes: must be of one testbed, are of {sorted(testbeds)}; judge each by itself")
    table = np.empty((len(cells), len(rules.starts), len(rules.draws)), dtype=object)
    for place, cell in enumerate(cells):
        table[place] = [[runs.get((cell, start, draw)) for draw in rules.draws] for start in rules.starts]
    if all(run is None for run in table.ravel()):
        raise ValueError("outcomes: none is of the cells, starts and draws that are judged")
    return Table(cells, rules.starts, rules.draws, table)


def is_finite(run: Outcome) -> bool:
    """Return whether a run ended with a finite score and a finite distance."""
    return run.status == "done" and math.isfinite(run.score) and math.isfinite(run.kl_to_start)


def log_distance(rules: Rules) -> Callable[[Outcome], float]:
    """Return a function of the log of KL(policy || start) of a run; nan where it collapsed or has not moved."""
    return lambda run: math.log(run.kl_to_start) if is_finite(run) and run.kl_to_start >= rules.least_kl else math.nan


@dataclass(frozen=True, slots=True)
class Frontier:
    """The offline curve of an objective in a testbed.

    Attributes
    ----------
    objective : str
    offline : Table
        The cells that the curve is of.
    left_out : dict of str to str
        Offline cells that it is not of, and why.
    curves : Curves or None
        None where too few cells are left for the lowest degree.
    gain : (M,) array
        Peak of the curve minus score of the start.
    """

    objective: Objective
    offline: Table
    left_out: dict[str, str]
    curves: Curves | None
    gain: Array

    def margin(self, rules: Rules) -> float:
        """Return the share of the mean gain that counts as small; nan where the curve has no gain."""
        gain = float(self.gain.mean()) if self.curves is not None else math.nan
        return rules.margin_share * gain if gain > 0 else math.nan


def frontier(table: Table, objective: Objective, rules: Rules) -> Frontier:
    """Fit the curve of an objective to the offline cells of a table."""
    offline, left_out = usable(table, rules)
    log_kl = np.nanmean(offline.values(log_distance(rules)), axis=2) if offline.cells else np.zeros((0, 1))
    nothing = Frontier(objective, offline, left_out, None, np.array([]))
    if not offline.cells:
        return nothing
    scores = np.nanmean(moved(offline, rules, lambda run: run.score), axis=2)
    degree = choose_degree(log_kl, scores, rules.degrees, rules.spare_cells)
    if degree is None:
        return nothing
    curves = fit_curves(log_kl, scores, degree)
    start_scores = np.nanmean(offline.values(lambda run: run.start_score), axis=(0, 2))
    return Frontier(objective, offline, left_out, curves, curves.peaks()[0] - start_scores)


def moved(table: Table, rules: Rules, read: Callable[[Outcome], float]) -> Array:
    """Return values of the runs that have a log distance, nan for others."""
    values = table.values(read)
    return np.where(np.isnan(table.values(log_distance(rules))), np.nan, values)


def usable(table: Table, rules: Rules) -> tuple[Table, dict[str, str]]:
    """Return the cells that have a run with a log distance from every start, and why others are left out."""
    log_kl = table.values(log_distance(rules))
    left_out: dict[str, str] = {}
    for row, column in np.argwhere(np.isnan(log_kl).all(2)).tolist():
        left_out.setdefault(table.cells[row].name, f"start {table.starts[column]}: {_why(table.runs[row, column])}")
    return table.of(cells=[cell for cell in table.cells if cell.name not in left_out]), left_out


def _why(runs: Iterable[Outcome | None]) -> str:
    """Return why none of a cell's runs from a start has a log distance."""
    made = [run for run in runs if run is not None]
    if not made:
        return "not run"
    return "no run moved" if any(is_finite(run) for run in made) else "every run collapsed"


@dataclass(frozen=True, slots=True)
class Overlap:
    """The cells that may be held against a frontier.

    Attributes
    ----------
    inside : Table
        Cells whose mean log KL from every start is within the offline range from that start.
    beyond : Table
        Cells that lie further than every offline cell from some start.
    left_out : dict of str to str
    reason : str
        Why nothing is compared; empty where there is enough.
    """

    inside: Table
    beyond: Table
    left_out: dict[str, str]
    reason: str


def overlap(front: Frontier, table: Table, rules: Rules) -> Overlap:
    """Find where distances of other cells overlap with the offline ones, and whether both sides have enough there."""
    cells, left_out = usable(table, rules)
    if front.curves is None:
        return Overlap(table.of(cells=()), table.of(cells=()), left_out, "too few offline cells for a curve")
    if not cells.cells:
        return Overlap(cells, cells, left_out, "no cell to compare has a distance")
    log_kl = np.nanmean(cells.values(log_distance(rules)), axis=2)
    near, far = (log_kl < front.curves.low).any(1), (log_kl > front.curves.high).any(1)
    for cell, is_near, is_far in zip(cells.cells, near, far, strict=True):
        if is_near or is_far:
            left_out[cell.name] = f"{'further' if is_far else 'nearer'} than every offline cell, from some start"
    inside = cells.of(cells=[c for c, out in zip(cells.cells, near | far, strict=True) if not out])
    beyond = cells.of(cells=[c for c, out in zip(cells.cells, far, strict=True) if out])
    offline_kl = np.nanmean(front.offline.values(log_distance(rules)), axis=2)
    both = ((offline_kl >= log_kl.min(0)) & (offline_kl <= log_kl.max(0))).all(1)
    there = [c for c, is_there in zip(front.offline.cells, both, strict=True) if is_there]
    short = [
        f"{len(side)} {name} cells at {len({c.lr for c in side})} learning rates"
        for name, side in (("offline", there), ("compared", list(inside.cells)))
        if len(side) < rules.least_cells or len({c.lr for c in side}) < rules.least_rates
    ]
    return Overlap(inside, beyond, left_out, "in the overlap only " + " and ".join(short) if short else "")


def best_clips(table: Table, cells: Sequence[Cell], keep: int, draw: int) -> tuple[float, ...]:
    """Return GRPO's clips whose best cell has the highest mean score over starts on one draw.

    A cell with a collapsed run counts as the worst.
    """
    scores = table.of(cells=cells, draws=(draw,)).values(lambda run: run.score if is_finite(run) else -math.inf)
    means = np.where(np.isnan(scores), -np.inf, scores).mean((1, 2))
    best: dict[float, float] = {}
    for cell, mean in zip(cells, means, strict=True):
        if cell.clip_eps is not None:
            best[cell.clip_eps] = max(best.get(cell.clip_eps, -math.inf), float(mean))
    return tuple(sorted(sorted(best, key=lambda clip: -best[clip])[:keep]))
