"""Variants compared at equal distance from the start, and whether the distance of their data tells how they end.

A run that learns faster is also farther from its start at the end, so that scores at the end mix how good the way is
with how far it has led. The divergence from the start is exact here, so the ways themselves can be compared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from humanline.sim.contrasts import Contrast, Get
from humanline.sim.lookup import Array
from humanline.sim.run import Run
from humanline.sim.study import EARLY

#: Names of the points of a run's way after its start, in time: scores, and `KL` of them.
POINTS = (
    *((f"early curve {i}", f"early kl curve {i}") for i in range(1, EARLY + 1)),
    *((f"curve {i}", f"kl curve {i}") for i in range(1, Run.measurements + 1)),
)
#: Where two ways are compared, as shares of the farthest distance that both reach (the root of nats): evenly along it,
#: or at its end alone.
ALONG, AT_THE_END = tuple(place / 16 for place in range(1, 17)), (1.0,)
#: Ways that share less than this, nats, are not compared.
LEAST = 0.01
#: Differences of the distance travelled, and correlations of ranks, below this are small.
MARGIN_NATS, MARGIN_RANKS = 0.1, 0.1
#: What the ranks go over: every source of data, and every kind of reference.
RANKED = (
    "offline",
    "offline worse data",
    "offline better data",
    "clip only",
    "sync only",
    "trust region",
    "offline+humanline",
    "offline+humanline k=64",
    "online",
    "online+humanline",
)


def way(get: Get, variant: str) -> tuple[Array, Array]:
    """Return the way of a variant's runs, start first: divergence from the start and share of what there is to gain.

    Returns
    -------
    divergence, gained : (14, S) arrays
        Nats, and 0 at the start; nan where a run has broken, whose way ends there.
    """
    start, best = get(variant, "start"), get(variant, "best")
    scores = np.stack([start, *(get(variant, score) for score, _ in POINTS)])
    divergence = np.stack([np.zeros_like(start), *(get(variant, kl) for _, kl in POINTS)])
    return divergence, (scores - start) / (best - start)


def reach(divergence: Array) -> Array:
    """Return how far each way leads, the root of nats, (S,)."""
    farthest: Array = np.sqrt(np.fmax.reduce(divergence, axis=0))
    return farthest


def arrivals(divergence: Array, gained: Array, wanted: Array) -> Array:
    """Return what each way has gained when it is as far as wanted for the first time, between points along a line.

    Lines run over the root of the divergence, in which a way that sets out straight is one.

    Parameters
    ----------
    divergence, gained : (N, S) arrays
        A `way`.
    wanted : (G, S) array
        The root of nats, each at most the way's `reach`.

    Returns
    -------
    (G, S) array

    Notes
    -----
    Source: Gao, Schulman and Hilton, Scaling laws for reward model overoptimization (2023), for the root.
    """
    far = np.sqrt(divergence)
    after = np.maximum((far[None] >= wanted[:, None]).argmax(1), 1)  # (G, S), the first point as far
    seeds = np.arange(far.shape[1])
    left, right = far[after - 1, seeds], far[after, seeds]
    below, above = gained[after - 1, seeds], gained[after, seeds]
    share = np.clip((wanted - left) / np.where(right > left, right - left, 1.0), 0.0, 1.0)
    found: Array = np.where(share > 0, below + share * (above - below), below)  # where a run broke, `above` is nan
    return found


def at_equal_distance(
    first: tuple[Array, Array], second: tuple[Array, Array], places: Sequence[float] = ALONG
) -> Array:
    """Return by how much the first way is above the second at equal distances, mean over them, (S,).

    Parameters
    ----------
    first, second : pairs of (N, S) arrays
        Each a `way`.
    places : sequence of float in (0, 1]
        The distances, the root of nats, as shares of the farthest that both ways of a seed reach.
    """
    shared = np.minimum(reach(first[0]), reach(second[0]))
    wanted = np.asarray(places)[:, None] * shared
    difference: Array = (arrivals(*first, wanted) - arrivals(*second, wanted)).mean(0)
    return difference


def ahead(first: str, second: str, places: Sequence[float] = ALONG) -> Callable[[Get], Contrast]:
    """Score at equal distance from the start, the first above the second."""

    def contrast(get: Get) -> Contrast:
        ways = way(get, first), way(get, second)
        difference = at_equal_distance(*ways, places)
        shared = float(np.median(np.minimum(*(reach(divergence) for divergence, _ in ways)) ** 2))
        untested = "" if shared >= LEAST else f"they share {shared:.2g} nats of their ways"
        return Contrast(difference, [difference], untested)

    return contrast


def farther(first: str, second: str) -> Callable[[Get], Contrast]:
    """Divergence from the start at the farthest, the first above the second."""

    def contrast(get: Get) -> Contrast:
        difference = reach(way(get, first)[0]) ** 2 - reach(way(get, second)[0]) ** 2
        return Contrast(difference, [difference], margin=MARGIN_NATS)

    return contrast


def rank_correlation(first: Array, second: Array) -> Array:
    """Return Spearman's correlation over the first axis, (S,): ties share ranks, places where one is nan do not count.

    0 where fewer than three places are left, or all are tied.
    """
    known = np.isfinite(first) & np.isfinite(second)
    ranks = [_centred(np.where(known, values, np.nan)) for values in (first, second)]
    spread = np.sqrt((ranks[0] ** 2).sum(0) * (ranks[1] ** 2).sum(0))
    usable = (known.sum(0) >= 3) & (spread > 0)
    together: Array = np.where(usable, (ranks[0] * ranks[1]).sum(0) / np.where(usable, spread, 1.0), 0.0)
    return together


def _centred(values: Array) -> Array:
    """Return ranks, those of ties their mean, less the mean of all; 0 for nan, which ranks nowhere."""
    below = (values[None] < values[:, None]).sum(1)
    ties = (values[None] == values[:, None]).sum(1)
    known = np.isfinite(values)
    ranks = np.where(known, below + (ties + 1) / 2, 0.0)
    return np.where(known, ranks - ranks.sum(0) / np.maximum(known.sum(0), 1), 0.0)


def _closeness(get: Get, measure: str) -> Array:
    """Return the correlation, over variants, of how close the law of their data is and how well they end."""
    distance = np.stack([get(variant, measure) for variant in RANKED])
    # distances that are equal but for rounding tie
    score = np.stack([get(variant, "score") for variant in RANKED])
    return rank_correlation(-distance.round(9), score.round(9))


def predicts(get: Get) -> Contrast:
    """Variants whose data are closer to the perceived law end higher."""
    correlation = _closeness(get, "distance")
    return Contrast(correlation, [correlation], margin=MARGIN_RANKS)


def predicts_better(measure: str) -> Callable[[Get], Contrast]:
    """The distance from the law that a measure means tells more of the score than the distance from the policy."""

    def contrast(get: Get) -> Contrast:
        difference = _closeness(get, measure) - _closeness(get, "distance literal")
        return Contrast(difference, [difference], margin=MARGIN_RANKS)

    return contrast
