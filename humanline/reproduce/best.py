"""The best cell of each variant, chosen on some start models and reported on the others."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from humanline.reproduce.cells import Cell
from humanline.reproduce.edges import edges
from humanline.reproduce.frontier import is_finite
from humanline.reproduce.outcome import Outcome
from humanline.stats import mean_estimate

Runs = Mapping[int, Sequence[Outcome]]  # of a cell, by start model


def best_rows(outcomes: Sequence[Outcome], series: Mapping[Cell, str]) -> list[dict[str, Any]]:
    """Return a row for each objective and series: score and distance of its tuned runs, honestly.

    For each start model the cell is taken whose mean score over runs from the *other* start models is highest, and its
    runs from this one are reported. A cell with a collapsed run, or without runs from every start model, is not chosen.

    Parameters
    ----------
    outcomes : sequence of Outcome
        Of one testbed.
    series : mapping from Cell to str
        The series of each cell that may be chosen, in the order in which equals are preferred.

    Returns
    -------
    list of dict
        ``objective``, ``series``, ``cells`` (to choose from), ``chosen`` (names, with how often each), ``starts``,
        ``score`` (mean over starts) with ``low`` and ``high`` (95 % interval over starts), ``kl_to_start`` (mean) and
        ``edges`` (`edges.edges`).
    """
    tried = tried_cells(outcomes)
    whole = whole_cells(tried, series)
    groups: dict[tuple[str, str], list[Cell]] = {}
    for cell in series:
        if cell in whole:
            groups.setdefault((cell.objective, series[cell]), []).append(cell)
    rows = []
    for (objective, name), cells in groups.items():
        chosen = tuned_cells({cell: whole[cell] for cell in cells})
        told = best_row(chosen, {start: whole[cell][start] for start, cell in chosen.items()})
        side = [cell for cell in series if (cell.objective, series[cell]) == (objective, name) and cell in tried]
        told |= {"edges": edges(chosen, side, tried)}
        rows.append({"objective": objective, "series": name, "cells": len(cells)} | told)
    return rows


def tried_cells(outcomes: Iterable[Outcome]) -> dict[Cell, Runs]:
    """Return the runs of every cell that has some from every start model, collapsed ones too."""
    rows = list(outcomes)
    starts = {outcome.start for outcome in rows}
    runs: dict[Cell, dict[int, list[Outcome]]] = {}
    for outcome in rows:
        runs.setdefault(outcome.cell, {}).setdefault(outcome.start, []).append(outcome)
    return {cell: by_start for cell, by_start in runs.items() if set(by_start) == starts}


def whole_cells(tried: Mapping[Cell, Runs], cells: Iterable[Cell]) -> dict[Cell, Runs]:
    """Return the runs of those of some cells that were tried (`tried_cells`), none of them collapsed."""
    wanted = set(cells)
    return {
        cell: by_start
        for cell, by_start in tried.items()
        if cell in wanted and all(is_finite(run) for some in by_start.values() for run in some)
    }


def tuned_cells(runs: Mapping[Cell, Runs]) -> dict[int, Cell]:
    """Return, for each start model, the cell with the highest mean score over runs from the other start models.

    Parameters
    ----------
    runs : mapping from Cell to Runs
        Of one variant (`whole_cells`), in the order in which equals are preferred.

    Returns
    -------
    dict of int to Cell
        Empty without cells, and where there is a single start model.
    """
    starts = sorted({start for by_start in runs.values() for start in by_start})
    found = {}
    for start in starts if len(starts) > 1 else ():
        others = [one for one in starts if one != start]
        found[start] = max(runs, key=lambda cell: float(np.mean([_mean(runs[cell][one], "score") for one in others])))
    return found


def _mean(runs: Sequence[Outcome], name: str) -> float:
    return float(np.mean([getattr(run, name) for run in runs]))


def best_row(chosen: Mapping[int, Cell], runs: Runs) -> dict[str, Any]:
    """Return what tuned runs came to: ``chosen`` to ``kl_to_start`` of `best_rows`.

    Parameters
    ----------
    chosen : mapping of int to Cell
        Of each start model its cell (`tuned_cells`).
    runs : mapping of int to sequence of Outcome
        That cell's runs from there, at least one.
    """
    scores, distances = ([_mean(runs[start], read) for start in chosen] for read in ("score", "kl_to_start"))
    if not scores:
        return {"chosen": "", "starts": 0} | dict.fromkeys(("score", "low", "high", "kl_to_start"), math.nan)
    names = [cell.name for cell in chosen.values()]
    counts = {name: names.count(name) for name in dict.fromkeys(names)}
    interval = mean_estimate(scores).interval(0.95)
    return {
        "chosen": "; ".join(f"{name} ({count})" if count > 1 else name for name, count in counts.items()),
        "starts": len(scores),
        "score": interval.mean,
        "low": interval.mean - interval.half_width,
        "high": interval.mean + interval.half_width,
        "kl_to_start": float(np.mean(distances)),
    }
