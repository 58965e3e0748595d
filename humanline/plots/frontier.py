"""Score against distance from the start, a panel for each objective, with the curve that offline cells draw."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from humanline.plots import _style
from humanline.plots._table import SETTING, Row, Table, points, read, settings

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Points = Sequence[tuple[float, float]]
_CURVE = "offline curve"
#: How a series is drawn: colour and marker. Others are drawn in grey.
LOOKS = {
    "offline": (_style.BLACK, "o"),
    "humanline, k = 1": (_style.SKY, "v"),
    "humanline, k = 8": (_style.BLUE, "s"),
    "humanline, k = 32": (_style.GREEN, "^"),
    "online": (_style.RED, "D"),
    "online humanline, k = 8": (_style.ORANGE, "P"),
}


@dataclass(frozen=True, slots=True)
class Picture:
    """What the figure shows, for one testbed.

    Parameters
    ----------
    start : float
        Score of the start model.
    curves : mapping from a panel to points
        (KL(policy || start), score) along the curve of offline cells; empty where there is none.
    cells : mapping from a panel to a mapping from a series to points
        The same of each cell, mean over its runs.
    """

    start: float
    curves: Mapping[str, Points]
    cells: Mapping[str, Mapping[str, Points]]


def rows(picture: Picture) -> list[Row]:
    """Return the numbers of the figure.

    Returns
    -------
    list of Row
        A panel an objective, in it a series for each variant and one, ``offline curve``, for the curve; x: KL(policy ||
        start) in nats an answer, y: score. Panel ``setting``: the start's score.
    """
    out = settings(start=picture.start)
    for panel, series in picture.cells.items():
        out += _of(panel, _CURVE, picture.curves.get(panel, ()))
        for name, found in series.items():
            out += _of(panel, name, found)
    return out


def _of(panel: str, series: str, found: Points) -> list[Row]:
    return points(panel, series, *np.array(found).T) if len(found) else []


def panels_of(file: Path) -> dict[str, tuple[list[Row], Figure]]:
    """Return the panels of the figure one by one, each with its rows, from the CSV that was written of it.

    Raises
    ------
    OSError, ValueError
        If it cannot be read, or is no such table.
    """
    try:
        rows = read(file)
        names = list(dict.fromkeys(row.panel for row in rows if row.panel != SETTING))
        if any("$" in name for row in rows for name in row[:2]):
            raise ValueError("a name in it holds a dollar sign")  # between two of which a figure would show formulas
        parts = {name: [row for row in rows if row.panel in (name, SETTING)] for name in names}
        return {name: (own, _alone(own)) for name, own in parts.items()}
    except (StopIteration, KeyError, TypeError) as error:
        raise ValueError(f"it is no table of the figure ({type(error).__name__}: {error})") from None


def _alone(rows: Sequence[Row]) -> Figure:
    """Draw one panel without a title, its legend in two columns below."""
    figure = draw(rows, columns=2)
    figure.suptitle("")
    figure.axes[0].set_title("", loc="left")
    return figure


def draw(rows: Sequence[Row], columns: int | None = None) -> Figure:
    """Draw the figure from its rows, its legend in so many columns."""
    with _style.style():
        return _draw(Table(rows), list(dict.fromkeys(row.panel for row in rows if row.panel != SETTING)), columns)


def _draw(table: Table, names: list[str], columns: int | None) -> Figure:
    title = textwrap.fill("How far a run went from its start, and its score there", 36 * len(names))
    figure, axes = _style.panels([3.7] * len(names), height=3.9, title=title)
    for axis, name in zip(axes, names, strict=True):
        _panel(axis, table, name)
        axis.set_title(name)
    axes[0].set_ylabel("score")
    shown: dict[str, Any] = {}
    for axis in axes:
        shown |= {label: handle for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    most = 2 * len(names) + 1 if columns is None else columns
    lost = textwrap.fill(_not_drawn(table, names), 64 * len(names))
    # As the legend's title: a note below the panels would lie on the legend.
    look: dict[str, Any] = {"title": lost, "title_fontsize": _style.NOTE, "loc": "outside lower center"}
    figure.legend(list(shown.values()), list(shown), ncols=min(len(shown), most), **look)
    return figure


def _not_drawn(table: Table, names: Sequence[str]) -> str:
    """Return how many points an axis of logarithms has no place for: a KL that is estimated may be 0 or less."""
    counts = {
        f"{series} ({panel})" if len(names) > 1 else series: int((~(table.xy(panel, series)[0] > 0)).sum())
        for panel in names
        for series in table.series(panel)
    }
    listed = ", ".join(f"{count} of {series}" for series, count in counts.items() if count)
    return f"Not drawn, as their KL is not above 0: {listed}." if listed else ""


def _panel(axis: Axes, table: Table, panel: str) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.axhline(table.setting("start"), color=_style.GREY, linestyle=":", linewidth=1.2, label="start")
    for name in table.series(panel):
        across, up = table.xy(panel, name)
        if name == _CURVE:
            axis.plot(across, up, color=_style.BLACK, linewidth=1.3, label="curve of the offline cells")
            continue
        colour, marker = LOOKS.get(name, (_style.GREY, "x"))
        axis.plot(across, up, marker, color=colour, markersize=5, alpha=0.85, label=name)
    axis.set_xscale("log")
    axis.xaxis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.set_xlabel("KL(policy || start), nats an answer")
