"""Capacity families side by side: how each bends cumulative probabilities, and by how much."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from humanline.plots import _style
from humanline.plots._table import Row, Table, points
from humanline.theory import (
    Capacity,
    ExponentialPower,
    HyperbolicLog,
    LinearInLogOdds,
    NeoAdditive,
    PowerWeight,
    Prelec,
    TverskyKahneman,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Published values for the first three, the next three near the first in least squares, and a power for contrast.
FAMILIES: dict[str, Capacity] = {
    "Tversky-Kahneman (γ = 0.61)": TverskyKahneman(0.61),
    "Prelec (α = 0.65)": Prelec(0.65),
    "linear in log-odds (0.61, 0.724)": LinearInLogOdds(slope=0.61, elevation=0.724),
    "neo-additive (0.67, 0.1)": NeoAdditive(slope=0.67, intercept=0.1),
    "hyperbolic-log (6.3, 3.5)": HyperbolicLog(alpha=6.3, beta=3.5),
    "exponential-power (2.2, 1.4)": ExponentialPower(alpha=2.2, beta=1.4),
    "power (0.7)": PowerWeight(0.7),
}
#: Below g* = 0.2792 Tversky and Kahneman's function decreases somewhere.
TOO_SMALL = 0.2


def rows(families: Mapping[str, Capacity] = FAMILIES) -> list[Row]:
    """Return the numbers of the figure.

    Parameters
    ----------
    families : mapping from str to Capacity

    Returns
    -------
    list of Row
        Panels ``capacity`` and ``distortion`` (x: cumulative probability, y: perceived one, and the difference of the
        two), ``fixed point`` (x and y: the probability that is perceived as it is).

    Notes
    -----
    Source: arXiv 2509.24207, Eq. 3, and the families named in `humanline.theory.capacity`.
    """
    fine = np.geomspace(1e-4, 0.01, 12)
    x = np.concatenate([[0.0], fine[:-1], np.linspace(0.01, 0.99, 99), 1 - fine[:-1][::-1], [1.0]])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its warning is what the figure shows
        too_small = TverskyKahneman(TOO_SMALL)
    out: list[Row] = []
    for name, capacity in [*families.items(), ("not monotone", too_small)]:
        perceived = np.asarray(capacity(x))
        out += points("capacity", name, x, perceived) + points("distortion", name, x, perceived - x)
        fixed = getattr(capacity, "fixed_point", None)
        if fixed is not None:
            out += points("fixed point", name, fixed, fixed)
    return out


def draw(rows: Sequence[Row]) -> Figure:
    """Draw the figure from its rows."""
    with _style.style():
        return _draw(Table(rows))


def _draw(table: Table) -> Figure:
    title = "Most families overweight small cumulative probabilities and underweight large ones"
    figure, axes = _style.panels([4.4, 5.6], height=5.2, title=title)
    colours = (
        *(_style.BLACK, _style.BLUE, _style.RED, _style.GREEN),
        *(_style.ORANGE, _style.PINK, _style.SKY),
    )
    lines: tuple[Any, ...] = ("-", "--", "-.", (0, (1, 1)), (0, (8, 2)), (0, (3, 1, 1, 1, 1, 1)), (0, (5, 4)))
    names = [name for name in table.series("capacity") if name != "not monotone"]
    looks = {name: (colours[i % 7], lines[i % 7], 1.8, name) for i, name in enumerate(names)}
    looks["not monotone"] = (_style.GREY, "-", 1.0, f"Tversky-Kahneman (γ = {TOO_SMALL}): decreases")
    for panel, axis in zip(("capacity", "distortion"), axes, strict=True):
        for name, (colour, line, width, label) in looks.items():
            if name == "not monotone" and panel == "distortion":
                continue  # far below the others
            x, y = table.xy(panel, name)
            inner = slice(1, -1) if name.startswith("neo-additive") else slice(None)  # it jumps at the ends
            axis.plot(x[inner], y[inner], color=colour, linestyle=line, linewidth=width, label=label)
        for name in table.series("fixed point") if panel == "distortion" else ():
            if name in names:
                axis.plot(table.value("fixed point", name), 0, "o", color=looks[name][0], markersize=4)
    axes[0].plot([0, 1], [0, 1], color=_style.GREY, linewidth=0.8)
    axes[1].axhline(0, color=_style.GREY, linewidth=0.8)
    axes[0].set(
        xlim=(0, 1),
        ylim=(0, 1),
        aspect="equal",
        xlabel="cumulative probability, best outcome first",
        ylabel="perceived cumulative probability",
        title="Capacity Ω(p)",
    )
    axes[1].set(
        xlim=(0, 1),
        ylim=(-0.25, 0.22),
        xlabel="cumulative probability, best outcome first",
        ylabel="perceived minus actual probability",
        title="Distortion Ω(p) − p; dots: perceived as it is",
    )
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, handlelength=3.2)
    return figure
