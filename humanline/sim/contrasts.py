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
#: A claim about stability is tested only where runs fall from their best by more than this, of what there is to gain.
FALLEN = 0.01
#: What closes a gap leaves less than this share of it, as well as less than the margin.
LEFT_OPEN = 0.25
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
        """Whether the claim is that the effect itself is positive: it, and what else is to be, then has a size."""
        return any(part is self.effect for part in self.positive)


def score(first: str, second: str) -> Callable[[Get], Contrast]:
    """Return the contrast of two variants' scores, the first above the second."""

    def contrast(get: Get) -> Contrast:
        difference = get(first, "score") - get(second, "score")
        return Contrast(difference, [difference])

    return contrast


def felt(first: str, second: str) -> Callable[[Get], Contrast]:
    """Return the contrast of what two variants' policies are worth to each person, the first above the second."""

    def contrast(get: Get) -> Contrast:
        difference = get(first, "felt") - get(second, "felt")
        return Contrast(difference, [difference])

    return contrast


def _above(difference: Array, least: float) -> bool:
    """Return whether the mean is above a number by all that its interval allows."""
    interval = mean_interval(difference.tolist())
    return interval.mean - interval.half_width > least


def _idle(get: Get, *variants: str) -> str:
    """Return which of some variants hardly clip or detach a token; empty if all do."""
    shares = {variant: float(get(variant, "outside").mean()) for variant in variants}
    return "; ".join(f"{name}: {share:.2%} of tokens clipped" for name, share in shares.items() if share <= CLIPPED)


def _no_gap(gap: Array, words: str) -> str:
    """Return that there is no gap to be closed, unless it is above the margin by all that its interval allows."""
    return "" if _above(gap, MARGIN) else f"{words} by more than {MARGIN:g}"


def closes_gap(get: Get) -> Contrast:
    """Offline humanline below online neither by the margin nor by a quarter of the gap, where there is a gap."""
    offline, human, online = (get(name, "score") for name in ("offline", "offline+humanline", "online"))
    gap, missing = online - offline, online - human
    close = [MARGIN - missing, LEFT_OPEN * gap - missing]  # the second says that it is better than offline, too
    return Contrast(-missing, close, _no_gap(gap, "online is not better than offline"))


def _more_than_half(part: Array, whole: Array, untested: str) -> Contrast:
    """More than half of a difference that another is a part of; the effect is the share.

    The share is a ratio of means. Of each seed the effect is the ratio plus what the seed moves it by, so that their
    mean is the ratio and their Student interval its own, by linearisation. It has no margin: where a share is tested
    the whole is above it.

    Notes
    -----
    Source: Cochran, Sampling techniques (1977), section 6.4.
    """
    total = float(whole.mean())
    ratio = float(part.mean()) / total if total else 0.0
    share = ratio + (part - ratio * whole) / (total or 1.0)
    return Contrast(share, [part - whole / 2], untested)


def sync_closes_half(get: Get) -> Contrast:
    """Sync only closes more than half of the gap between offline and online, where there is a gap."""
    offline, sync, online = (get(name, "score") for name in ("offline", "sync only", "online"))
    gap = online - offline
    return _more_than_half(sync - offline, gap, _no_gap(gap, "online is not better than offline"))


def sync_gives_most(variant: str, sync_only: str) -> Callable[[Get], Contrast]:
    """Sync only gives more than half of what humanline gains over offline, where humanline gains and clips."""

    def contrast(get: Get) -> Contrast:
        offline, human, sync = (get(name, "score") for name in ("offline", variant, sync_only))
        gain = human - offline
        untested = _idle(get, variant) or _no_gap(gain, "humanline is not better than offline")
        return _more_than_half(sync - offline, gain, untested)

    return contrast


def where_clipped(first: str, second: str, clips: str) -> Callable[[Get], Contrast]:
    """Score, the first above the second, where a third variant, one of the two, clips."""

    def contrast(get: Get) -> Contrast:
        difference = get(first, "score") - get(second, "score")
        return Contrast(difference, [difference], _idle(get, clips))

    return contrast


def clip_range(get: Get) -> Contrast:
    """Every clip range within the margin of the default."""
    default = "offline+humanline k=16"
    differences = [get(name, "score") - get(default, "score") for name in RANGES]
    largest = max(differences, key=lambda d: abs(float(d.mean())))
    within = [MARGIN + sign * d for d in differences for sign in (1, -1)]
    return Contrast(largest, within, _idle(get, default))


def slower(get: Get) -> Contrast:
    """Syncing every step above k = 64 after a quarter of the run."""
    difference = get("offline+humanline k=1", "early") - get("offline+humanline k=64", "early")
    return Contrast(difference, [difference])


def stabler(variant: str) -> Callable[[Get], Contrast]:
    """Syncing every step falls further from its best than k = 64, where either falls."""

    def contrast(get: Get) -> Contrast:
        often, seldom = get(f"{variant} k=1", "drop"), get(f"{variant} k=64", "drop")
        falls = max(float(often.mean()), float(seldom.mean())) > FALLEN
        difference = often - seldom
        return Contrast(difference, [difference], "" if falls else f"neither falls by more than {FALLEN:g}")

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
    untested = _no_gap(often - seldom, "sampling less often does no harm without humanline")
    return Contrast(human - often, [human - often + MARGIN], untested)  # so that it is better than seldom, too


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


def as_good(first: str, second: str) -> Callable[[Get], Contrast]:
    """Score, the first not below the second by the margin, where both clip or detach."""

    def contrast(get: Get) -> Contrast:
        difference = get(first, "score") - get(second, "score")
        return Contrast(difference, [difference + MARGIN], _idle(get, first, second))

    return contrast


def other_seeds(variant: str) -> Callable[[Get], Contrast]:
    """Score of the even seeds above that of the odd ones, in pairs: a difference without a cause."""

    def contrast(get: Get) -> Contrast:
        values = get(variant, "score")
        pairs = len(values) // 2
        difference = values[: 2 * pairs : 2] - values[1 : 2 * pairs : 2]
        return Contrast(difference, [difference])

    return contrast


RANGES = tuple(f"offline+humanline k=16 clip={low:g},{high:g}" for low, high in CLIP_RANGES)
QUARTILES = tuple(f"offline+humanline quartile={q}" for q in (1, 2, 3, 4))
