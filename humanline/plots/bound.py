"""Proposition 3.4: how the rules that bound a utility gap compare, and where the printed statement fails."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from humanline.plots import _style
from humanline.plots._table import Row, Table, points
from humanline.theory import TverskyKahneman, decision_weights, kl_divergence, utility_gap_bound

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GAIN, LOSS = TverskyKahneman(0.61), TverskyKahneman(0.69)
#: Where Bretagnolle and Huber's inequality becomes better than Pinsker's: 2 + W(-2 exp(-2)).
CROSSING = 1.5936242600400401
#: Outcomes, probabilities and candidate whose divergence is 0 as printed while the utilities differ.
COUNTEREXAMPLE = ((-1.0, 1.0), (0.5, 0.5), (1 - 0.2418467042, 0.2418467042))


def rows(*, prospects: int = 400, seed: int = 0, spread: float = 0.6) -> list[Row]:
    """Return the numbers of the figure.

    Parameters
    ----------
    prospects : int
        How many random prospects of four outcomes, gains and losses, to compare with a random candidate each.
    seed : int
    spread : float > 0
        Standard deviation of the log of a candidate's ratio to the objective probabilities.

    Returns
    -------
    list of Row
        Panels ``norm`` (x: K = KL(w || Q) of weights of mass 1 in nats, y: what a rule says of ``sum |w - Q|``),
        ``crossing``, ``mixed prospects`` (x: a rule's bound of the gap, y: the gap, both in units of the largest
        absolute value; series: the printed statement where its root exists, and the corrected one),
        ``counterexample`` (the same) and ``count``.

    Notes
    -----
    Source: arXiv 2509.24207, Prop. 3.4. Probabilities and candidates come from uniform variables alone.
    """
    k = np.concatenate([[0.0], np.geomspace(1e-3, 3.5, 120), [CROSSING, 2.0]])
    k.sort()
    out = points("norm", "pinsker", k, np.sqrt(2 * k))
    out += points("norm", "bretagnolle-huber", k, 2 * np.sqrt(-np.expm1(-k)))
    out += points("norm", "trivial", k, 2.0)
    out += points("crossing", "pinsker = bretagnolle-huber", CROSSING, math.sqrt(2 * CROSSING))

    rng = np.random.default_rng(seed)
    shares = -np.log1p(-rng.random((prospects, 4)))
    probs = shares / shares.sum(-1, keepdims=True)
    values = np.stack([*(-rng.random((2, prospects))), *rng.random((2, prospects))], -1)
    log_ratio = spread * np.sqrt(12) * (rng.random((prospects, 4)) - 0.5)
    tilted = probs * np.exp(log_ratio)
    candidate = tilted / tilted.sum(-1, keepdims=True)
    gap, printed, corrected, defined = _compare(values, probs, candidate)
    out += points("mixed prospects", "as printed", printed[defined], gap[defined])
    out += points("mixed prospects", "corrected", corrected, gap)
    out += points("count", "prospects", math.nan, prospects)
    out += points("count", "printed bound undefined", math.nan, np.sum(~defined))
    out += points("count", "printed bound violated", math.nan, np.sum(gap[defined] > printed[defined] + 1e-12))
    out += points("count", "corrected bound violated", math.nan, np.sum(gap > corrected + 1e-12))

    gap, printed, corrected, _ = _compare(*(np.array([each]) for each in COUNTEREXAMPLE))
    out += points("counterexample", "as printed", printed, gap)
    out += points("counterexample", "corrected", corrected, gap)
    return out


def _compare(values: Any, probs: Any, candidate: Any) -> tuple[Any, Any, Any, Any]:
    """Return the gap, the printed bound, the corrected one and whether the printed root exists; largest |value| 1."""
    weights = decision_weights(values, probs, gain=GAIN, loss=LOSS)
    scale = np.abs(values).max(-1)
    gap = np.abs(((weights - candidate) * values).sum(-1)) / scale
    divergence = kl_divergence(weights, candidate)
    defined = divergence >= -1e-9  # the counterexample's is 0 to the digits that are given of it
    printed = np.sqrt(2 * np.maximum(divergence, 0.0))
    return gap, printed, utility_gap_bound(weights, candidate, values).value / scale, defined


def draw(rows: Sequence[Row]) -> Figure:
    """Draw the figure from its rows."""
    with _style.style():
        return _draw(Table(rows))


def _draw(table: Table) -> Figure:
    title = "With gains and losses the printed bound of Prop. 3.4 fails; the corrected one holds"
    figure, (left, right) = _style.panels([4.6, 5.6], height=4.9, title=title)
    looks = {
        "pinsker": (_style.BLUE, "-", "Pinsker, √(2K): useless from K = 2 on"),
        "bretagnolle-huber": (_style.RED, "--", "Bretagnolle-Huber, 2√(1 − exp(−K))"),
        "trivial": (_style.BLACK, ":", "trivial: 2"),
    }
    for name, (colour, line, label) in looks.items():
        left.plot(*table.xy("norm", name), color=colour, linestyle=line, label=label)
    x, y = (float(each[0]) for each in table.xy("crossing", "pinsker = bretagnolle-huber"))
    left.plot(x, y, "o", color=_style.BLACK, markersize=5)
    left.annotate(
        f"equal at K = {x:.4f}",
        xy=(x, y),
        xytext=(x + 0.25, y - 0.45),
        arrowprops={"arrowstyle": "-", "color": _style.GREY, "linewidth": 0.8},
    )
    left.set(
        xlim=(0, 3.5),
        ylim=(0, 2.7),
        xlabel="K = KL(human weights ‖ sampler), nats",
        ylabel="bound of Σ|weights − sampler|",
        title="Gains only (mass 1): the best rule depends on K",
    )
    left.legend(loc="upper center", bbox_to_anchor=(0.5, -0.13), handlelength=2.6)

    total, undefined, bad, wrong = (
        int(table.value("count", name))
        for name in ("prospects", "printed bound undefined", "printed bound violated", "corrected bound violated")
    )
    top = 1.0
    right.fill_between([0, top], [0, top], [top, top], color="#f3d9cb", linewidth=0)
    right.plot([0, 2], [0, 2], color=_style.GREY, linewidth=0.9)
    right.plot(
        *table.xy("mixed prospects", "corrected"),
        ".",
        color=_style.BLUE,
        markersize=4,
        label=f"corrected: {wrong} of {total} above the line",
    )
    right.plot(
        *table.xy("mixed prospects", "as printed"),
        "x",
        color=_style.RED,
        markersize=4,
        markeredgewidth=0.9,
        label=f"as printed: {bad} of {total - undefined} above it, and no real root for {undefined} more",
    )
    x, y = (float(each[0]) for each in table.xy("counterexample", "as printed"))
    right.plot(x, y, "*", color=_style.BLACK, markersize=11, clip_on=False, label="counterexample, as printed")
    right.annotate(
        f"two outcomes ±1, evens:\nprinted bound 0, gap {y:.3f}",
        xy=(x, y),
        xytext=(0.05, y + 0.09),
        arrowprops={"arrowstyle": "-", "color": _style.BLACK, "linewidth": 0.8},
        fontsize=8,
    )
    right.text(0.03, 0.71, "gap above its bound", color="#8a3f12", fontsize=8.5)
    right.set(
        xlim=(0, 1.05),
        ylim=(0, 0.75),
        xlabel="bound of the utility gap, in units of the largest |value|",
        ylabel="utility gap, same unit",
        title="Random prospects with gains and losses, median capacities",
    )
    right.legend(loc="upper center", bbox_to_anchor=(0.5, -0.13), handlelength=1.6)
    return figure
