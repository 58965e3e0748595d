"""Rows of a figure: everything it draws or prints, as numbers under the name of a panel and a series."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from humanline.system.files import write_text

#: The panel of `settings`, in which nothing is drawn.
SETTING = "setting"


class Row(NamedTuple):
    """Hold one point: of which panel, of which series in it, and where."""

    panel: str
    series: str
    x: float
    y: float


def points(panel: str, series: str, x: ArrayLike, y: ArrayLike) -> list[Row]:
    """Return the rows of one series; `x` and `y` are broadcast."""
    across, up = np.broadcast_arrays(np.atleast_1d(np.asarray(x, float)), np.atleast_1d(np.asarray(y, float)))
    return [Row(panel, series, float(a), float(b)) for a, b in zip(across, up, strict=True)]


def settings(**values: float) -> list[Row]:
    """Return rows for what a figure was computed with and says in words."""
    return [row for name, value in values.items() for row in points(SETTING, name, math.nan, value)]


class Table:
    """Look up the series of a figure's rows."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self._found: dict[tuple[str, str], list[tuple[float, float]]] = {}
        for row in rows:
            self._found.setdefault((row.panel, row.series), []).append((row.x, row.y))

    def series(self, panel: str) -> list[str]:
        """Return the names of a panel's series, in order."""
        return [series for each, series in self._found if each == panel]

    def xy(self, panel: str, series: str) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the points of a series."""
        x, y = np.array(self._found[panel, series]).T
        return x, y

    def setting(self, name: str) -> float:
        """Return the value that `settings` was given under a name."""
        return self.value(SETTING, name)

    def value(self, panel: str, series: str) -> float:
        """Return y of a series' only, or first, point."""
        return self._found[panel, series][0][1]


def write(path: Path, rows: Iterable[Row]) -> Path:
    """Write rows as CSV, numbers with 12 significant digits, and return the path."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(Row._fields)
    writer.writerows((row.panel, row.series, f"{row.x:.12g}", f"{row.y:.12g}") for row in rows)
    write_text(path, text.getvalue())
    return path


def read(path: Path) -> list[Row]:
    """Return the rows of a CSV that `write` made."""
    with open(path, encoding="utf-8", newline="") as file:
        lines = csv.reader(file)
        next(lines)
        return [Row(panel, series, float(x), float(y)) for panel, series, x, y in lines]
