"""What a claim comes to in one setting: numbers per seed that it says are positive on average."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from humanline.sim.lookup import Array
from humanline.sim.variants import CLIP_RANGES
from humanline.stats import mean_interval

#: Differences of less than this share of what there is to gain count as none.
MARGIN = 0.05
#: A claim about clipping is tested only where more than this share of tokens is clipped.
CLIPPED = 0.01
Get = Callable[[str, str], Array]  # (variant, measure) -> (S,)


@dataclass(frozen=True)
class Contrast:
    """Hold what a claim comes to in one setting.

    Parameters
    ----------
    effect : (S,) array
        What is reported.
    positive : list of (S,) arrays
        What the claim says is positive on average, all of it.
    untested : str
        Why the setting says nothing about the claim; empty if it does.
    margin : float >= 0
        In the effect's unit: a superiority below it is "small", and counted apart.
    """

    effect: Array
    positive: list[Array]
    untested: str = ""
    margin: float = MARGIN

    @property
    def superiority(self) -> bool:
        """Whether the claim is that the effect itself is positive, so that its size says how much it matters."""
        return any(part is self.effect for part in self.positive)


def score(first: str, second: str) -> Callable[[Get], Contrast]:
    """Return the contrast of two variants' scores, the first above the second."""

    def contrast(get: Get) -> Contrast:
        difference = get(first, "score") - get(second, "score")
        return Contrast(difference, [difference])

    return contrast


def _above_zero(difference: Array) -> bool:
    interval = mean_interval(difference.tolist())
    return interval.excludes_zero and interval.mean > 0


def _too_few(get: Get, variant: str) -> str:
    outside = float(get(variant, "outside").mean())
    return "" if outside > CLIPPED else f"{outside:.2%} of tokens clipped"


def closes_gap(get: Get) -> Contrast:
    """Offline humanline above offline, and not below online by the margin."""
    offline, human, online = (get(name, "score") for name in ("offline", "offline+humanline", "online"))
    untested = "" if _above_zero(online - offline) else "online is not better than offline"
    return Contrast(human - online, [human - offline, human - online + MARGIN], untested)


def sync_gives_most(get: Get) -> Contrast:
    """Sync only above the middle of offline and offline humanline."""
    offline, human, sync = (get(name, "score") for name in ("offline", "offline+humanline", "sync only"))
    untested = "" if _above_zero(human - offline) else "humanline is not better than offline"
    more_than_half = sync - (offline + human) / 2
    return Contrast(more_than_half, [more_than_half], untested)


def clip_needed(first: str, second: str) -> Callable[[Get], Contrast]:
    """Score, the first above the second, where the first clips."""

    def contrast(get: Get) -> Contrast:
        difference = get(first, "score") - get(second, "score")
        return Contrast(difference, [difference], _too_few(get, first))

    return contrast


def clip_range(get: Get) -> Contrast:
    """Every clip range within the margin of the default."""
    default = "offline+humanline k=16"
    differences = [get(name, "score") - get(default, "score") for name in RANGES]
    largest = max(differences, key=lambda d: abs(float(d.mean())))
    within = [MARGIN + sign * d for d in differences for sign in (1, -1)]
    return Contrast(largest, within, _too_few(get, default))


def slower(get: Get) -> Contrast:
    """Syncing every step above k = 64 after a quarter of the run."""
    difference = get("offline+humanline k=1", "early") - get("offline+humanline k=64", "early")
    return Contrast(difference, [difference])


def stabler(variant: str) -> Callable[[Get], Contrast]:
    """Syncing every step falls further from its best than k = 64."""

    def contrast(get: Get) -> Contrast:
        difference = get(f"{variant} k=1", "drop") - get(f"{variant} k=64", "drop")
        return Contrast(difference, [difference])

    return contrast


def collapses(get: Get) -> Contrast:
    """More than half of the runs end below their start."""
    collapsed = get("online+humanline every=64 k=1", "collapsed")
    return Contrast(collapsed, [collapsed - 0.5])


def tolerates(get: Get) -> Contrast:
    """Old samples with humanline as good as fresh ones without, where old ones do harm."""
    often, seldom, human = (
        get(name, "score") for name in ("online every=1", "online every=64", "online+humanline every=64 k=16")
    )
    untested = "" if _above_zero(often - seldom) else "sampling less often does no harm without humanline"
    return Contrast(human - often, [human - seldom, human - often + MARGIN], untested)


def low_probability(get: Get) -> Contrast:
    """The least likely quarter of the data below the mean of the others."""
    low, *rest = (get(f"offline+humanline quartile={q}", "score") for q in (1, 2, 3, 4))
    difference = np.mean(rest, 0) - low
    return Contrast(difference, [difference])


def slightly(get: Get) -> Contrast:
    """Humanline above plain online, and by less than offline."""
    online = get("online+humanline", "score") - get("online", "score")
    offline = get("offline+humanline", "score") - get("offline", "score")
    return Contrast(online, [online, offline - online])


def as_good_as_beta(get: Get) -> Contrast:
    """Humanline's clip not below Beta rejection by the margin."""
    difference = get("offline+humanline", "score") - get("beta rejection", "score")
    return Contrast(difference, [difference + MARGIN], _too_few(get, "beta rejection"))


def perceived(get: Get) -> Contrast:
    """Offline data farther from the perceived law than online data."""
    difference = get("offline", "distance") - get("online", "distance")
    return Contrast(difference, [difference])


RANGES = tuple(f"offline+humanline k=16 clip={low:g},{high:g}" for low, high in CLIP_RANGES)
QUARTILES = tuple(f"offline+humanline quartile={q}" for q in (1, 2, 3, 4))
