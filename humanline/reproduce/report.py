"""What a suite leaves: all runs, the cells, the verdicts, the curves and a figure, each number in a file."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from humanline.plots import write_figure
from humanline.plots.frontier import Picture
from humanline.reproduce.best import best_rows
from humanline.reproduce.cells import OBJECTIVES, Cell, core
from humanline.reproduce.edges import SAYS as EDGES
from humanline.reproduce.frontier import arrange, is_finite
from humanline.reproduce.hypotheses import CLAIMS, Finding, compare, judge
from humanline.reproduce.outcome import Outcome
from humanline.reproduce.rules import Rules
from humanline.reproduce.shown import finding_rows, frontier_rows, markdown, shown_rows
from humanline.reproduce.tables import as_written, rows_csv, write_outcomes
from humanline.system.files import make_folder, write_text

#: What is averaged over the runs of a cell.
MEANS = ("kl_to_start", "score", "judged", "greedy", "matched", "truncated", "length", "entropy", "clipped")


def write_report(folder: Path, outcomes: Sequence[Outcome], rules: Rules) -> list[Path]:
    """Write what the runs of one testbed say; return the files.

    Written are runs.csv (every run), cells.csv (means over runs), best.csv (tuned cells), findings.csv (the
    hypotheses), curves.csv, shown.csv (what decides no verdict), frontier.md (all of it to read) and the figure
    frontier.csv, .svg and .png.

    Parameters
    ----------
    folder : Path
        Made if it is not there; files of these names in it are replaced.
    outcomes : sequence of Outcome
        Of one testbed; the hypotheses are undecided until all runs of the grid are among them.
    rules : Rules

    Raises
    ------
    ValueError
        As `judge` does.
    OSError
        If something cannot be written.
    """
    outcomes = as_written(outcomes)
    make_folder(folder)
    findings, cells = judge(outcomes, rules), cell_rows(outcomes)
    curves, shown = frontier_rows(outcomes, rules), shown_rows(outcomes, rules)
    write_outcomes(folder / "runs.csv", outcomes)
    best = best_rows(outcomes, {cell: series_of(cell) for cell in core()})
    tables = {"cells": cells, "best": best, "findings": finding_rows(findings), "curves": curves, "shown": shown}
    for name, rows in tables.items():
        write_text(folder / f"{name}.csv", rows_csv(rows))
    write_text(folder / "frontier.md", words(outcomes, findings, best, curves, shown, rules))
    figure = write_figure(folder, "frontier", picture(outcomes, rules))
    return [folder / "runs.csv", *(folder / f"{name}.csv" for name in tables), folder / "frontier.md", *figure]


def series_of(cell: Cell) -> str:
    """Return the name under which a cell is drawn: its variant, how often it samples, and k where it syncs."""
    rounds = "" if cell.round_steps is None else f", sampled every {cell.round_steps}"
    k = "" if cell.every is None else f", k = {cell.every}"
    passes = "" if cell.passes == 1 or rounds else f", {cell.passes} passes"
    data = "" if cell.data == "near" else f", {cell.data} data"
    return f"{cell.variant}{rounds}{k}{passes}{data}"


def cell_rows(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """Return a row for each cell: means over its finite runs, and how many there are; collapsed ones are counted."""
    by_cell: dict[Cell, list[Outcome]] = {}
    for outcome in outcomes:
        by_cell.setdefault(outcome.cell, []).append(outcome)
    rows = []
    for cell, runs in by_cell.items():
        finite = [run for run in runs if is_finite(run)]
        row: dict[str, Any] = {
            "cell": cell.name,
            **{name: value for name, value in asdict(cell).items() if name != "round_steps" or value is not None},
            "runs": len(runs),
            "collapsed": len(runs) - len(finite),
        }
        for name in MEANS:
            row[name] = float(np.mean([getattr(run, name) for run in finite])) if finite else math.nan
        row["sd_of_score"] = float(np.std([run.score for run in finite], ddof=1)) if len(finite) > 1 else math.nan
        rows.append(row)
    return rows


def start_score(outcomes: Sequence[Outcome]) -> float:
    """Return the mean score of the start models."""
    return float(np.mean(list({outcome.start: outcome.start_score for outcome in outcomes}.values())))


def picture(outcomes: Sequence[Outcome], rules: Rules) -> Picture:
    """Return what the figure of one testbed shows: cells of the grid, each the mean over its runs."""
    cells: dict[str, dict[str, list[tuple[float, float]]]] = {}
    by_name = {cell.name: cell for cell in core()}
    for row in cell_rows(outcomes):
        cell = by_name.get(row["cell"])
        place = (row["kl_to_start"], row["score"])
        if cell is not None and all(map(math.isfinite, place)) and place[0] > 0:
            cells.setdefault(cell.objective.upper(), {}).setdefault(series_of(cell), []).append(place)
    table = arrange(outcomes, core(), rules)
    found = {name: compare(table, name, "humanline", rules).front.curves for name in OBJECTIVES}
    curves = {name.upper(): [] if one is None else one.mean_points(51) for name, one in found.items()}
    return Picture(start_score(outcomes), curves, cells)


def words(
    outcomes: Sequence[Outcome],
    findings: Sequence[Finding],
    best: Sequence[Mapping[str, Any]],
    curves: Sequence[Mapping[str, Any]],
    shown: Sequence[Mapping[str, Any]],
    rules: Rules,
) -> str:
    """Return verdicts, curves and cells as Markdown."""
    testbed = findings[0].testbed
    seen = rules.seen(testbed)
    starts, draws = ({getattr(one, name) for one in outcomes} for name in ("start", "draw"))
    listed = ("cell", "runs", "collapsed", *MEANS, "sd_of_score")
    cells = [{name: row[name] for name in listed} for row in cell_rows(outcomes)]
    verdicts = [
        {
            "hypothesis": f"{one.hypothesis}: {CLAIMS[one.hypothesis]}",
            "verdict": f"**{one.verdict}**",
            "estimate": one.estimate,
            "95 % interval": ""
            if math.isnan(one.low) and math.isnan(one.high)
            else f"{one.low:+.4f} .. {one.high:+.4f}",
            "margin": one.margin,
            "p, corrected": one.adjusted,
            "cells": len(one.cells) or "",
            "said beside": one.reason,
        }
        for one in findings
    ]
    return "\n".join(
        [
            f"# Score and distance: {testbed}",
            "",
            f"{len(outcomes)} runs of {len(cells)} cells, {len(starts)} start models, {len(draws)} draws of "
            f"the pairs from each; this testbed was {seen}. Missing runs of the grid: {findings[0].missing}. The start "
            f"models' score is {start_score(outcomes):.3f}.",
            "",
            "## Verdicts",
            "",
            markdown(verdicts),
            "## The best cell of each variant, chosen on the other start models",
            "",
            EDGES,
            "",
            markdown([dict(row) for row in best]),
            "## Curves of the offline cells, from each start model",
            "",
            markdown([dict(row) for row in curves]),
            "## Mean score above the offline curve, shown and not tested",
            "",
            markdown([{name: value for name, value in row.items() if name != "testbed"} for row in shown]),
            "## Cells, means over runs",
            "",
            markdown(cells),
        ]
    )
