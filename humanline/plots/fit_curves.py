"""The capacities and the value function that were fitted to choices, with their bands, beside the medians of 1992."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from humanline.plots import _style
from humanline.plots._table import Row, Table, points, settings
from humanline.theory import PowerValue, TverskyKahneman

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from humanline.fit.curves import Band, Shown

#: Of Tversky and Kahneman (1992).
MEDIANS = {"gain": TverskyKahneman(0.61), "loss": TverskyKahneman(0.69)}
MEDIAN_VALUE = PowerValue(curvature=0.88, loss_aversion=2.25)
_TITLES = {"gain": "Capacity of gains", "loss": "Capacity of losses", "value": "Value"}


def rows(shown: Shown) -> list[Row]:
    """Return the numbers of the figure.

    Parameters
    ----------
    shown : Shown

    Returns
    -------
    list of Row
        Panels ``gain`` and ``loss`` (x: cumulative probability, y: perceived one; the second only if there are losses)
        and ``value`` (x: outcome less the reference point, y: its value in units of that of a typical gain), with
        series ``fitted``, ``low``, ``high`` (pointwise 95 %) and ``1992 median``. Panel ``setting``: the typical gain,
        and whether there are bands.
    """
    from humanline.fit.curves import capacity_band, drawn_parameters, value_band

    fit = shown.fit
    drawn = drawn_parameters(fit, errors=shown.errors, seed=shown.seed)
    fine = np.geomspace(1e-4, 0.01, 8)
    p = np.concatenate([[0.0], fine[:-1], np.linspace(0.01, 0.99, 99), 1 - fine[:-1][::-1], [1.0]])
    zero = fit.likelihood.reference_point
    z = fit.choices.outcomes[fit.choices.probs > 0] - zero
    unit = fit.choices.size
    out = settings(typical=unit, bands=float(bool(drawn)), losses=float((z < 0).any()))
    for side in ("gain", "loss"):
        if side == "loss" and not (z < 0).any():
            continue
        out += _series(side, capacity_band(fit, side, p, drawn))
        out += points(side, "1992 median", p, np.asarray(MEDIANS[side](p)))
    x = np.linspace(min(float(z.min()), 0.0), max(float(z.max()), 0.0), 161)
    band = value_band(fit, x + zero, unit, drawn)
    out += _series("value", type(band)(x, band.y, band.low, band.high))
    one = float(MEDIAN_VALUE(np.array([unit]))[0])
    return out + points("value", "1992 median", x, np.asarray(MEDIAN_VALUE(x)) / one)


def _series(panel: str, band: Band) -> list[Row]:
    found = points(panel, "fitted", band.x, band.y)
    if np.isfinite(band.low).all():
        found += points(panel, "low", band.x, band.low) + points(panel, "high", band.x, band.high)
    return found


def draw(rows: Sequence[Row]) -> Figure:
    """Draw the figure from its rows."""
    with _style.style():
        return _draw(Table(rows))


def _draw(table: Table) -> Figure:
    panels = ["gain", *(["loss"] if table.setting("losses") else []), "value"]
    figure, axes = _style.panels([3.7] * len(panels), height=4.3, title="What was fitted, beside the medians of 1992")
    for panel, axis in zip(panels, axes, strict=True):
        _panel(table, panel, axis)
    axes[0].legend(loc="upper left")
    unit = table.setting("typical")
    bands = "Bands: pointwise 95 %, of the estimates' normal law on the log scale."
    _style.note(
        figure,
        (bands if table.setting("bands") else "No bands: the estimates have no standard errors.")
        + f"  Value: in units of that of a gain of {unit:g}, the typical outcome.",
    )
    return figure


def _panel(table: Table, panel: str, axis: Axes) -> None:
    x, y = table.xy(panel, "fitted")
    if "low" in table.series(panel):
        low, high = (table.xy(panel, name)[1] for name in ("low", "high"))
        axis.fill_between(x, low, high, color=_style.BLUE, alpha=0.2, linewidth=0)
    axis.plot(x, y, color=_style.BLUE, label="fitted")
    axis.plot(*table.xy(panel, "1992 median"), color=_style.RED, linestyle="--", label="median of 1992")
    if panel == "value":
        axis.axhline(0, color=_style.GREY, linewidth=0.8)
        axis.axvline(0, color=_style.GREY, linewidth=0.8)
        axis.set(xlabel="outcome less the reference point", ylabel="value", title=_TITLES[panel])
        return
    axis.plot([0, 1], [0, 1], color=_style.GREY, linewidth=0.8)
    best = "best outcome first" if panel == "gain" else "worst outcome first"
    axis.set(
        xlim=(0, 1),
        ylim=(0, 1),
        aspect="equal",
        xlabel=f"cumulative probability, {best}",
        ylabel="perceived",
        title=_TITLES[panel],
    )
