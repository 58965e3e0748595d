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
from humanline.reproduce.cells import OBJECTIVES, Cell, Objective, core
from humanline.reproduce.frontier import Table, arrange, is_finite
from humanline.reproduce.hypotheses import CLAIMS, Comparison, Finding, compare, judge
from humanline.reproduce.outcome import Outcome
from humanline.reproduce.rules import Rules
from humanline.reproduce.tables import rows_csv, write_outcomes
from humanline.system.files import make_folder, write_text


def write_report(folder: Path, outcomes: Sequence[Outcome], rules: Rules) -> list[Path]:
    """Write what the runs of one testbed say; return the files.

    Written are runs.csv (every run), cells.csv (means over runs), findings.csv (the hypotheses), frontier.md (both in
    words and tables) and the figure frontier.csv, .svg and .png.

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
    make_folder(folder)
    findings = judge(outcomes, rules)
    table = arrange(outcomes, dict.fromkeys(outcome.cell for outcome in outcomes))
    fronts = {objective: compare(arrange(outcomes, core()), objective, "humanline", rules) for objective in OBJECTIVES}
    cells = cell_rows(table)
    write_outcomes(folder / "runs.csv", outcomes)
    write_text(folder / "cells.csv", rows_csv(cells))
    write_text(folder / "findings.csv", rows_csv([finding_row(one) for one in findings]))
    write_text(folder / "frontier.md", words(table, findings, fronts, rules))
    figure = write_figure(folder, "frontier", picture(table, fronts))
    return [*(folder / name for name in ("runs.csv", "cells.csv", "findings.csv", "frontier.md")), *figure]


def series_of(cell: Cell) -> str:
    """Return the name under which a cell is drawn: its variant, and k where the reference is synced."""
    k = "" if cell.every is None else f", k = {cell.every}"
    passes = "" if cell.passes == 1 else f", {cell.passes} passes"
    data = "" if cell.data == "near" else f", {cell.data} data"
    return f"{cell.variant}{k}{passes}{data}"


def cell_rows(table: Table) -> list[dict[str, Any]]:
    """Return a row for each cell: means over its finite runs, and how many there are; collapsed ones are counted."""
    rows: list[dict[str, Any]] = []
    for cell in table.cells:
        runs = [run for (of, _, _), run in table.runs.items() if of == cell]
        finite = [run for run in runs if is_finite(run)]
        means = {
            name: float(np.mean([getattr(run, name) for run in finite])) if finite else math.nan
            for name in (
                "kl_to_start",
                "score",
                "judged",
                "greedy",
                "matched",
                "truncated",
                "length",
                "entropy",
                "clipped",
            )
        }
        rows.append(
            {**asdict(cell), "runs": len(runs), "collapsed": len(runs) - len(finite)}
            | means
            | {"sd_of_score": float(np.std([run.score for run in finite], ddof=1)) if len(finite) > 1 else math.nan}
        )
    return rows


def finding_row(finding: Finding) -> dict[str, Any]:
    """Return a finding as a row of a table."""
    row = asdict(finding)
    row["cells"] = " ".join(finding.cells)
    row["left_out"] = "; ".join(f"{name}: {why}" for name, why in finding.left_out.items())
    return row


def picture(table: Table, fronts: Mapping[Objective, Comparison]) -> Picture:
    """Return what the figure of one testbed shows: cells of the grid, each the mean over its runs."""
    cells: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for row, cell in zip(cell_rows(table), table.cells, strict=True):
        place = (row["kl_to_start"], row["score"])
        if all(map(math.isfinite, place)) and place[0] > 0:
            cells.setdefault(cell.objective.upper(), {}).setdefault(series_of(cell), []).append(place)
    found = {name.upper(): one.front.curves for name, one in fronts.items()}
    curves = {name: [] if one is None else one.mean_points(101) for name, one in found.items()}
    starts = {(key[1]): run.start_score for key, run in table.runs.items()}
    return Picture(float(np.mean(list(starts.values()))), curves, cells)


def words(table: Table, findings: Sequence[Finding], fronts: Mapping[Objective, Comparison], rules: Rules) -> str:
    """Return the verdicts, the curves and the cells as Markdown."""
    seen = "looked at while the procedure was made" if findings[0].testbed in rules.look else "held out"
    return "\n".join(
        [
            f"# Score and distance: {findings[0].testbed}",
            "",
            f"{len(table.runs)} runs of {len(table.cells)} cells, from {len(table.starts)} start models and "
            f"{len(table.draws)} draws of the pairs from each; this testbed was {seen}.",
            "",
            *_table("hypothesis", "verdict", "estimate", "95 % interval", "margin", "p, corrected", "why"),
            *map(_finding_line, findings),
            "",
            *_table("curve of offline", "cells", "degree", "peak - start", "at KL", "scatter of cells"),
            *(_curve_line(name, comparison) for name, comparison in fronts.items()),
            "",
            *_table("cell", "runs", "collapsed", "KL", "score", "greedy", "at the start's entropy", "length"),
            *(_cell_line(cell, row) for cell, row in zip(table.cells, cell_rows(table), strict=True)),
            "",
        ]
    )


def _table(*names: str) -> list[str]:
    return [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]


def _line(*values: object) -> str:
    return f"| {' | '.join(map(str, values))} |"


def _finding_line(one: Finding) -> str:
    interval = f"{one.low:+.4f} .. {one.high:+.4f}"
    margin = "" if math.isnan(one.margin) else f"{one.margin:.4f}"
    claim = f"{one.hypothesis}: {CLAIMS[one.hypothesis]}"
    return _line(
        claim, f"**{one.verdict}**", f"{one.estimate:+.4f}", interval, margin, f"{one.adjusted:.2g}", one.reason
    )


def _curve_line(name: Objective, comparison: Comparison) -> str:
    front = comparison.front
    if front.curves is None:
        return _line(name, len(front.offline.cells), "none", "", "", "")
    at = float(np.exp(front.curves.peaks()[1].mean()))
    scatter = float(np.sqrt(np.square(front.curves.residuals.mean(1)).mean()))
    gain = f"{front.gain.mean():+.3f}"
    return _line(name, len(front.offline.cells), front.curves.degree, gain, f"{at:.2f}", f"{scatter:.4f}")


def _cell_line(cell: Cell, row: Mapping[str, Any]) -> str:
    numbers = [f"{row[name]:.3f}" for name in ("kl_to_start", "score", "greedy", "matched", "length")]
    return _line(cell.name, row["runs"], row["collapsed"], *numbers)
