"""Further draws for the cells that a grid chose: runs that did not choose say what tuned cells are worth.

Declared in studies/frontier/chosen.yaml before the first of them. For each objective, variant and start model the cell
is taken that the other start models chose on the draws of the grid (`best.tuned_cells`), and run on draws beyond these.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from humanline.reproduce.best import best_row, tried_cells, tuned_cells, whole_cells
from humanline.reproduce.cells import OBJECTIVES, Cell, Objective, Variant, core
from humanline.reproduce.edges import edges
from humanline.reproduce.frontier import is_finite
from humanline.reproduce.outcome import Outcome
from humanline.reproduce.paper import MARGIN_SHARE, PaperRow, blank_row, gain, verdicts, with_difference
from humanline.reproduce.paper_claims import CLAIMS, PaperClaim
from humanline.reproduce.plan import grid_jobs
from humanline.reproduce.run import Job
from humanline.reproduce.tables import as_written
from humanline.reproduce.testbeds.registry import OTHERS, testbed

Kind = tuple[Objective, Variant]
#: What is compared: claims of the paper about tuned cells, with the variants of both sides.
COMPARED: dict[str, tuple[Variant, Variant]] = {
    "offline + humanline, its own k, is better than offline": ("humanline", "offline"),
    "offline + humanline is on par with online": ("humanline", "online"),
    "online is better than offline": ("online", "offline"),
    "online + humanline is slightly better than online": ("online humanline", "online"),
}
#: Draws below this: a run's seed is 100 times its start model's and the draw.
MOST_DRAWS = 100


@dataclass(frozen=True, slots=True)
class ChosenRules:
    """Numbers that were declared before the first run (studies/frontier/chosen.yaml).

    Parameters
    ----------
    starts : tuple of int
        Start models.
    choosing : tuple of int
        Draws on which cells are chosen.
    draws : tuple of int
        Draws on which they are compared.
    variants : tuple of str
        Of which one cell each is chosen, for every objective and start model.
    grid_cells : int
        How many cells there are to choose from.
    grid_digest : str
        Of their names (`rules.grid_digest`).
    """

    starts: tuple[int, ...] = (0, 1, 2)
    choosing: tuple[int, ...] = (0, 1, 2)
    draws: tuple[int, ...] = (3, 4, 5, 6, 7, 8, 9)
    variants: tuple[Variant, ...] = ("offline", "humanline", "online", "online humanline")
    grid_cells: int = 152
    grid_digest: str = "da4b09353e09a47fff337e52da5bcbb5f53c31d00da51242a0f7d2f6303727b3"


@dataclass(frozen=True, slots=True)
class Choice:
    """The cells that the grid of a testbed chose.

    Attributes
    ----------
    testbed : str
    starts, choosing, draws : tuples of int
        Start models; draws that chose; draws that are compared.
    cells : mapping of (objective, variant) to mapping of int to Cell
        For each start model the cell that the others chose; none where every cell had a collapsed run.
    sizes : mapping of (objective, variant) to int
        How many cells there were to choose from.
    edges : mapping of (objective, variant) to str
        At which edges of the grid the chosen cells lie (`edges.edges`).
    before : tuple of Outcome
        The chosen cells' runs on the choosing draws.
    """

    testbed: str
    starts: tuple[int, ...]
    choosing: tuple[int, ...]
    draws: tuple[int, ...]
    cells: Mapping[Kind, Mapping[int, Cell]]
    sizes: Mapping[Kind, int]
    edges: Mapping[Kind, str]
    before: tuple[Outcome, ...]


def choosing_jobs(name: str, starts: int, choosing: int, draws: int) -> list[Job]:
    """Return the runs of the grid that a choice needs.

    Parameters
    ----------
    name : str
        Of a testbed.
    starts : int >= 2
        Start models: the cell of each is chosen by the others.
    choosing : int >= 1
        Draws on which cells are chosen, from 0.
    draws : int > `choosing`
        All draws, those that choose among them.

    Raises
    ------
    ValueError
        If there is no such testbed, it has no grid, or a number is out of its range.
    """
    if name in OTHERS:
        raise ValueError(f"--chosen is of the declared grid, and {name} has a few cells of it alone: leave it out")
    if starts < 2:
        raise ValueError(f"--starts must be >= 2 with --chosen, got {starts}: the cell of one is chosen by the others")
    if choosing < 1:
        raise ValueError(f"--draws must be >= 1, got {choosing}: with --chosen it is how many draws choose the cells")
    if not choosing < draws <= MOST_DRAWS:
        raise ValueError(
            f"--chosen must be in {choosing + 1} .. {MOST_DRAWS}, got {draws}: it counts all draws from each start "
            f"model, and the first {choosing} (--draws) choose the cells"
        )
    return grid_jobs([name], core(), starts, choosing)


def choose(jobs: Sequence[Job], outcomes: Iterable[Outcome], draws: int) -> Choice:
    """Choose a cell for each objective, variant and start model by the runs of the other start models.

    Parameters
    ----------
    jobs : sequence of Job
        Of one testbed (`choosing_jobs`).
    outcomes : iterable of Outcome
        Of these jobs; others are not looked at, so that fresh draws change no choice.
    draws : int
        As in `choosing_jobs`.

    Raises
    ------
    ValueError
        If a run is missing, or none of the cells is chosen.

    Notes
    -----
    Scores are taken with the digits that a committed table has, so that the same runs choose the same cells everywhere.
    """
    name = jobs[0].testbed.name
    wanted = {(name, job.cell, job.start, job.draw) for job in jobs}
    found = as_written([one for one in outcomes if (one.testbed, one.cell, one.start, one.draw) in wanted])
    starts, choosing = (tuple(sorted({getattr(job, what) for job in jobs})) for what in ("start", "draw"))
    _refuse_missing(jobs, found)
    cells = list(dict.fromkeys(job.cell for job in jobs))
    whole = whole_cells(tried_cells(found), cells)
    chosen: dict[Kind, dict[int, Cell]] = {}
    at: dict[Kind, str] = {}
    for kind in product(OBJECTIVES, ChosenRules().variants):
        side = [cell for cell in cells if kind_of(cell) == kind]
        if mine := {cell: whole[cell] for cell in side if cell in whole}:
            chosen[kind] = tuned_cells(mine)
            at[kind] = edges(chosen[kind], side, cells)
    if not chosen:
        raise ValueError(f"{name}: every cell has a collapsed run, so that there is none to choose")
    theirs = {(cell, start) for by_start in chosen.values() for start, cell in by_start.items()}
    return Choice(
        testbed=name,
        starts=starts,
        choosing=choosing,
        draws=tuple(range(len(choosing), draws)),
        cells=chosen,
        sizes={kind: sum(kind_of(cell) == kind for cell in whole) for kind in chosen},
        edges=at,
        before=tuple(one for one in found if (one.cell, one.start) in theirs),
    )


def _refuse_missing(jobs: Sequence[Job], found: Sequence[Outcome]) -> None:
    """Raise ValueError where a run of the grid is missing, with what is there and how to come by the rest."""
    there = {(one.cell, one.start, one.draw) for one in found}
    missing = [job for job in jobs if (job.cell, job.start, job.draw) not in there]
    if not missing:
        return
    name = jobs[0].testbed.name
    starts, draws = (len({getattr(job, what) for job in jobs}) for what in ("start", "draw"))
    some = {(one.start, one.draw) for one in found}
    never = {job.cell for job in missing} - {one.cell for one in found}
    lacking = f"; {len(never)} cells never ran, {next(iter(sorted(one.name for one in never)))} first" if never else ""
    if len(found) and (absent := sorted({job.start for job in jobs} - {start for start, _ in some})):
        lacking += f"; start models {', '.join(map(str, absent))} have none"
    raise ValueError(
        f"{name}: --chosen needs every run of the grid that chooses ({len(jobs)}: {starts} start models, {draws} "
        f"draws), and {len(missing)} are missing{lacking}. Give them with --known RUNS.csv, run `humanline reproduce "
        f"{name} --starts {starts} --draws {draws}` into the same --out first, or say with --starts and --draws how "
        "many there are"
    )


def kind_of(cell: Cell) -> Kind:
    """Return objective and variant of a cell."""
    return cell.objective, cell.variant


def chosen_jobs(choice: Choice) -> list[Job]:
    """Return the runs of chosen cells on fresh draws, so ordered that what is stopped has whole draws."""
    bed = testbed(choice.testbed)
    return [
        Job(bed, by_start[start], start, draw)
        for draw in choice.draws
        for start in choice.starts
        for by_start in choice.cells.values()
    ]


def chosen_rows(choice: Choice, outcomes: Iterable[Outcome]) -> list[dict[str, Any]]:
    """Return what the fresh runs say of the claims about tuned cells, in rows like those of `paper.paper_rows`.

    A start model's value is the mean over its fresh draws; differences are paired by start model. With a run that is
    not finite on either side a row is undecided, and its means are of the others.

    Returns
    -------
    list of dict
        The fields of `paper.PaperRow`, and ``draws`` (fresh ones), ``collapsed`` (runs of both sides),
        ``sd_of_draws`` (standard deviation of the paired differences between draws of a start model, pooled) and
        ``choosing_difference`` (the same difference on the draws that chose, which decides nothing).

    Raises
    ------
    ValueError
        If a run is missing.
    """
    fresh = _arranged(choice, outcomes, choice.draws)
    before = _arranged(choice, choice.before, choice.choosing)
    rows = []
    for claim in (one for one in CLAIMS if one.says in COMPARED):
        sides = {objective: [(objective, variant) for variant in COMPARED[claim.says]] for objective in claim.numbers}
        found = [_compared(claim, blank_row(claim, o, choice.testbed), kinds, fresh) for o, kinds in sides.items()]
        for row, (first, second) in zip(verdicts(claim, found), sides.values(), strict=True):
            rows.append(_with_draws(row, first, second, choice, fresh, before))
    return rows


_Runs = Mapping[Kind, Mapping[int, Sequence[Outcome]]]


def _arranged(choice: Choice, outcomes: Iterable[Outcome], draws: Sequence[int]) -> _Runs:
    """Return the runs of chosen cells, by kind and start model, in the order of draws."""
    known = {(one.cell, one.start, one.draw): one for one in outcomes if one.testbed == choice.testbed}
    try:
        return {
            kind: {start: [known[cell, start, draw] for draw in draws] for start, cell in by_start.items()}
            for kind, by_start in choice.cells.items()
        }
    except KeyError as error:
        cell, start, draw = error.args[0]
        raise ValueError(f"outcomes: {cell.name}, start {start}, draw {draw} is missing: nothing is compared") from None


def _finite(runs: Mapping[int, Sequence[Outcome]]) -> dict[int, list[Outcome]]:
    """Return the finite runs, without start models that have none."""
    kept = {start: [one for one in some if is_finite(one)] for start, some in runs.items()}
    return {start: some for start, some in kept.items() if some}


def _compared(claim: PaperClaim, row: PaperRow, kinds: Sequence[Kind], fresh: _Runs) -> PaperRow:
    """Return a row of a claim with everything but its verdict."""
    if lacking := [variant for objective, variant in kinds if (objective, variant) not in fresh]:
        return replace(row, why=f"no cell of {' and none of '.join(lacking)} could be chosen")
    first, second = (_finite(fresh[kind]) for kind in kinds)
    if len({*first} & {*second}) < 2:
        return replace(row, why="fewer than two start models have a run on both sides that is finite")
    online = _finite(fresh.get((kinds[0][0], "online"), {}))
    margin = MARGIN_SHARE * gain(online) if claim.kind == "alike" else math.nan
    return with_difference(claim, row, first, second, margin)


def _with_draws(
    row: PaperRow, first: Kind, second: Kind, choice: Choice, fresh: _Runs, before: _Runs
) -> dict[str, Any]:
    """Return a row with what is said of draws; undecided where a run has collapsed."""
    sides = [run for kind in (first, second) for runs in fresh.get(kind, {}).values() for run in runs]
    told: dict[str, Any] = {"draws": len(choice.draws), "collapsed": sum(not is_finite(run) for run in sides)}
    told |= dict.fromkeys(("sd_of_draws", "choosing_difference"), math.nan)
    if not row.starts:
        return asdict(row) | told
    row = replace(row, first_edges=choice.edges[first], second_edges=choice.edges[second])
    if told["collapsed"]:
        row = replace(row, verdict="undecided here", why=f"{told['collapsed']} runs of both sides collapsed")
    told["sd_of_draws"] = _pooled(fresh[first], fresh[second])
    pairs = [zip(before[first][start], before[second][start], strict=True) for start in choice.starts]
    told["choosing_difference"] = float(np.mean([one.score - other.score for some in pairs for one, other in some]))
    return asdict(row) | told


def _pooled(first: Mapping[int, Sequence[Outcome]], second: Mapping[int, Sequence[Outcome]]) -> float:
    """Return the standard deviation of paired differences within start models; nan without two draws of one."""
    squares, spare = 0.0, 0
    for start in first:
        pairs = zip(first[start], second[start], strict=True)
        differences = np.array([a.score - b.score for a, b in pairs if is_finite(a) and is_finite(b)])
        if len(differences) > 1:
            squares += float(np.square(differences - differences.mean()).sum())
            spare += len(differences) - 1
    return math.sqrt(squares / spare) if spare else math.nan


def kind_rows(choice: Choice, outcomes: Iterable[Outcome]) -> list[dict[str, Any]]:
    """Return a row for each objective and variant: the chosen cells, and their score and distance on fresh draws.

    Returns
    -------
    list of dict
        As `best.best_rows` has them, ``series`` being the variant, and ``runs``, ``collapsed`` and ``choosing_score``
        (of the same cells and start models on the draws that chose).
    """
    fresh = _arranged(choice, outcomes, choice.draws)
    rows = []
    for (objective, variant), by_start in choice.cells.items():
        runs = fresh[objective, variant]
        finite = _finite(runs)
        row: dict[str, Any] = {"objective": objective, "series": variant, "cells": choice.sizes[objective, variant]}
        row |= best_row({start: by_start[start] for start in finite}, finite)
        count = sum(map(len, runs.values()))
        row |= {"runs": count, "collapsed": count - sum(map(len, finite.values()))}
        mine = [one.score for one in choice.before if by_start.get(one.start) == one.cell]
        rows.append(row | {"choosing_score": float(np.mean(mine)), "edges": choice.edges[objective, variant]})
    return rows


def as_declared(choice: Choice, rules: ChosenRules) -> str:
    """Return what of a choice is not as it was declared, in words; empty where all of it is."""
    names = {"starts": "start models", "choosing": "choosing draws", "draws": "fresh draws"}
    return "; ".join(
        f"{words} {listed(getattr(choice, name))}, declared {listed(getattr(rules, name))}"
        for name, words in names.items()
        if getattr(choice, name) != getattr(rules, name)
    )


def listed(numbers: Sequence[int]) -> str:
    """Return numbers that follow each other, in words."""
    return f"{numbers[0]} .. {numbers[-1]}" if len(numbers) > 1 else str(numbers[0])
