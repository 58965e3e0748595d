"""What a fit misses: each problem's share beside the predicted one, and whether predictions mean what they say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from humanline.plots import _style
from humanline.plots._table import Row, Table, points, settings

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from humanline.fit.curves import Shown

#: Problems of a group whose mean share is held against the mean prediction: ten groups, of three or more.
_GROUPS, _FEWEST = 10, 3


def rows(shown: Shown) -> list[Row]:
    """Return the numbers of the figure.

    Parameters
    ----------
    shown : Shown

    Returns
    -------
    list of Row
        Panel ``residual``: series ``problem`` (x: predicted, y: observed minus predicted) and, where sampling noise is
        known, ``noise`` (x: predicted, y: two standard deviations of it). Panel ``calibration``: for groups of problems
        of like prediction the means, series ``mean``, ``low``, ``high`` (95 %, problems as units). Panel ``setting``:
        the mean squared error of a choice, whether answers are shares, and how many problems there are.
    """
    from humanline.fit.curves import by_problem

    found = by_problem(shown.fit, shown.noise)
    shares = shown.fit.choices.kind != "equivalents"
    order = np.argsort(found.predicted, kind="stable")
    x, y, weight = found.predicted[order], found.observed[order], found.weight[order]
    out = settings(squared_error=shown.fit.squared_error, shares=float(shares), problems=float(len(x)))
    out += points("residual", "problem", x, y - x)
    if np.isfinite(found.deviation).all():
        out += points("residual", "noise", x, 2 * found.deviation[order])
    for group in np.array_split(np.arange(len(x)), min(_GROUPS, max(1, len(x) // _FEWEST))):
        out += _group(x[group], y[group], weight[group])
    return out


def _group(x: np.ndarray, y: np.ndarray, weight: np.ndarray) -> list[Row]:
    from humanline.stats import ratio_estimate

    middle = float(np.average(x, weights=weight))
    share = ratio_estimate(weight * y, weight, range(len(x)))
    reach = share.interval().half_width
    found = points("calibration", "mean", middle, share.mean)
    if np.isfinite(reach):
        found += points("calibration", "low", middle, share.mean - reach)
        found += points("calibration", "high", middle, share.mean + reach)
    return found


def draw(rows: Sequence[Row]) -> Figure:
    """Draw the figure from its rows."""
    with _style.style():
        return _draw(Table(rows))


def _draw(table: Table) -> Figure:
    figure, axes = _style.panels([5.2, 4.4], height=4.3, title="What the fit misses")
    shares = bool(table.setting("shares"))
    what = "share of the second option" if shares else "certainty equivalent"
    _residuals(table, axes[0], what)
    _calibration(table, axes[1], what, shares)
    known = "noise" in table.series("residual")
    band = "Orange: two standard deviations of sampling noise around 0." if known else "Sampling noise is not known."
    _style.note(
        figure,
        f"{table.setting('problems'):.0f} problems, all of them fitted: predictions are not of new ones.  {band}\n"
        "Calibration: problems in groups of like prediction; 95 % intervals with problems as units.",
    )
    return figure


def _residuals(table: Table, axis: Axes, what: str) -> None:
    x, y = table.xy("residual", "problem")
    small = 14 if len(x) < 500 else 3
    axis.scatter(x, y, s=small, color=_style.BLUE, alpha=0.8 if len(x) < 500 else 0.25, linewidth=0, zorder=3)
    axis.axhline(0, color=_style.GREY, linewidth=0.8)
    if "noise" in table.series("residual"):
        at, reach = table.xy("residual", "noise")
        if len(at) < 500:
            axis.vlines(at, -reach, reach, color=_style.ORANGE, linewidth=0.9, alpha=0.6)
        else:
            axis.scatter([*at, *at], [*-reach, *reach], s=1, color=_style.ORANGE, linewidth=0)
    axis.set(xlabel=f"predicted {what}", ylabel="observed minus predicted", title="Residuals, a dot for each problem")


def _calibration(table: Table, axis: Axes, what: str, shares: bool) -> None:
    x, y = table.xy("calibration", "mean")
    if "low" in table.series("calibration"):
        at, low = table.xy("calibration", "low")
        axis.vlines(at, low, table.xy("calibration", "high")[1], color=_style.BLUE, linewidth=1.2)
    axis.plot(x, y, "o", color=_style.BLUE, markersize=4)
    ends = (0.0, 1.0) if shares else (float(min(x.min(), y.min())), float(max(x.max(), y.max())))
    axis.plot(ends, ends, color=_style.GREY, linewidth=0.8)
    if shares:
        axis.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
    axis.set(xlabel=f"predicted {what}", ylabel="observed", title="Calibration")
