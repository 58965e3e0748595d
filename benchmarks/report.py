"""Rows of results: one comparison each, printed as a table and written as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.interleave import Interval, ratio_interval
from benchmarks.machine import DEVICE


@dataclass(frozen=True, slots=True)
class Row:
    """One comparison: both sides, what divides them, and the target if there is one."""

    number: str  # of the target, "-" where there is none
    what: str
    sides: tuple[str, str] = ("", "")  # numbers with their units
    value: float | None = None
    interval: tuple[float, float] | None = None
    target: str = ""
    met: bool | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Result:
    """Everything one benchmark found."""

    settings: dict[str, Any]
    rows: list[Row]
    seconds: dict[str, list[float]] = field(default_factory=dict)


def timing_row(
    number: str,
    what: str,
    above: Sequence[float],
    below: Sequence[float],
    *,
    limit: float | None = None,
    upper_end: bool = False,
    note: str = "",
) -> Row:
    """Compare two lists of paired timings; `upper_end` holds the interval's upper end against the limit."""
    found: Interval = ratio_interval(above, below)
    return Row(
        number,
        what,
        (f"{median(above):.4g} s", f"{median(below):.4g} s"),
        found.ratio,
        (found.low, found.high),
        "" if limit is None else f"{'upper end ' if upper_end else ''}<= {limit:g}",
        None if limit is None else (found.high if upper_end else found.ratio) <= limit,
        note,
    )


def not_measured(number: str, what: str, why: str, target: str = "") -> Row:
    """Return the row of something that this machine cannot measure."""
    return Row(number, what, target=target, note=f"not measured: {why}")


def print_rows(name: str, rows: Sequence[Row]) -> None:
    """Print a table, a note below the row it belongs to."""
    line = "  {:3} {:74} {:>11} {:>11} {:>9}  {:16} {:18} {}"
    print(f"\n{name}")
    print(line.format("#", "what", "one", "other", "ratio", "95 % interval", "target", "met"))
    for row in rows:
        value = "" if row.value is None else f"{row.value:.3g}" if abs(row.value) < 0.1 else f"{row.value:.3f}"
        interval = "" if row.interval is None else "{:.4g} .. {:.4g}".format(*row.interval)
        met = {None: "", True: "yes", False: "NO"}[row.met]
        print(line.format(row.number, row.what, *row.sides, value, interval, row.target, met))
        if row.note:
            print(f"      {row.note}")


def write_result(folder: Path, name: str, result: Result, facts: dict[str, Any]) -> Path:
    """Write a result with the machine it was found on to <folder>/<name>-<device>.json."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{DEVICE}.json"
    tree = {
        "name": name,
        "date": datetime.now(UTC).date().isoformat(),
        "machine": facts,
        "settings": result.settings,
        "rows": [asdict(row) for row in result.rows],
        "seconds": {key: [round(value, 6) for value in values] for key, values in result.seconds.items()},
    }
    path.write_text(json.dumps(tree, indent=1) + "\n", encoding="utf-8")
    return path
