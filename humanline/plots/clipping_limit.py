"""Theorem 4.3: humanline sampling becomes clipping as its concentration grows, how fast, and where it does not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from humanline.plots import _style
from humanline.plots._table import Row, Table, points
from humanline.theory import ClipLimit, ClipRange

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CONCENTRATIONS = (16.0, 64.0, 256.0, 1024.0, 16_384.0)
#: Probabilities of five log-ratios: two outside, two at 2/3 of the ends, and 0.
DISCRETE = (0.1, 0.2, 0.4, 0.2, 0.1)
ON_AN_END = 0.01


def normal_density(log_ratio: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the standard normal density (per nat)."""
    return np.asarray(np.exp(-(log_ratio**2) / 2) / math.sqrt(2 * math.pi))


def rows(
    *,
    low: float = -1.5,
    high: float = 1.5,
    ratio_bound: float = 6.0,
    concentrations: Sequence[float] = CONCENTRATIONS,
) -> list[Row]:
    """Return the numbers of the figure.

    Parameters
    ----------
    low, high : float, low < 0 < high
        The clip range, nats.
    ratio_bound : float > 1
        M_P and M_R.
    concentrations : sequence of float > 0
        Of the curves of the first panel.

    Returns
    -------
    list of Row
        Panels ``acceptance`` (x: log-ratio in nats, y: probability of being kept; series: the concentration, and the
        clip), ``on an end`` (x: concentration, y: probability of being kept exactly on the lower end), ``disagreement``
        (x: concentration, y: share of tokens that the clip judges differently), ``constant`` (C and D, and the least
        kept in the limit).

    Notes
    -----
    Source: arXiv 2509.24207, Thm 4.3, which gives no rate and does not treat the ends.
    """
    limit = ClipLimit(ClipRange(low, high), policy_ratio_bound=ratio_bound, ref_ratio_bound=ratio_bound)
    out: list[Row] = []
    ends = np.concatenate([end + side * np.geomspace(1e-3, 0.6, 24) for end in (low, high) for side in (-1, 1)])
    x = np.unique(np.concatenate([np.linspace(low - 2, high + 2, 141), ends, [low, high]]))
    for concentration in concentrations:
        kept = limit.acceptance_probability(x, concentration)
        out += points("acceptance", f"{concentration:g}", x, kept)
    out += points("acceptance", "clip", [low - 2, low, low, high, high, high + 2], [0, 0, 1, 1, 0, 0])
    out += points("acceptance", "limit on an end", [low, high], 1 - limit.limiting_error([low, high]))

    k: NDArray[np.float64] = np.geomspace(10, 1e6, 41)
    out += points("on an end", "lower end", k, limit.acceptance_probability(low, k))
    density = limit.mean_disagreement_of_density(normal_density, k, support=(-10.0, 10.0))
    at_ends = (float(height) for height in normal_density(np.array([low, high])))
    constant = limit.disagreement_constant(*at_ends)
    atoms, probs = np.array([low - 1, low / 1.5, 0.0, high / 1.5, high + 1]), np.array(DISCRETE)
    out += points("disagreement", "continuous", k, density)
    out += points("disagreement", "C / sqrt(concentration)", k, constant / np.sqrt(k))
    out += _until_it_vanishes("discrete", k, limit.mean_disagreement(atoms, k, probs=probs))
    out += _until_it_vanishes("entropy bound", k, limit.error_bound(atoms, k[:, None]) @ probs)
    with_end, with_probs = np.append(atoms, low), np.append(probs * (1 - ON_AN_END), ON_AN_END)
    out += points("disagreement", "discrete, 1 % on an end", k, limit.mean_disagreement(with_end, k, probs=with_probs))
    out += points("constant", "C", math.nan, constant)
    out += points("constant", "D", math.nan, limit.decay_exponent(atoms, probs=probs))
    return out


def _until_it_vanishes(name: str, k: NDArray[np.float64], share: Any) -> list[Row]:
    """Return the points down to 1e-12, below which nothing is drawn."""
    shown = np.asarray(share) > 1e-12
    return points("disagreement", name, k[shown], np.asarray(share)[shown])


def draw(rows: Sequence[Row]) -> Figure:
    """Draw the figure from its rows."""
    with _style.style():
        return _draw(Table(rows))


def _draw(table: Table) -> Figure:
    title = "Humanline sampling tends to clipping: at every log-ratio but the two ends, where half is kept"
    figure, (left, right) = _style.panels([5.4, 5.2], height=4.6, title=title)
    names = [name for name in table.series("acceptance") if name not in ("clip", "limit on an end")]
    lines = [":", "-.", "--", (0, (8, 1.5)), "-"]
    for i, name in enumerate(names):
        shade = 0.75 - 0.75 * i / max(len(names) - 1, 1)  # the larger the concentration, the darker
        blue = (0.62 * shade, 0.25 + 0.5 * shade, 0.5 + 0.4 * shade)
        left.plot(*table.xy("acceptance", name), color=blue, linestyle=lines[i % 5], label=f"{float(name):,g}")
    left.plot(*table.xy("acceptance", "clip"), color=_style.BLACK, linewidth=1.0, label="the clip")
    ends, halves = table.xy("acceptance", "limit on an end")
    left.plot(ends, halves, "o", color=_style.RED, markersize=5, label="limit on an end: 1/2", zorder=5)
    left.set(
        xlim=(ends[0] - 2, ends[1] + 2),
        ylim=(-0.02, 1.03),
        xlabel="log-ratio of the token, nats",
        ylabel="probability that the token is kept",
        title=f"Exact acceptance; clip range [{ends[0]:g}, {ends[1]:g}] nats".replace("-", "−"),
    )
    left.legend(title="concentration", loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=4, handlelength=2.4)

    c, d = table.value("constant", "C"), table.value("constant", "D")
    looks = {
        "continuous": (_style.BLUE, "-", 2.0, "log-ratio normal, standard deviation 1 nat"),
        "C / sqrt(concentration)": (_style.BLACK, "--", 1.1, f"prediction {c:.3f} / √concentration"),
        "discrete": (_style.GREEN, (0, (6, 1.5)), 2.0, "five log-ratios, none on an end"),
        "entropy bound": (_style.BLACK, ":", 1.3, f"its entropy bound, decay exponent {d:.4f}"),
        "discrete, 1 % on an end": (_style.RED, "-.", 1.8, "the same with 1 % on an end: tends to 0.5 %"),
    }
    for name, (colour, line, width, label) in looks.items():
        right.loglog(*table.xy("disagreement", name), color=colour, linestyle=line, linewidth=width, label=label)
    right.set(
        ylim=(1e-5, 1.3),
        xlim=(10, 1e6),
        xlabel="concentration (a + b of the Beta draws)",
        ylabel="share of tokens judged unlike the clip",
        title="A continuous spread converges slowly, a discrete one fast",
    )
    right.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2, handlelength=2.6, fontsize=7.5)
    return figure
