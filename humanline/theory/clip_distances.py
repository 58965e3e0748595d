"""How far what clip ranges keep of normal log-ratios is from a human's decision weights."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from humanline import _checks
from humanline.theory.capacity.family import Capacity
from humanline.theory.normal_ratios import REACH, human_distances, normal_between, pieces
from humanline.theory.weighting import CapacityDistances, ImpliedCapacity


@dataclass(frozen=True, eq=False)
class ClipDistances:
    """Hold how far what clip ranges keep is from a human's decision weights; `clip_distances` makes it.

    Parameters
    ----------
    low, high : (L,), (H,) arrays
        Ends of the ranges, nats; infinite where there is none.
    distances : CapacityDistances
        (L, H) arrays; nan where the range keeps nothing.
    kept : (L, H) array
        Share of the proposals that is kept.
    """

    low: NDArray[np.float64]
    high: NDArray[np.float64]
    distances: CapacityDistances
    kept: NDArray[np.float64]


def clip_distances(
    capacity: Capacity,
    low: ArrayLike,
    high: ArrayLike,
    *,
    side: str = "gain",
    spread: float = 1.0,
    proposal_tilt: float | None = None,
    atoms: int = 2000,
) -> ClipDistances:
    """Return how far the law of what each clip range keeps is from a human's decision weights of the policy's.

    The law is ``proposal(z) / P(low <= z <= high)`` in the range: the limit of Thm 4.3, which detaches the rest.

    Parameters
    ----------
    capacity : Capacity
    low, high : (L,), (H,) arrays, low <= 0 <= high
        Nats; may be infinite.
    side, spread, proposal_tilt
        As in `nearest_rule`.
    atoms : int
        As in `pieces`. A piece that an end cuts counts with the part inside.

    Returns
    -------
    ClipDistances

    Raises
    ------
    ValueError
        If an end has the wrong sign or is nan, or the spread is not > 0.

    Notes
    -----
    Source: arXiv 2509.24207, section 5.1, Thm 4.3 and Fig. 2. No constant of the capacity is left in the law.

    Examples
    --------
    >>> from humanline.theory import TverskyKahneman
    >>> found = clip_distances(TverskyKahneman(0.61), [-np.inf], [1.5, np.inf], proposal_tilt=0.0)
    >>> found.distances.sup.round(3).tolist(), found.distances.kl.round(3).tolist(), found.kept.round(3).tolist()
    ([[0.233, 0.196]], [[inf, 0.339]], [[0.841, 1.0]])
    """
    size = _checks.positive("spread", spread)
    ends = [np.asarray(end, dtype=np.float64) for end in (low, high)]
    _checks.no_element("low", "be <= 0", ~(ends[0] <= 0), ends[0])
    _checks.no_element("high", "be >= 0", ~(ends[1] >= 0), ends[1])
    policy = pieces(0.0, atoms)
    tilt = -size if proposal_tilt is None else proposal_tilt
    # in standard deviations from the policy's mean
    cut_low, cut_high = ((end - size**2 / 2) / size for end in ends)
    edges = np.concatenate([[-np.inf], np.linspace(-REACH, REACH, atoms + 1), [np.inf]])
    places = np.arange(len(policy), dtype=np.float64)
    found: list[CapacityDistances] = []
    kept = np.zeros((len(ends[0]), len(ends[1])))
    for row, least in enumerate(cut_low):
        inside = np.clip(edges, least, np.maximum(cut_high, least)[:, None])
        probs = normal_between(inside[:, :-1] - tilt, inside[:, 1:] - tilt)
        kept[row] = probs.sum(-1)
        something = kept[row] > 0
        law = probs[something] / kept[row, something, None]
        implied = ImpliedCapacity(places, policy, law)  # its outcomes are distinct and sorted
        some = vars(human_distances(implied, capacity, side))
        every = {name: np.full(len(ends[1]), np.nan) for name in some}
        for name, values in some.items():
            every[name][something] = values
        found.append(CapacityDistances(**every))
    stacked = {name: np.stack([vars(each)[name] for each in found]) for name in vars(found[0])}
    return ClipDistances(ends[0], ends[1], CapacityDistances(**stacked), kept)
