"""On which factor of a study something depends most, corrected for how many levels each factor has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from humanline.stats import holm

#: Random orders of the outcomes that the gain of a factor is held against.
ORDERS = 9999
#: Gains closer than this (nats) tie; they are sums of a few logarithms.
_TIE = 1e-12


@dataclass(frozen=True)
class Dependence:
    """Hold how much one factor tells about a yes or no.

    Parameters
    ----------
    name : str
    levels : dict from a level to (int, int)
        How often yes, of how many.
    share : float <= 1
        Share of the entropy of yes or no that the level removes beyond what any factor with as many settings at as many
        levels removes by chance: 0 as chance, 1 all of it.
    p : float
        How often chance removes as much, after Holm's correction over the factors.
    """

    name: str
    levels: dict[str, tuple[int, int]]
    share: float
    p: float

    def __str__(self) -> str:
        return f"{self.name}: " + ", ".join(f"{level} {yes}/{total}" for level, (yes, total) in self.levels.items())


def dependences(outcomes: Sequence[bool], factors: Mapping[str, Sequence[str]], *, seed: int = 0) -> list[Dependence]:
    """Return what each factor tells about the outcomes, the most telling first.

    With H the entropy of the outcomes, I what knowing the level takes away from it and E the mean of I over random
    orders of the outcomes: ``share = (I - E) / (H - E)``, and p the share of orders whose I is as large.

    Parameters
    ----------
    outcomes : sequence of bool
    factors : mapping from a name to the level of each outcome
        Factors of one level tell nothing and are left out.
    seed : int >= 0

    Returns
    -------
    list of Dependence
        By share; empty if the outcomes are all alike.

    Notes
    -----
    Source: Vinh, Epps and Bailey, Information theoretic measures for clusterings comparison, Journal of Machine
    Learning Research 11 (2010): without the correction a factor of more levels tells more by chance alone.
    """
    yes = np.asarray(outcomes, dtype=float)
    entropy = float(_entropy(yes.mean())) if len(yes) else 0.0
    if entropy == 0:
        return []
    rng = np.random.default_rng(seed)
    orders = rng.permuted(np.tile(yes, (ORDERS, 1)), axis=1)
    found = []
    for name, given in factors.items():
        places = {level: place for place, level in enumerate(dict.fromkeys(given))}
        if len(places) < 2:
            continue
        member = np.eye(len(places))[[places[level] for level in given]]
        gain, by_chance = (float(_gains(yes[None], member)[0]), _gains(orders, member))
        mean = float(by_chance.mean())
        share = (gain - mean) / (entropy - mean) if entropy - mean > _TIE else 0.0
        counts = zip((yes @ member).tolist(), member.sum(0).tolist(), strict=True)
        levels = {level: (round(a), round(b)) for level, (a, b) in zip(places, counts, strict=True)}
        p = (1 + int((by_chance >= gain - _TIE).sum())) / (1 + ORDERS)
        found.append(Dependence(name, levels, share, p))
    adjusted = holm([each.p for each in found]).tolist() if found else []
    corrected = [Dependence(f.name, f.levels, f.share, p) for f, p in zip(found, adjusted, strict=True)]
    return sorted(corrected, key=lambda each: -each.share)


def _gains(outcomes: NDArray[np.float64], member: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the entropy (nats) that levels take from each row of outcomes; `member` has a column for each level."""
    sizes = member.sum(0)
    left = (_entropy(outcomes @ member / sizes) * sizes).sum(1) / sizes.sum()
    gains: NDArray[np.float64] = _entropy(outcomes.mean(1)) - left
    return gains


def _entropy(share: NDArray[np.float64]) -> NDArray[np.float64]:
    both = np.stack([np.asarray(share, float), 1 - np.asarray(share, float)])
    entropy: NDArray[np.float64] = -(both * np.log(np.where(both > 0, both, 1.0))).sum(0)
    return entropy
