"""What the runs of a testbed say of the paper's figures and tables: a CSV, and the same to read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from humanline.reproduce.cells import around, paper
from humanline.reproduce.edges import SAYS as EDGES
from humanline.reproduce.edges import edges_of_both
from humanline.reproduce.outcome import Outcome
from humanline.reproduce.paper import ALPHA, LEAST_CLIPPED, MARGIN_SHARE, PaperRow, paper_rows
from humanline.reproduce.paper_claims import ELSEWHERE
from humanline.reproduce.shown import markdown
from humanline.reproduce.tables import as_written, rows_csv
from humanline.system.files import make_folder, write_text


def write_paper_report(folder: Path, outcomes: Sequence[Outcome]) -> list[Path]:
    """Write paper.csv and paper.md of the runs of one testbed; return the files.

    Raises
    ------
    ValueError
        As `paper_rows`, before anything is written.
    OSError
        If something cannot be written.
    """
    outcomes = as_written(outcomes)
    rows = paper_rows(outcomes)
    make_folder(folder)
    write_text(folder / "paper.csv", rows_csv([asdict(row) for row in rows]))
    write_text(folder / "paper.md", _words(outcomes, rows))
    return [folder / "paper.csv", folder / "paper.md"]


def _words(outcomes: Sequence[Outcome], rows: Sequence[PaperRow]) -> str:
    """Return the rows as Markdown."""
    testbed, starts = rows[0].testbed, {one.start for one in outcomes}
    more = sum(one.cell in {*around(), *paper()} for one in outcomes)
    tables = [
        f"# The paper's figures and tables: {testbed}",
        "",
        f"{len(outcomes)} runs from {len(starts)} start models; {more} of them of cells beyond the grid, which "
        f"`humanline reproduce {testbed} --all` runs. Of several cells on a side the best by the *other* start models "
        "is taken. First less second is the mean over start models, with its 95 % interval, uncorrected; a claim holds "
        f"where its opposite has a p-value of at most {ALPHA:g} by Holm's correction over its objectives, and "
        "does not where it has such a one itself. Alike "
        f"means within {MARGIN_SHARE:.0%} of what tuned online runs gain on the start models. A claim about clipping "
        f"says something where at least {LEAST_CLIPPED:.0%} of tokens are clipped. The paper's numbers, of models of "
        "8 and 27 billion parameters, are length-controlled win rates in percent, or lengths; none is of this scale. "
        f"What is said here is of this task and this size alone. {EDGES}",
        "",
    ]
    for where in dict.fromkeys(row.where for row in rows):
        mine = [row for row in rows if row.where == where]
        tables += [f"## {where}", "", markdown([row_shown(row) for row in mine])]
        if differs := {row.differs for row in mine if row.differs}:
            tables += [f"Not as in the paper: {'; '.join(sorted(differs))}.", ""]
    tables += ["## No row", ""] + [f"- {where}: {why}." for where, why in ELSEWHERE.items()] + [""]
    return "\n".join(tables)


def row_shown(row: PaperRow) -> dict[str, object]:
    """Return a row as it is shown to people."""
    interval = "" if math.isnan(row.low) or math.isinf(row.low) else f"{row.low:+.4f} .. {row.high:+.4f}"
    return {
        "claim": row.says,
        "objective": row.objective,
        "paper: first, second": row.paper,
        "first": row.first,
        "second": row.second,
        "first less second": row.difference,
        "95 % interval": interval,
        "margin": row.margin,
        "clipped": row.clipped,
        "verdict": f"**{row.verdict}**" + (f": {row.why}" if row.why else ""),
        **edges_of_both(row.first_edges, row.second_edges),
    }
