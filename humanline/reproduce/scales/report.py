"""What a plan has come to, as files: a row a run, and the paper's claims in the form of a testbed's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path

from humanline.reproduce.paper_report import row_shown
from humanline.reproduce.scales.claims import scale_rows
from humanline.reproduce.scales.read import Found, summary_of
from humanline.reproduce.scales.write import Prepared, reckoned
from humanline.reproduce.shown import markdown
from humanline.reproduce.tables import rows_csv
from humanline.system.files import write_text

CLAIMS, RUNS, TEXT = "paper.csv", "runs.csv", "paper.md"
CHANGED = "not as declared"  # where its rows begin to say how they differ, the table of all scales says it too


def write_scale_report(plan: Prepared, found: Mapping[str, Found]) -> list[Path]:
    """Write runs.csv, paper.csv and paper.md of a plan beside it; return them.

    Raises
    ------
    OSError
        If one cannot be written.
    """
    folder, rows = plan.folder, scale_rows(plan.scale, found)
    if plan.changes:
        said = f"{CHANGED} (--set {' '.join(plan.changes)})"
        rows = [replace(row, differs="; ".join(filter(None, (said, row.differs)))) for row in rows]
    runs = [summary_of(name, one) for name, one in found.items()]
    write_text(folder / RUNS, rows_csv(runs))
    write_text(folder / CLAIMS, rows_csv([asdict(row) for row in rows]))
    lines = [
        f"# The paper's claims: {plan.scale.title}",
        "",
        *(f"- {one}." for one in plan.scale.remarks),
        *([f"- {CHANGED.capitalize()}: --set {' '.join(plan.changes)}."] if plan.changes else []),
        f"- {reckoned(plan)}.",
        f"- Runs: {counted(found)}.",
        "",
        "First less second is the mean over prompts, crossed with seeds where there are several, with its 95 % "
        "interval, uncorrected. Of several runs on a side the one is taken that is best on the other half of the "
        "prompts. One seed of each tells of these runs, and not of others of their kind.",
        "",
        markdown([{"where": row.where, **row_shown(row), "seeds": row.starts or ""} for row in rows]),
        "## Runs",
        "",
        markdown(runs),
    ]
    write_text(folder / TEXT, "\n".join(lines))
    return [folder / RUNS, folder / CLAIMS, folder / TEXT]


def counted(found: Mapping[str, Found]) -> str:
    """Return how many runs stand where, in words; the start model is none of them."""
    states = Counter(one.state for one in found.values() if one.run is not None)
    return ", ".join(f"{count} {state}" for state, count in states.items())
