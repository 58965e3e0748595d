"""Rows of results: one comparison each, printed as a table and written as JSON, whole at every moment."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.interleave import Interval, ratio_interval


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

    @property
    def failed(self) -> bool:
        """Return whether something went wrong in place of what the row would say."""
        return self.note.startswith(FAILED)


FAILED = "failed: "


@dataclass(frozen=True, slots=True)
class Result:
    """Everything one benchmark found, or has found so far."""

    settings: dict[str, Any]
    rows: list[Row]
    seconds: dict[str, list[float]] = field(default_factory=dict)

    def with_more(self, other: Result) -> Result:
        """Return both together."""
        return Result(self.settings | other.settings, self.rows + other.rows, self.seconds | other.seconds)


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
    """Return the row of something that was not measured, and why."""
    return Row(number, what, target=target, note=f"not measured: {why}")


def failure(number: str, what: str, why: str, target: str = "") -> Row:
    """Return the row of something that was begun and did not end well."""
    return Row(number, what, target=target, note=f"{FAILED}{why}")


def print_rows(name: str, rows: Sequence[Row]) -> None:
    """Print a table, a note below the row it belongs to."""
    line = "  {:3} {:74} {:>11} {:>11} {:>9}  {:16} {:18} {}"
    print(f"\n{name}")
    print(line.format("#", "what", "one", "other", "ratio", "95 % interval", "target", "met"))
    for row in rows:
        value = "" if row.value is None else f"{row.value:.3g}" if abs(row.value) < 0.1 else f"{row.value:.3f}"
        interval = "" if row.interval is None else "{:.4g} .. {:.4g}".format(*row.interval)
        met = "FAILED" if row.failed else {None: "", True: "yes", False: "NO"}[row.met]
        print(line.format(row.number, row.what, *row.sides, value, interval, row.target, met))
        if row.note:
            print(f"      {row.note}", flush=True)


def replace_text(path: Path, text: str) -> None:
    """Write a file anew: whoever reads it, or takes it over after a kill, finds the old text or the new one, whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_text(text, encoding="utf-8")
    beside.replace(path)


def write_result(folder: Path, name: str, result: Result, facts: dict[str, Any]) -> Path:
    """Write a result with the machine it was found on to <folder>/<name>-<gpu or cpu>.json, whole or not at all."""
    path = folder / f"{name}-{'gpu' if facts['gpu'] else 'cpu'}.json"
    tree = {
        "name": name,
        "date": datetime.now(UTC).date().isoformat(),
        "machine": facts,
        "settings": result.settings,
        "rows": [asdict(row) for row in result.rows],
        "seconds": {key: [round(value, 6) for value in values] for key, values in result.seconds.items()},
    }
    replace_text(path, json.dumps(tree, indent=1) + "\n")
    return path
