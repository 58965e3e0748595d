"""Differences to a baseline with their intervals, and the margin they are held against."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from humanline.plots import _style
from humanline.plots._table import Row, Table, points, settings
from humanline.system.terminal import shorten, visible

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from humanline.evaluate.compare import Comparison

_LOW, _MIDDLE, _HIGH = "lower end", "difference", "upper end"
_WIDEST, _LONGEST = 40, 160  # characters of a line of a label, and of a label: what is drawn needs room beside it


def rows(comparison: Comparison) -> list[Row]:
    """Return the numbers of the figure.

    Returns
    -------
    list of Row
        Panels ``lower end``, ``difference`` and ``upper end``, a series a model; x: the value, y: the place from above.
        Panel ``setting``: margin (nan where there is none), confidence in percent, and 1 for a margin on both sides.
    """
    plan = comparison.declared.plan
    out = settings(
        margin=float("nan") if plan.margin is None else plan.margin,
        confidence=100 * (1 - plan.level),
        both_sides=float(plan.test == "equivalence"),
    )
    for place, one in enumerate(comparison.contrasts):
        mean, half = one.estimate.mean, one.interval.half_width
        for panel, value in ((_LOW, mean - half), (_MIDDLE, mean), (_HIGH, mean + half)):
            out += points(panel, f"{one.name} − {one.baseline}", value, place)
    return out


def draw(rows: Sequence[Row]) -> Figure:
    """Draw the figure from its rows."""
    with _style.style():
        return _draw(Table(rows))


def _draw(table: Table) -> Figure:
    names = table.series(_MIDDLE)
    labels = [_label(name) for name in names]
    each = max(0.36, 0.1 + 0.16 * max(label.count("\n") + 1 for label in labels))
    figure, (axis,) = _style.panels([6.5], height=1.5 + each * len(names), title="Differences to the baseline")
    low, middle, high = (np.array([table.xy(panel, name)[0][0] for name in names]) for panel in (_LOW, _MIDDLE, _HIGH))
    places = np.arange(len(names))
    known = np.isfinite(low)
    axis.hlines(places[known], low[known], high[known], color=_style.BLUE, linewidth=2.2)
    axis.plot(middle, places, "o", color=_style.BLUE, markersize=6)
    axis.axvline(0, color=_style.BLACK, linewidth=0.9)
    margin = table.setting("margin")
    text = f"Lines: intervals of {table.setting('confidence'):g} %."
    if np.isfinite(margin):
        for side in (-margin, margin) if table.setting("both_sides") else (-margin,):
            axis.axvline(side, color=_style.RED, linestyle="--", linewidth=1.2)
        text += " Dashed: the margin."
    if not known.all():
        text += " A point without a line: one value, so that no interval is known."
    axis.set_yticks(places, labels, parse_math=False)  # between two dollar signs of a name there is no formula
    axis.set_ylim(len(names) - 0.4, -0.6)
    axis.grid(axis="y", visible=False)
    axis.set_xlabel("difference, in the unit of the values")
    _style.note(figure, text)
    return figure


def _label(name: str) -> str:
    """Return the name of a difference in lines, its middle left out where it is very long."""
    return textwrap.fill(shorten(visible(name), _LONGEST), _WIDEST)
