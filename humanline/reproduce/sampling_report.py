"""What the runs of Figure 7 leave: all runs, the cells, the verdicts, the differences, and all of it to read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from humanline.reproduce.best import best_rows
from humanline.reproduce.cells import sampling
from humanline.reproduce.edges import SAYS as EDGES
from humanline.reproduce.outcome import Outcome
from humanline.reproduce.report import MEANS, cell_rows, series_of
from humanline.reproduce.rules import Rules
from humanline.reproduce.sampling import (
    CLAIMS,
    SamplingFinding,
    SamplingRules,
    difference_rows,
    judge_sampling,
    judged_runs,
    overall,
)
from humanline.reproduce.shown import markdown
from humanline.reproduce.tables import as_written, rows_csv, write_outcomes
from humanline.system.files import make_folder, write_text

_VERDICTS = {"holds": "**holds**", "fails": "**fails**", "undecided": "is **undecided**"}


def write_sampling_report(folder: Path, outcomes: Sequence[Outcome], rules: SamplingRules) -> list[Path]:
    """Write what the runs of one testbed say of Figure 7; return the files.

    Written are runs.csv (every run), cells.csv (means over runs), best.csv (each variant at its own learning rate),
    findings.csv (the verdicts), differences.csv (what decides none) and sampling.md (all of it to read).

    Parameters
    ----------
    folder : Path
        Made if it is not there; files of these names in it are replaced.
    outcomes : sequence of Outcome
        Of one testbed; the claims are undecided until all runs are among them.
    rules : SamplingRules

    Raises
    ------
    ValueError
        As `judged_runs`, before anything is written.
    OSError
        If something cannot be written.
    """
    outcomes = as_written(outcomes)
    findings, shown = judge_sampling(outcomes, rules), difference_rows(outcomes, rules)
    cells = cell_rows(outcomes)
    best = best_rows(judged_runs(outcomes, rules), {cell: series_of(cell) for cell in sampling()})
    make_folder(folder)
    write_outcomes(folder / "runs.csv", outcomes)
    tables = {"cells": cells, "best": best, "findings": [asdict(one) for one in findings], "differences": shown}
    for name, rows in tables.items():
        write_text(folder / f"{name}.csv", rows_csv(rows))
    write_text(folder / "sampling.md", _words(outcomes, findings, best, shown, cells))
    return [folder / "runs.csv", *(folder / f"{name}.csv" for name in tables), folder / "sampling.md"]


def _words(
    outcomes: Sequence[Outcome],
    findings: Sequence[SamplingFinding],
    best: Sequence[dict[str, Any]],
    shown: Sequence[dict[str, Any]],
    cells: Sequence[dict[str, Any]],
) -> str:
    """Return verdicts, differences and cells as Markdown."""
    testbed = findings[0].testbed
    seen = Rules().seen(testbed)
    starts, draws = ({getattr(one, name) for one in outcomes} for name in ("start", "draw"))
    effort = {(one.updates, one.scorer_calls) for one in outcomes if one.status == "done"}
    told = "; ".join(f"{updates} updates and {calls} answers scored" for updates, calls in sorted(effort))
    verdicts = [
        {
            "claim": f"{one.claim}: {CLAIMS[one.claim]}",
            "verdict": f"**{one.verdict}**",
            "estimate": one.estimate,
            "95 % interval": "" if math.isnan(one.low) else f"{one.low:+.4f} .. {one.high:+.4f}",
            "margin": one.margin,
            "p, corrected": one.adjusted,
            "said beside": one.reason,
        }
        for one in findings
    ]
    counted = "1 draw" if len(draws) == 1 else f"{len(draws)} draws"
    listed = ("cell", "runs", "collapsed", *MEANS, "sd_of_score")
    return "\n".join(
        [
            f"# Sampling 64 times less often: {testbed}",
            "",
            f"The paper's Figure 7 in small: {len(outcomes)} runs of {len(cells)} cells, {len(starts)} start models, "
            f"{counted} of prompts and samples from each; this testbed was {seen}. Each run that came to its "
            f"end: {told}. As a whole the figure's claim {_VERDICTS[overall(findings)]} here.",
            "",
            "## Verdicts",
            "",
            "Score less that of sampling every step, each variant at the learning rate that the other starts chose.",
            "",
            markdown(verdicts),
            "## Each variant at its own learning rate, chosen on the other start models",
            "",
            EDGES,
            "",
            markdown([dict(row) for row in best]),
            "## Differences, shown and not tested",
            "",
            markdown([dict(row) for row in shown]),
            "## Cells, means over runs",
            "",
            markdown([{name: row[name] for name in listed} for row in cells]),
        ]
    )
