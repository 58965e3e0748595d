"""Time variants of the same work in one interleaved run, and compare them pair by pair.

A machine's speed drifts over seconds and minutes, so two timings are compared only if they were taken next to each
other: every round runs each variant once, in a fresh random order, and a ratio is the median of the rounds' own ratios.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Interval:
    """A ratio with its 95 % interval."""

    ratio: float
    low: float
    high: float


def ratio_interval(above: Sequence[float], below: Sequence[float], *, draws: int = 10_000, seed: int = 0) -> Interval:
    """Return the median of the ratios above[i] / below[i] and its percentile bootstrap interval.

    Raises
    ------
    ValueError
        If the two sides are empty or of different lengths.
    """
    if not above or len(above) != len(below):
        raise ValueError(f"both sides need the same number of timings, at least 1; got {len(above)} and {len(below)}")
    ratios = np.asarray(above, dtype=float) / np.asarray(below, dtype=float)
    resampled = np.random.default_rng(seed).choice(ratios, size=(draws, len(ratios)))
    low, high = np.quantile(np.median(resampled, axis=1), [0.025, 0.975])
    return Interval(float(np.median(ratios)), float(low), float(high))


def clock() -> float:
    """Return the time in seconds, once the accelerator has done all it was asked to."""
    import torch  # not by whoever only compares

    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def interleave(
    variants: Mapping[str, Callable[[], object]], *, rounds: int, warm_up: int, seed: int = 0
) -> dict[str, list[float]]:
    """Time every variant once a round, in random order; the rounds of the warm-up are not kept.

    Parameters
    ----------
    variants : mapping from name to callable
    rounds, warm_up : int
    seed : int
        Of the order.

    Returns
    -------
    dict from name to list of float
        Seconds, one entry a round.
    """
    rng = np.random.default_rng(seed)
    names = list(variants)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for number in range(warm_up + rounds):
        for place in rng.permutation(len(names)):
            started = clock()
            variants[names[place]]()
            taken = clock() - started
            if number >= warm_up:
                seconds[names[place]].append(taken)
    return seconds
