"""What a fitted capacity means for training: tests, rules and clip ranges, each a labelled choice of modelling."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from humanline import _checks
from humanline.fit.rejection_map import DISTANCES, NEAR, NearestRange, OneTest, RejectionMap, SideMap, TwoTests
from humanline.fit.result import Fit
from humanline.theory import (
    BetaShape,
    BetaTest,
    Capacity,
    CapacityDistances,
    Identity,
    LinearInLogOdds,
    PowerWeight,
    TverskyKahneman,
    accepted_law,
    implied_capacity,
)
from humanline.theory.capacity.tversky_kahneman import MONOTONE_GAMMA
from humanline.theory.clip_distances import ClipDistances, clip_distances
from humanline.theory.normal_ratios import (
    CUT,
    Rule,
    human_distances,
    humanline_sampler,
    largest_ratios,
    nearest_rule,
    pieces,
)

#: The search for two tests: atoms, steps of the simplex, and how much more than asked has to be accepted there, so that
#: with more atoms it still is.
_SEARCH_ATOMS, _SEARCH_STEPS = 500, 120
_ROOM = 1.01
_ATOMS = 4000
#: Pieces .01 standard deviations wide, so that ends of ranges mostly lie between two.
_CLIP_ATOMS = 2400
#: Ends of ranges that are tried, in spreads.
_ENDS = np.append(np.arange(41) / 10, math.inf)
_PROPOSALS = ("ref", "policy")
#: Where the search for the nearest capacity of Tversky and Kahneman looks first: a convex one may need a large gamma.
_GAMMAS = np.geomspace(MONOTONE_GAMMA * (1 + 1e-12), 100.0, 200)


def map_to_rejection(
    fitted: Fit | Capacity | Mapping[str, Capacity],
    *,
    spread: float = 1.0,
    proposal: str = "ref",
    least_accepted: float = 0.0035,
    cut: float = CUT,
    seeds: Sequence[int] = (0, 1),
    two_tests: bool = True,
    errors: str | None = None,
    confidence: float = 0.95,
) -> RejectionMap:
    """Say what fitted capacities mean for the rejection and the clipping of tokens, as labelled choices of modelling.

    Parameters
    ----------
    fitted : Fit, or a capacity (of gains), or a mapping from "gain" and "loss" to capacities
        Of a fit the sides that its data have.
    spread : float > 0
        Standard deviation of the log-ratio of a token, nats.
    proposal : "ref" or "policy"
        Who proposes the tokens.
    least_accepted : float in [0, 1)
        Share of the proposals that the rule of two tests has to accept.
    cut : float > 0
        Where outcomes end for tests with bounds, standard deviations from the policy's mean.
    seeds : sequence of int
        A search for the two tests from each.
    two_tests : bool
        Whether to search, which takes seconds for each capacity and seed.
    errors, confidence
        Of a fit's gamma: its interval is ``fit.interval(name, kind=errors, confidence=confidence)``.

    Returns
    -------
    RejectionMap

    Raises
    ------
    ValueError
        If there is no capacity, a side is unknown, a capacity is not monotone, the proposal is unknown, there is no
        seed, or a number is out of its range.

    Notes
    -----
    Source: arXiv 2509.24207, Prop. 4.1, Def. 4.2, Thm 4.3 and Fig. 2; how they are brought together is ours.

    Prop. 4.1 holds for the exponent with which a capacity begins at small probabilities. Families that begin otherwise
    get the gamma of the nearest capacity of Tversky and Kahneman, and the result says so.

    Examples
    --------
    >>> found = map_to_rejection(TverskyKahneman(0.61), two_tests=False)
    >>> found.sides["gain"].ranges["kl"].closer
    False
    """
    capacities = _capacities(fitted)
    size, ending = _checks.positive("spread", spread), _checks.positive("cut", cut)
    _checks.one_of("proposal", proposal, _PROPOSALS)
    least = _checks.non_negative("least_accepted", least_accepted)
    if least >= 1:
        raise _checks.fail("least_accepted", "be < 1", least_accepted)
    if two_tests and not len(seeds):
        raise _checks.fail("seeds", "hold at least one", seeds)
    tilt = None if proposal == "ref" else 0.0
    plain = _undistorted(size, tilt)
    sides = {}
    for side, capacity in capacities.items():
        grid = _grid(capacity, side, size, tilt)
        sides[side] = SideMap(
            side=side,
            capacity=capacity,
            on_policy=_kept(capacity, side, 0.0),
            proposals=_kept(capacity, side, -size if tilt is None else tilt),
            one_test=_one_test(capacity, side, _gamma_interval(fitted, side, errors, confidence), size, tilt, ending),
            two_tests=_two_tests(capacity, side, size, tilt, ending, least, seeds) if two_tests else None,
            grid=grid,
            ranges={name: _nearest(name, grid, plain) for name in DISTANCES},
        )
    separable = isinstance(fitted, Fit) and fitted.model.weights == "separable"
    return RejectionMap(sides, size, proposal, ending, tuple(seeds), _stays(fitted), separable, confidence)


def _gamma_interval(fitted: Any, side: str, errors: str | None, confidence: float) -> tuple[float, float] | None:
    if not isinstance(fitted, Fit) or (source := fitted.model.source(f"{side}.gamma")) not in fitted.names:
        return None
    found = fitted.interval(source, kind=errors, confidence=confidence)
    return (found.low, found.high) if math.isfinite(found.low + found.high) else None


def gamma_of(capacity: Capacity) -> tuple[float, str]:
    """Return the gamma of Prop. 4.1 for a capacity, and where it comes from.

    Returns
    -------
    (float, str)
        Its own gamma, or the exponent with which it begins at small probabilities; where there is none, the gamma of
        the capacity of Tversky and Kahneman whose largest difference is least.
    """
    if isinstance(capacity, TverskyKahneman):
        return float(capacity.gamma), "the capacity's own gamma"
    exponents = {LinearInLogOdds: "slope", PowerWeight: "exponent"}
    for family, name in exponents.items():
        if isinstance(capacity, family):
            return float(getattr(capacity, name)), f"its {name}, the exponent at small probabilities"
    if isinstance(capacity, Identity):
        return 1.0, "probabilities as they are"
    from scipy.optimize import minimize_scalar

    prob = np.linspace(0.001, 0.999, 999)
    perceived = np.asarray(capacity(prob))

    def difference(gamma: float) -> float:
        return float(np.abs(TverskyKahneman(gamma)(prob) - perceived).max())

    near = int(np.argmin([difference(gamma) for gamma in _GAMMAS]))
    ends = _GAMMAS[max(near - 1, 0)], _GAMMAS[min(near + 1, len(_GAMMAS) - 1)]
    found = minimize_scalar(difference, bounds=ends, method="bounded")
    words = "of the nearest capacity of Tversky and Kahneman, since this family begins with no exponent"
    return float(found.x), f"{words} (largest difference {float(found.fun):.3f})"


def _capacities(fitted: Any) -> dict[str, Capacity]:
    if isinstance(fitted, Fit):
        table = fitted.choices.prepared(fitted.model.weights, fitted.likelihood.reference_point)
        used = {"gain": table.gains.outcome.size > 0, "loss": table.losses.outcome.size > 0}
        return {side: getattr(fitted, side) for side in used if used[side]}
    found = dict(fitted) if isinstance(fitted, Mapping) else {"gain": fitted}
    if not found:
        raise _checks.fail("fitted", "hold a capacity", fitted)
    for side, capacity in found.items():
        _checks.one_of("side", side, ("gain", "loss"))
        if not callable(capacity):
            raise _checks.wrong_kind(side, "be a capacity", capacity)
    return found


def _kept(capacity: Capacity, side: str, tilt: float) -> CapacityDistances:
    """Return the distances of a tilted sampler of which everything is kept."""
    policy, sampler = pieces(0.0, _ATOMS), pieces(tilt, _ATOMS)
    return human_distances(implied_capacity(np.arange(len(policy)), policy, sampler), capacity, side)


def _one_test(
    capacity: Any, side: str, interval: tuple[float, float] | None, spread: float, tilt: Any, cut: float
) -> OneTest:
    gamma, source = gamma_of(capacity)
    bound = largest_ratios(spread, cut)[0]
    policy, ref = (pieces(each, _ATOMS, cut=cut) for each in (0.0, -spread))
    proposal = ref if tilt is None else pieces(tilt, _ATOMS, cut=cut)
    law = accepted_law(policy, ref, BetaTest(BetaShape(gamma, 1), bound), proposal=proposal)
    distances = human_distances(implied_capacity(np.arange(len(policy)), policy, law.probs), capacity, side)
    rate = float(law.acceptance_rate)
    return OneTest(gamma, source, interval, bound, rate, float(distances.sup), float(distances.kl))


def _two_tests(
    capacity: Capacity, side: str, spread: float, tilt: Any, cut: float, least: float, seeds: Sequence[int]
) -> TwoTests:
    found: list[tuple[Rule, float]] = [
        nearest_rule(
            capacity, side=side, cut=cut, least_accepted=min(_ROOM * least, 1.0), spread=spread, proposal_tilt=tilt,
            seeds=[seed], atoms=_SEARCH_ATOMS, steps=_SEARCH_STEPS,
        )
        for seed in seeds
    ]  # fmt: skip
    rule = min(found, key=lambda each: each[1])[0]
    implied, accepted = humanline_sampler(rule, spread=spread, proposal_tilt=tilt, atoms=_ATOMS)
    distances = human_distances(implied, capacity, side)
    searches = tuple(float(value) for _, value in found)
    return TwoTests(rule.at(spread), least, accepted, float(distances.sup), float(distances.kl), searches)


@functools.lru_cache(maxsize=4)
def _undistorted(spread: float, tilt: float | None) -> ClipDistances:
    return _grid(Identity(), "gain", spread, tilt)


def _grid(capacity: Any, side: str, spread: float, tilt: float | None) -> ClipDistances:
    ends = _ENDS * spread
    return clip_distances(capacity, -ends, ends, side=side, spread=spread, proposal_tilt=tilt, atoms=_CLIP_ATOMS)


def _nearest(name: str, grid: ClipDistances, plain: ClipDistances) -> NearestRange:
    distance = getattr(grid.distances, name)
    low, high, at = _least(grid, distance)
    as_near = distance <= at + NEAR
    rows, columns = grid.low[as_near.any(1)], grid.high[as_near.any(0)]
    known = np.where(np.isnan(distance), np.inf, distance)
    widening = known[1:] <= known[:-1] + 1e-12, known[:, 1:] <= known[:, :-1] + 1e-12
    return NearestRange(
        distance=name,
        low=low,
        high=high,
        at=at,
        without=float(distance[-1, -1]),
        undistorted=_least(plain, getattr(plain.distances, name))[:2],
        as_near=((float(rows.min()), float(rows.max())), (float(columns.min()), float(columns.max()))),
        monotone=all(bool(each.all()) for each in widening),
    )


def _least(grid: ClipDistances, distance: NDArray[np.float64]) -> tuple[float, float, float]:
    """Return the range of least distance, the widest of several (up to rounding), and that distance."""
    least = float(np.nanmin(distance))
    places = np.argwhere(distance <= least + 1e-9)
    i, j = max(places.tolist(), key=lambda place: (place[0] + place[1], place[0]))
    return float(grid.low[i]), float(grid.high[j]), float(distance[i, j])


def _stays(fitted: Any) -> tuple[tuple[str, float, str], ...]:
    if not isinstance(fitted, Fit):
        return ()
    values, source = fitted.parameters, fitted.model.source
    equal = source("loss_curvature") == source("curvature")
    equal |= values["curvature"] == values["loss_curvature"]
    bends = "how value bends over amounts of money, on their own scale: an amount is no log-ratio"
    why = {
        "curvature": bends,
        "loss_curvature": bends,
        "loss_aversion": "has no unit, as both curvatures are equal, but weighs money lost against money won"
        if equal and fitted.model.value == "power"
        else "depends on the unit of money, as the curvatures of gains and losses differ or are per unit of money",
        "sensitivity": "is per unit of utility of money (contextual: of the range of utilities in a problem)",
        "noise": "is in the unit of money",
        "lapse": "is of people answering questions, not of tokens",
    }
    return tuple((name, float(values[name]), why[name]) for name in values if name in why)
