"""Log-ratios that are normal: what tilted samplers and rules of rejection make of the policy's law.

Under the policy the log-ratio is ``z ~ N(spread**2 / 2, spread**2)``, under the reference the mean is
``-spread**2 / 2``: a concrete model of Figure 2, which names none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from humanline import _checks
from humanline.theory._special import ndtr
from humanline.theory.accepted import accepted_law
from humanline.theory.beta import BetaShape
from humanline.theory.capacity.family import Capacity
from humanline.theory.rejection import BetaRejection
from humanline.theory.weighting import CapacityDistances, ImpliedCapacity, decision_weights, implied_capacity

#: Where the outermost pieces start: standard deviations from the policy's mean.
REACH = 12.0
#: Pieces of equal width in z.
ATOMS = 20_000
#: Where the outcomes end for rules that satisfy Def. 4.2, in standard deviations from the policy's mean. The definition
#: asks for bounds that no ratio exceeds, and the ratios of two normal laws have none.
CUT = 4.0
SIDES = ("gain", "loss")


@dataclass(frozen=True)
class Rule:
    """Hold a rule that rejects by two Beta tests, and where the outcomes end that it is applied to.

    Parameters
    ----------
    policy, ref : BetaShape
    cut : float > 0 or None
        Standard deviations from the policy's mean where outcomes end. None: they end nowhere, and whatever the bounds,
        there are ratios beyond them, which always pass. That is not Def. 4.2.
    bounds : (float, float), optional
        M_P and M_R; the largest ratios by default. Needed if `cut` is None.
    rule : "either" or "both"
        As in `BetaRejection`; Def. 4.2 has ``either``.
    """

    policy: BetaShape
    ref: BetaShape
    cut: float | None = CUT
    bounds: tuple[float, float] | None = None
    rule: str = "either"

    def at(self, spread: float) -> BetaRejection:
        """Return the rule with its bounds, at a standard deviation of the log-ratio in nats."""
        if self.bounds is not None:
            policy_bound, ref_bound = self.bounds
        elif self.cut is not None:
            policy_bound, ref_bound = largest_ratios(spread, self.cut)
        else:
            raise _checks.fail("bounds", "be given where outcomes end nowhere", self.bounds)
        return BetaRejection(
            self.policy, self.ref, policy_ratio_bound=policy_bound, ref_ratio_bound=ref_bound, rule=self.rule
        )


def pieces(tilt: ArrayLike, atoms: int, *, cut: float | None = None) -> NDArray[np.float64]:
    """Return the probabilities of pieces of a tilted normal law, of equal width in z.

    ``N(tilt, 1)``, which is the policy's z after standardising at tilt 0 and a sampler proportional to
    ``policy exp(eta z)`` at ``tilt = eta spread``

    Parameters
    ----------
    tilt : array or scalar, any shape
        Standard deviations of z by which the sampler is better than the policy.
    atoms : int
        Pieces between -12 and 12 standard deviations; the two outside are added. With a cut, all pieces.
    cut : float > 0, optional
        Where the law ends, in standard deviations on both sides of 0; nowhere by default.

    Returns
    -------
    float64 array, the shape of `tilt` and then (atoms + 2,), or (atoms,) with a cut
    """
    reach = REACH if cut is None else cut
    inner = np.linspace(-reach, reach, atoms + 1)
    ends = np.concatenate([[-np.inf], inner, [np.inf]]) if cut is None else inner
    shifted = ends - np.asarray(tilt, dtype=np.float64)[..., None]
    probs = normal_between(shifted[..., :-1], shifted[..., 1:])
    return probs if cut is None else probs / probs.sum(-1, keepdims=True)


def normal_between(low: NDArray[np.float64], high: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the standard normal probability between ends, without cancellation in either tail."""
    return np.asarray(np.where(high <= 0, ndtr(high) - ndtr(low), ndtr(-low) - ndtr(-high)))


def largest_ratios(spread: float, cut: float = CUT) -> tuple[float, float]:
    """Return the suprema of policy / ref and of ref / policy for laws that end at a cut.

    ``exp(cut spread +- spread**2 / 2)``, corrected for what the two laws lose beyond the cut
    """
    inside = [float(ndtr(cut - tilt) - ndtr(-cut - tilt)) for tilt in (0.0, -spread)]
    shift = spread**2 / 2 + math.log(inside[1] / inside[0])
    return math.exp(cut * spread + shift), math.exp(cut * spread - shift)


def sampler(tilt: ArrayLike, *, atoms: int = ATOMS) -> ImpliedCapacity:
    """Return tilted samplers as distortions of the policy's probabilities.

    Under the policy the log-ratio is ``z ~ N(spread**2 / 2, spread**2)``, under ``policy exp(eta z)`` (normalised) it
    is shifted by ``eta spread**2``; the reference is eta = -1. The curve is ``y = Phi(Phi**-1(x) - tilt)``.

    Parameters
    ----------
    tilt : array or scalar
        ``eta spread``.
    atoms : int
        As in `pieces`.

    Returns
    -------
    ImpliedCapacity

    Notes
    -----
    Source: arXiv 2509.24207, Fig. 2, which names no model; this one is ours.

    Examples
    --------
    >>> sampler([0.0, -1.0], atoms=2000).curve(0.5).round(6).tolist()
    [0.5, 0.841345]
    """
    return implied_capacity(np.arange(atoms + 2), pieces(0.0, atoms), pieces(tilt, atoms))


def humanline_sampler(
    rule: Rule, *, spread: float = 1.0, proposal_tilt: float | None = None, atoms: int = ATOMS
) -> tuple[ImpliedCapacity, float]:
    """Return the law that rejection leaves of proposals, as a distortion of the policy, and the share accepted.

    Parameters
    ----------
    rule : Rule
        Where outcomes end, a ratio beyond its bound is an error; where they do not, it always passes.
    spread : float > 0
        Standard deviation of the log-ratio, nats.
    proposal_tilt : float, optional
        Of the law that proposes: ``-spread``, the reference, by default; 0 is the policy itself.
    atoms : int
        As in `pieces`.

    Returns
    -------
    (ImpliedCapacity, float)

    Raises
    ------
    ValueError
        If the spread is not > 0 or not finite.

    Notes
    -----
    Source: arXiv 2509.24207, Fig. 2 (green) and Def. 4.2.
    """
    policy, ref = (pieces(tilt, atoms, cut=rule.cut) for tilt in (0.0, -_checks.positive("spread", spread)))
    proposal = None if proposal_tilt is None else pieces(proposal_tilt, atoms, cut=rule.cut)
    # not truncated, a ratio beyond a bound is an error
    law = accepted_law(policy, ref, rule.at(spread), proposal=proposal, truncate=rule.cut is None)
    return implied_capacity(np.arange(policy.size), policy, law.probs), float(law.acceptance_rate)


def beyond_a_bound(rule: Rule, *, spread: float = 1.0, atoms: int = ATOMS) -> tuple[float, float]:
    """Return the share of the reference's and of the policy's outcomes whose ratio exceeds a bound of the rule."""
    policy, ref = (pieces(tilt, atoms, cut=rule.cut) for tilt in (0.0, -spread))
    rejection, log_ratio = rule.at(spread), np.log(policy / ref)
    above, below = math.log(rejection.policy_ratio_bound), -math.log(rejection.ref_ratio_bound)
    outside = (log_ratio > above) | (log_ratio < below)
    return float(ref[outside].sum()), float(policy[outside].sum())


def side_weights(policy: NDArray[np.float64], capacity: Capacity, side: str = "gain") -> NDArray[np.float64]:
    """Return a human's decision weights of pieces that stand from worst to best: of gains alone, or of losses alone."""
    _checks.one_of("side", side, SIDES)
    zero = len(policy) if side == "loss" else 0
    return decision_weights(
        np.arange(len(policy)), policy, gain=capacity, loss=capacity, reference_point=zero, presorted=True
    )


def human_distances(implied: ImpliedCapacity, capacity: Capacity, side: str = "gain") -> CapacityDistances:
    """Return how far samplers are from a human's decision weights, all outcomes being gains, or all losses."""
    _checks.one_of("side", side, SIDES)
    beyond = float(implied.outcomes[-1]) + 1 if side == "loss" else float(implied.outcomes[0])
    return implied.distances(gain=capacity, loss=capacity if side == "loss" else None, reference_point=beyond)


def nearest_rule(
    capacity: Capacity,
    *,
    side: str = "gain",
    rule: str = "either",
    cut: float | None = CUT,
    least_b: float = 0.0,
    least_accepted: float = 0.0,
    spread: float = 1.0,
    proposal_tilt: float | None = None,
    seeds: Sequence[int] = (0,),
    steps: int = 500,
    atoms: int = 1500,
) -> tuple[Rule, float]:
    """Search for the rule whose accepted law has the smallest largest difference from the human curve.

    Parameters
    ----------
    capacity : Capacity
        The human one.
    side : "gain" or "loss"
        Whether outcomes are weighed as gains, from the best down, or as losses, from the worst up.
    rule : "either" or "both"
    cut : float > 0 or None
        As in `Rule`: the bounds are the largest ratios, and only shapes are searched for. With None bounds are searched
        for too, wherever they lie.
    least_b : float >= 0
        Lower limit of both shapes' b.
    least_accepted : float in [0, 1)
        Share of the proposals that has to be accepted.
    spread : float > 0
        Of the log-ratio, nats.
    proposal_tilt : float, optional
        As in `humanline_sampler`.
    seeds : sequence of int
        One search by Nelder and Mead, from a random start, for each. Local: more may find a better one.
    steps : int
        Of the simplex; each search begins anew twice, which frees a simplex that has collapsed.
    atoms : int
        As in `pieces`.

    Returns
    -------
    (Rule, float)
        The best rule found, and its largest difference at this number of atoms.

    Raises
    ------
    ValueError
        If there is no seed, or the side is unknown.
    """
    from scipy.optimize import minimize

    policy, ref = (pieces(tilt, atoms, cut=cut) for tilt in (0.0, -_checks.positive("spread", spread)))
    proposal = ref if proposal_tilt is None else pieces(proposal_tilt, atoms, cut=cut)
    weights, log_ratio = side_weights(policy, capacity, side), np.log(policy) - np.log(ref)

    def decode(v: NDArray[np.float64]) -> Rule:
        e = np.exp(np.clip(v, -12, 12))
        shapes = BetaShape(e[0], least_b + e[1]), BetaShape(e[2], least_b + e[3])
        return Rule(*shapes, cut=cut, bounds=(1 + e[4], 1 + e[5]) if cut is None else None, rule=rule)

    def loss(v: NDArray[np.float64]) -> float:
        # as `humanline_sampler` does, without its checks
        kept = proposal * decode(v).at(spread).acceptance_probability(log_ratio)
        accepted = float(kept.sum())
        if accepted <= 0:
            return 1.0
        missing = max(0.0, math.log(least_accepted / accepted)) if least_accepted > 0 else 0.0
        return float(np.abs(np.cumsum(weights - kept / accepted)).max()) + 0.3 * missing

    best: tuple[float, NDArray[np.float64]] | None = None
    for seed in seeds:
        centre = [0, 0, 0, 0, 1.5, 1.5] if cut is None else [-0.3, -1.5, -1.5, -1.5]
        start = np.random.default_rng(seed).normal(centre, 1.2)
        for _ in range(3):
            options = {"maxiter": steps, "xatol": 1e-5, "fatol": 1e-8, "adaptive": True}
            found = minimize(loss, start, method="Nelder-Mead", options=options)
            start = found.x
        if best is None or found.fun < best[0]:
            best = float(found.fun), found.x
    if best is None:
        raise _checks.fail("seeds", "hold at least one", seeds)
    return decode(best[1]), best[0]
