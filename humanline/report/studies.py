"""What `humanline reproduce` and `humanline demo` have left: their tables, and the figure of score and distance."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

from humanline.report.answers import cut
from humanline.report.find import Found
from humanline.reproduce.hypotheses import CLAIMS
from humanline.reproduce.sampling import CLAIMS as SAMPLING

#: Tables that are shown, in order, with what they are.
TABLES = {
    "findings.csv": "Verdicts",
    "paper.csv": "The paper's figures and tables: claims, with 95 % intervals",
    "chosen.csv": "Tuned cells on draws that did not choose them: claims, with 95 % intervals",
    "further.csv": "Offline of a weaker anchor or more passes, and humanline: what is asked, with 95 % intervals",
    "best.csv": "The best cell of each variant, chosen on the other start models; edges of what was run that it is at",
    "curves.csv": "Curves of the offline cells, from each start model",
    "differences.csv": "Differences between ways of sampling, shown and not tested",
    "shown.csv": "Mean score above the offline curve, shown and not tested",
    "foretold.csv": "Whether what is said of data beforehand foretells a run's end",
    "cells.csv": "Cells, means over runs",
    "runs.csv": "Runs",
}
#: Of tables with more columns than a page has room for, those that it shows.
_SHOWN = {
    "paper.csv": (
        *("where", "says", "objective", "paper", "verdict", "first", "second"),
        *("difference", "low", "high", "clipped", "why", "first_edges", "second_edges", "differs"),
    ),
    "chosen.csv": (
        *("says", "objective", "verdict", "first", "second", "difference", "low", "high", "margin"),
        *("draws", "collapsed", "sd_of_draws", "choosing_difference", "why", "first_edges", "second_edges"),
    ),
    "further.csv": (
        *("says", "objective", "verdict", "first", "second", "difference", "low", "high", "clipped", "why"),
        *("first_edges", "second_edges"),
    ),
}
FIGURE, TEXT = "frontier.csv", "table.txt"
LONGEST = 200  # rows of a table that are shown
_LONGEST_TEXT = 20_000  # characters


@dataclass(frozen=True, slots=True)
class Table:
    """A table of a study, as its file has it, cut after 200 rows, and of many columns to those that are shown."""

    file: str
    title: str
    head: list[str]
    rows: list[list[str]]
    count: int


@dataclass(frozen=True, slots=True)
class Study:
    """What a report tells of a suite of runs; `claims` says what the hypotheses in its verdicts are."""

    name: str
    claims: dict[str, str]
    tables: list[Table]
    text: str
    figure: Path | None
    notes: list[str]


def read_study(found: Found) -> Study:
    """Return the tables of a folder; what cannot be read of it is said in the notes."""
    folder, tables, notes = found.path, [], []
    for name, title in TABLES.items():
        if not (folder / name).is_file():
            continue
        try:
            with open(folder / name, encoding="utf-8", newline="") as lines:
                rows = list(csv.reader(lines))
        except (OSError, ValueError, csv.Error) as error:
            notes.append(f"{name} cannot be read: {error}")
            continue
        if rows:
            places = [place for place, one in enumerate(rows[0]) if one in _SHOWN.get(name, rows[0])]
            rows = [[row[place] for place in places if place < len(row)] for row in rows]
            tables.append(Table(name, title, rows[0], rows[1 : LONGEST + 1], len(rows) - 1))
    text = ""
    try:
        text = cut((folder / TEXT).read_text(encoding="utf-8"), _LONGEST_TEXT)
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as error:
        notes.append(f"{TEXT} cannot be read: {error}")
    figure = folder / FIGURE
    said = {cell for table in tables if table.file == "findings.csv" for row in table.rows for cell in row}
    claims = {name: text for name, text in (CLAIMS | SAMPLING).items() if name in said}
    return Study(found.name, claims, tables, text, figure if figure.is_file() else None, notes)
