"""What a fitted gamma means for the clip range: how near each range comes to the human curve, and for which gamma."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from humanline.plots import _style
from humanline.plots._table import Row, Table, points, settings
from humanline.theory import BetaShape, Capacity, Identity, TverskyKahneman, human_curve
from humanline.theory.clip_distances import clip_distances
from humanline.theory.normal_ratios import CUT, Rule, human_distances, humanline_sampler, sampler

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Gammas that people have been found to have, and 1: as it is.
GAMMAS = np.round(np.linspace(0.4, 1.0, 25), 6)
#: Ends of ranges, nats at a spread of 1; the last is none.
ENDS = np.append(np.arange(41) / 10, math.inf)
#: Def. 4.2's nearest rule at gamma .61 and spread 1 that accepts .35 %: `distortion_curves.FITTED`.
TWO_TESTS = Rule(BetaShape(0.8291396, 0.3012434), BetaShape(0.1068962, 0.2165775))
_DISTANCES = ("sup", "area", "l1")


def rows(*, gamma: float = 0.61, spread: float = 1.0, gammas: Sequence[float] = tuple(GAMMAS)) -> list[Row]:
    """Return the numbers of the figure.

    Parameters
    ----------
    gamma : float
        Of the human capacity, gains only.
    spread : float > 0
        Standard deviation of the log-ratio, nats; the reference proposes.
    gammas : sequence of float
        For the last panel.

    Returns
    -------
    list of Row
        Panels ``curve`` (x: the policy's cumulative probability, y: that of the law), ``sup`` and ``accepted`` of each
        law; ``by low end`` (x: low end of the range, nats, without a high end; y: each distance) and ``none`` (y: the
        distance without clipping); ``nearest low`` (x: gamma, y: low end of the nearest range by each distance, nan
        where no range is closer than none), ``nearest`` and ``without`` (x: gamma, y: the distance).
    """
    capacity = TverskyKahneman(gamma)
    out = settings(gamma=gamma, spread=spread)
    x = np.concatenate([[0, 0.001, 0.0025, 0.005], np.linspace(0.01, 0.99, 99), [0.995, 0.9975, 0.999, 1]])
    out += points("curve", "human", x, human_curve(x, gain=capacity))
    low = _nearest(capacity, "sup", spread)[0]
    laws = {
        "the reference, all kept": (sampler(-spread, atoms=4000), 1.0),
        "one test (Prop. 4.1)": humanline_sampler(_one_test(gamma), spread=spread, atoms=4000),
        "two tests (Def. 4.2)": humanline_sampler(TWO_TESTS, spread=spread, atoms=4000),
    }
    for name, (implied, accepted) in laws.items():
        out += points("curve", name, x, implied.curve(x))
        out += points("sup", name, math.nan, human_distances(implied, capacity).sup)
        out += points("accepted", name, math.nan, accepted)
    out += _clipped("nearest clip range", capacity, x, low, spread)
    ends = ENDS[:-1] * spread
    found = clip_distances(capacity, -ends[::-1], [math.inf], spread=spread)
    whole = clip_distances(capacity, [-math.inf], [math.inf], spread=spread)
    for name in _DISTANCES:
        out += points("by low end", name, found.low, getattr(found.distances, name)[:, 0])
        out += points("none", name, math.nan, getattr(whole.distances, name).item())
    for each in gammas:
        for name in _DISTANCES:
            at, distance, without = _nearest(TverskyKahneman(each) if each != 1 else Identity(), name, spread)
            out += points("nearest low", name, each, at if math.isfinite(at) else math.nan)
            out += points("nearest", name, each, distance) + points("without", name, each, without)
    return out


def _one_test(gamma: float) -> Rule:
    """Return the one-sided test as two, of which that of the reference always passes but for 1e-9 of the tokens."""
    return Rule(BetaShape(gamma, 1), BetaShape(1e-12, 1))


def _nearest(capacity: Capacity, name: str, spread: float) -> tuple[float, float, float]:
    """Return the low end of the nearest range without a high end, its distance, and that without clipping."""
    found = clip_distances(capacity, -ENDS * spread, [math.inf], spread=spread)
    distance = getattr(found.distances, name)[:, 0]
    place = int(np.flatnonzero(distance <= np.nanmin(distance) + 1e-9)[-1])
    return float(found.low[place]), float(distance[place]), float(distance[-1])


def _clipped(name: str, capacity: Capacity, x: NDArray[Any], low: float, spread: float) -> list[Row]:
    """Return the curve of what is kept of the reference above a low end: ``(y_ref(x) - y_ref(x_low)) / ...``."""
    from scipy.special import ndtr, ndtri

    cut = ndtr((low + spread**2 / 2) / spread)
    kept = 1 - cut
    curve = np.maximum(ndtr(ndtri(x) + spread) - cut, 0) / kept
    found = clip_distances(capacity, [low], [math.inf], spread=spread)
    out = points("curve", name, x, curve) + points("sup", name, math.nan, found.distances.sup.item())
    return out + points("accepted", name, math.nan, found.kept.item()) + settings(low=low)


def draw(rows: Sequence[Row]) -> Figure:
    """Draw the figure from its rows."""
    with _style.style():
        return _draw(Table(rows))


_CURVES: dict[str, tuple[str, Any, float]] = {
    "human": (_style.BLACK, "-", 2.6),
    "the reference, all kept": (_style.GREY, ":", 1.6),
    "one test (Prop. 4.1)": (_style.BLUE, "--", 1.7),
    "two tests (Def. 4.2)": (_style.GREEN, "-.", 1.7),
    "nearest clip range": (_style.RED, "-", 1.5),
}
_LINES: dict[str, tuple[str, str, Any]] = {
    "sup": ("largest difference", _style.RED, "-"),
    "area": ("area between the curves", _style.ORANGE, "--"),
    "l1": ("L1 norm, halved", _style.BLUE, "-."),
}


def _draw(table: Table) -> Figure:
    gamma, spread, low = (table.setting(name) for name in ("gamma", "spread", "low"))
    figure, axes = _style.panels([4.3, 3.9, 3.9], height=5.8, title=_title(table))
    for name, (colour, line, width) in _CURVES.items():
        label = f"human, gamma {gamma:g}, gains" if name == "human" else name
        if name == "nearest clip range":
            label = (
                f"clip range from {low:.2g} nats, the nearest".replace("-", "−")
                if math.isfinite(low)
                else "no clip range"
            )
        if name != "human":
            share = table.value("accepted", name)
            label += f": {table.value('sup', name):.3f}" + (f", keeps {100 * share:.2g} %" if share < 1 else "")
        axes[0].plot(*table.xy("curve", name), color=colour, linestyle=line, linewidth=width, label=label)
    axes[0].set(
        xlim=(0, 1),
        ylim=(0, 1),
        aspect="equal",
        xlabel="cumulative probability under the policy",
        ylabel="cumulative probability under the law",
        title="What is kept of the reference’s tokens",
    )
    axes[0].legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), title="largest difference, share kept")
    for name, (label, colour, line) in _LINES.items():
        half = 2 if name == "l1" else 1
        x, y = table.xy("by low end", name)
        axes[1].plot(x, y / half, color=colour, linestyle=line, label=label)
        axes[1].axhline(table.value("none", name) / half, color=colour, linestyle=":", linewidth=0.9)
        least = int(np.argmin(y))
        if y[least] < table.value("none", name) - 1e-9:
            axes[1].plot(x[least], y[least] / half, "o", color=colour, markersize=5)
        at, nearest = table.xy("nearest low", name)
        axes[2].plot(at, nearest, color=colour, linestyle=line, marker=".", markersize=4, label=label)
    axes[1].set(
        ylim=(0, None),
        xlabel="low end of the clip range, nats (no high end)",
        ylabel="distance to the human curve",
        title=f"Distance by range, gamma {gamma:g}; dotted: none",
    )
    axes[1].legend(loc="upper center", bbox_to_anchor=(0.5, -0.16))
    axes[2].set(
        xlabel="gamma of the people",
        ylabel="low end of the nearest range, nats",
        title="Nearest range by gamma; no dot: none is",
    )
    axes[2].legend(loc="upper center", bbox_to_anchor=(0.5, -0.16))
    _style.note(
        figure,
        f"Log-ratios are normal with standard deviation {spread:g} nats, all outcomes gains; tokens are proposed by "
        "the reference. KL(human ‖ kept) is not drawn: any end of a range makes it infinite.\n"
        f"For the tests outcomes end {CUT:g} standard deviations from the policy’s mean, and no ratio exceeds a bound; "
        "the two tests are those that were found nearest at gamma 0.61, spread 1 and 0.35 % kept.",
    )
    return figure


def _title(table: Table) -> str:
    """Say what the nearest range does at the figure's own gamma, which need not be one of the last panel's."""
    at, lows = table.xy("nearest low", "sup")
    none = table.value("none", "sup")
    less = 1 - table.xy("by low end", "sup")[1].min() / none
    if less <= 1e-9:
        which = f"at gamma {table.setting('gamma'):g}" if np.isfinite(lows).any() else "for any gamma"
        return f"No clip range is closer to the human curve than none, {which}"
    drops = 1 - table.xy("nearest", "sup")[1] / table.xy("without", "sup")[1]
    grow = len(at) > 1 and at.max() <= 1 and (np.diff(drops[np.argsort(at)]) >= 0).all()
    trend = "; the less people distort, the more it drops" if grow else ""
    return f"The nearest clip range lowers the largest difference by {100 * less:.0f} %{trend}"
