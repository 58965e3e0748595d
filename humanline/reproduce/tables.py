"""Outcomes as a table that is committed and read again: CSV, one row a run, losing and collapsed ones included."""

from __future__ import annotations

import csv
import io
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from humanline._checks import one_of
from humanline.reproduce.cells import LATER, Cell
from humanline.reproduce.outcome import STATUSES, Outcome
from humanline.system.files import write_text

_CELL = [one.name for one in fields(Cell)]
_REST = [one.name for one in fields(Outcome) if one.name != "cell"]
_WHOLE = {"every", "passes", "round_steps", "quartile", "start", "draw", "updates", "scorer_calls"}
_OR_NONE = {"every", "beta", "clip_eps", *LATER}  # tables have a column of LATER where a run has it; older ones, none
_MEASURED = ("score", "kl_to_start")  # what verdicts and curves are made of
_DIGEST = re.compile(r"-?\d+-[0-9a-f]{16}")
_TEXT = {"objective", "variant", "data", "testbed", "status", "task"}


def outcomes_csv(outcomes: Sequence[Outcome]) -> str:
    """Return outcomes as CSV, in their order; what is not known (nan, None) is an empty cell."""
    out = io.StringIO()
    settings = [
        name for name in _CELL if name not in LATER or any(getattr(one.cell, name) is not None for one in outcomes)
    ]
    names = ["testbed", *settings, *[name for name in _REST if name != "testbed"]]
    writer = csv.DictWriter(out, names, lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    for outcome in outcomes:
        row = {**asdict(outcome.cell), **{name: getattr(outcome, name) for name in _REST}}
        writer.writerow({name: _said(value) for name, value in row.items()})
    return out.getvalue()


def write_outcomes(path: Path, outcomes: Sequence[Outcome]) -> None:
    """Write outcomes as `outcomes_csv`."""
    write_text(path, outcomes_csv(outcomes))


def as_written(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Return outcomes with the numbers that `outcomes_csv` writes of them.

    Tables that are computed of these are, to the last digit, those that anyone computes of the file.
    """
    rows = csv.DictReader(io.StringIO(outcomes_csv(outcomes)))
    return [_outcome(row) for row in rows]


def read_outcomes(path: Path) -> list[Outcome]:
    """Return the outcomes of a file that `write_outcomes` wrote.

    Raises
    ------
    OSError
        If it cannot be read.
    ValueError
        If it is no such file, holds a run twice, or a row is cut off, naming the line.
    """
    found: list[Outcome] = []
    lines_of: dict[tuple[str, Cell, int, int], int] = {}
    with open(path, encoding="utf-8", newline="") as lines:
        reader = csv.DictReader(lines)
        try:
            needed = [name for name in (*_CELL, *_REST) if name not in LATER]
            missing = [name for name in needed if name not in (reader.fieldnames or ())]
            if missing:
                raise ValueError(f"it has no column {missing[0]!r}")
            if twice := [name for name, count in Counter(reader.fieldnames or ()).items() if count > 1]:
                raise ValueError(f"it has the column {twice[0]!r} twice")
            rows = [(reader.line_num, row) for row in reader]
        except (csv.Error, ValueError) as error:  # text that is no UTF-8 among them
            raise ValueError(f"{path}: no table of runs: {error}") from None
    for line, row in rows:
        try:
            found.append(_outcome(row))
            one = found[-1]
            first = lines_of.setdefault((one.testbed, one.cell, one.start, one.draw), line)
            if first != line:
                raise ValueError(f"this run is in line {first} already; keep one of the two rows")
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path}, line {line}: {error}") from None
    return found


def _outcome(row: dict[str, Any]) -> Outcome:
    """Return the outcome of a row; raise ValueError if it has too few values or too many, or such as none has."""
    if None in row or None in row.values():
        raise ValueError("it has fewer values than there are columns, or more: is it cut off?")
    cell = Cell(**{name: _read(name, row[name]) for name in _CELL if name in row})
    found = Outcome(cell=cell, **{name: _read(name, row[name]) for name in _REST})
    one_of("status", found.status, STATUSES)
    if found.status == "done" and (bad := [name for name in _MEASURED if not math.isfinite(getattr(found, name))]):
        raise ValueError(f"{bad[0]} must be a number where the status is done; got {row[bad[0]]!r}")
    for name in ("kl_to_start_se", "kl_from_start_se", "truncated", "length", "entropy", "temperature", "seconds"):
        if getattr(found, name) < 0:
            raise ValueError(f"{name} must be >= 0; got {row[name]!r}")
    if found.task and not _DIGEST.fullmatch(found.task):
        raise ValueError(f"task must be a number and 16 hexadecimal digits, got {found.task!r}: is the row cut off?")
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
    if name in _WHOLE or name in _OR_NONE:
        kind = int if name in _WHOLE else float
        return None if name in _OR_NONE and not text else kind(text)
    return float(text) if text else math.nan
