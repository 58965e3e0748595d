"""Outcomes as a table that is committed and read again: CSV, one row a run, losing and collapsed ones included."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from humanline.reproduce.cells import Cell
from humanline.reproduce.outcome import Outcome
from humanline.system.files import write_text

_CELL = [one.name for one in fields(Cell)]
_REST = [one.name for one in fields(Outcome) if one.name != "cell"]
_WHOLE = {"every", "passes", "start", "draw", "updates", "scorer_calls"}
_TEXT = {"objective", "variant", "data", "testbed", "status", "task"}


def outcomes_csv(outcomes: Sequence[Outcome]) -> str:
    """Return outcomes as CSV, in their order; what is not known (nan, None) is an empty cell."""
    out = io.StringIO()
    writer = csv.DictWriter(
        out, ["testbed", *_CELL, *[name for name in _REST if name != "testbed"]], lineterminator="\n"
    )
    writer.writeheader()
    for outcome in outcomes:
        row = {**asdict(outcome.cell), **{name: getattr(outcome, name) for name in _REST}}
        writer.writerow({name: _said(value) for name, value in row.items()})
    return out.getvalue()


def write_outcomes(path: Path, outcomes: Sequence[Outcome]) -> None:
    """Write outcomes as `outcomes_csv`."""
    write_text(path, outcomes_csv(outcomes))


def read_outcomes(path: Path) -> list[Outcome]:
    """Return the outcomes of a file that `write_outcomes` wrote.

    Raises
    ------
    OSError
        If it cannot be read.
    ValueError
        If it is no such file, naming the line.
    """
    found = []
    with open(path, encoding="utf-8", newline="") as lines:
        reader = csv.DictReader(lines)
        missing = [name for name in (*_CELL, *_REST) if name not in (reader.fieldnames or ())]
        if missing:
            raise ValueError(f"{path}: no table of runs: it has no column {missing[0]!r}")
        for row in reader:
            try:
                cell = Cell(**{name: _read(name, row[name]) for name in _CELL})
                found.append(Outcome(cell=cell, **{name: _read(name, row[name]) for name in _REST}))
            except (TypeError, ValueError) as error:
                raise ValueError(f"{path}, line {reader.line_num}: {error}") from None
    return found


def rows_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows as CSV, with a column for every name that a row has."""
    out = io.StringIO()
    names = list(dict.fromkeys(name for row in rows for name in row))
    writer = csv.DictWriter(out, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _said(value) for name, value in row.items()} for row in rows)
    return out.getvalue()


def _said(value: Any) -> Any:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    return f"{value:.6g}" if isinstance(value, float) else value


def _read(name: str, text: str) -> Any:
    if name in _TEXT:
        return text
    if name in _WHOLE:
        return int(text) if text else None
    if name in ("beta", "clip_eps"):
        return float(text) if text else None
    return float(text) if text else math.nan
