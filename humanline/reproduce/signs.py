"""Whether the offline curve tells which of two runs is better, more often than rules that need no curve."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from humanline.reproduce.cells import OBJECTIVES, Cell
from humanline.reproduce.curves import Array, choose_degree, fit_curves
from humanline.reproduce.frontier import Table, is_finite, log_distance, moved, usable
from humanline.reproduce.outcome import Outcome
from humanline.reproduce.rules import Rules

#: Rules that need no curve. The first two answer pairs of equal settings; the third pairs of different learning rates.
RIVALS = ("always offline", "always humanline", "smaller lr x steps")


@dataclass(frozen=True, slots=True)
class Advantage:
    """How much more often the curve is right than a rule: an (items, M) table for `stats.crossed_estimate`.

    Attributes
    ----------
    rival : str
    table : (I, M) array in [-1, 1]
        Share of pairs that the curve gets right minus that of the rule, means over draws and pairs of an item.
    right : float
        Share of pairs that the curve gets right.
    pairs, unused : int
        Pairs of runs; those of which neither run, or a run that was not made, has a score, or whose scores are equal.
    """

    rival: str
    table: Array
    right: float
    pairs: int
    unused: int


def advantages(table: Table, rules: Rules) -> list[Advantage]:
    """Compare the curve with each of `RIVALS` on pairs of an offline and a humanline run of one start and one draw.

    Curves are of the offline runs of other draws of the same start. A distance beyond their range counts as their
    range's end. Equal predictions, no distance and rules without an opinion are right half of the time. A collapsed run
    is worse than one that has not collapsed.

    Items share no cell, so that what a cell has of its own in all starts does not tie them: pairs of equal settings
    make an item for every objective, scale and learning rate (one offline cell and the humanline cells of each k),
    those of different learning rates one for every objective and scale. The third rule has no opinion on equal
    settings, where learning rates and steps are the same: with pairs across learning rates it has one.
    """
    known = _predictions(table, rules)
    worth = dict(zip(table.cells, table.values(_worth), strict=True))
    return [_advantage(rival, table, known, worth) for rival in RIVALS]


def _worth(run: Outcome) -> float:
    """Return the score of a run; minus infinity of a collapsed one."""
    return run.score if is_finite(run) else -math.inf


def _predictions(table: Table, rules: Rules) -> dict[Cell, Array]:
    """Return (M, R) arrays of what the curves of other draws say of the distance of each cell's runs."""
    found: dict[Cell, Array] = {}
    for objective in OBJECTIVES:
        cells = [cell for cell in table.cells if cell.objective == objective]
        offline = [cell for cell in cells if cell.variant == "offline"]
        parts = []
        for left in table.draws:
            others, _ = usable(table.of(cells=offline, draws=[d for d in table.draws if d != left]), rules)
            if not others.cells:
                break
            log_kl = np.nanmean(others.values(log_distance(rules)), axis=2)
            scores = np.nanmean(moved(others, rules, lambda run: run.score), axis=2)
            degree = choose_degree(log_kl, scores, rules.degrees, rules.spare_cells)
            if degree is None:
                break
            curves = fit_curves(log_kl, scores, degree)
            here = table.of(cells=cells, draws=[left]).values(_distance(rules))
            parts.append(curves.at(curves.within(here)))
        if len(parts) == len(table.draws):
            values = np.concatenate(parts, axis=2)
            found.update(zip(cells, values, strict=True))
    return found


def _distance(rules: Rules) -> Callable[[Outcome], float]:
    """Return a function of the log distance of a run, the least one where it has not moved; nan where it collapsed."""
    return lambda run: math.log(max(run.kl_to_start, rules.least_kl)) if is_finite(run) else math.nan


def _items(rival: str, cells: list[Cell]) -> Iterator[list[tuple[Cell, Cell]]]:
    """Yield the pairs (offline cell, humanline cell) of each item."""
    across = rival == RIVALS[2]
    groups: dict[tuple[object, ...], list[tuple[Cell, Cell]]] = {}
    for first in (cell for cell in cells if cell.variant == "offline"):
        for second in (cell for cell in cells if cell.variant == "humanline"):
            scale = (first.objective, first.beta, first.clip_eps)
            if scale != (second.objective, second.beta, second.clip_eps) or (first.lr != second.lr) != across:
                continue
            groups.setdefault(scale if across else (*scale, first.lr), []).append((first, second))
    yield from groups.values()


def _advantage(rival: str, table: Table, known: dict[Cell, Array], worth: dict[Cell, Array]) -> Advantage:
    rows, rights, pairs, unused = [], [], 0, 0
    for item in _items(rival, [cell for cell in table.cells if cell in known]):
        ours = np.array([_right(known[b] - known[a], worth[b], worth[a]) for a, b in item])
        theirs = np.array([_right(_opinion(rival, a, b), worth[b], worth[a]) for a, b in item])
        used = ~np.isnan(ours)
        pairs, unused = pairs + int(used.sum()), unused + int((~used).sum())
        if used.any(axis=(0, 2)).all():
            rows.append(np.nanmean(ours - theirs, axis=(0, 2)))
            rights.append(np.nanmean(ours))
    table_ = np.array(rows).reshape(len(rows), len(table.starts))
    return Advantage(rival, table_, float(np.mean(rights)) if rights else math.nan, pairs, unused)


def _opinion(rival: str, first: Cell, second: Cell) -> float:
    """Return > 0 where a rule takes the humanline run for the better one."""
    if rival == RIVALS[2]:
        return first.lr - second.lr  # steps are the same: one pass over pairs of one number
    return 1.0 if rival == "always humanline" else -1.0


def _right(opinion: Array | float, second: Array, first: Array) -> Array:
    """Return 1 where the sign of an opinion is that of second - first, 1/2 without opinion, 0 elsewhere; nan unused."""
    with np.errstate(invalid="ignore"):  # of minus infinity from minus infinity: both collapsed
        truth = np.sign(second - first)
    opinion = np.nan_to_num(np.sign(opinion) * np.ones_like(truth), nan=0.0)
    right = np.where(opinion == 0, 0.5, np.where(opinion == truth, 1.0, 0.0))
    return np.where(np.isnan(truth) | (truth == 0), np.nan, right)
