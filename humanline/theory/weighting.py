"""Decision weights (Definition 3.2), and how far a sampler is from them: the curves of Figure 2."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from humanline import _checks
from humanline.theory._arrays import float64, last_axis, law_total
from humanline.theory._special import kl_div
from humanline.theory.capacity.family import Capacity

#: How near to 1 a capacity can be too steep for a probability that was summed up from 0.
_STEEP = 0.1
#: Above minus this a negative weight of a capacity of unknown shape is rounding, and becomes 0.
NEGATIVE_TOLERANCE = 1e-12


def decision_weights(
    outcomes: ArrayLike,
    probs: ArrayLike,
    *,
    gain: Capacity,
    loss: Capacity | None = None,
    reference_point: float = 0.0,
    allow_negative: bool = False,
    presorted: bool = False,
) -> NDArray[np.float64]:
    """Weigh the outcomes of a prospect: gains from the best down, losses from the worst up.

    For a gain ``omega(z) = Omega+(P(Z >= z)) - Omega+(P(Z > z))``, and for a loss
    ``omega(z) = Omega-(P(Z <= z)) - Omega-(P(Z < z))``.

    Parameters
    ----------
    outcomes : (..., N) array
        In any order, in the unit of the reference point.
    probs : (..., N) array, >= 0
        Sums to 1 along the last axis within 1e-6, or within what rounding in its own dtype can explain if that is more
        (.0076 for 128 256 entries in float32), and is normalised. Either of the two arrays may be (N,) and is then
        shared by all prospects of the other; nothing else is broadcast.
    gain, loss : Capacity
        Applied to gains (``outcome >= reference_point``) and to losses; `loss` may be left out if there are none.
    reference_point : float
    allow_negative : bool
        Return the negative weights that a capacity which is not monotone gives.
    presorted : bool
        The outcomes of each prospect already stand from worst to best, so that nothing is sorted (or put back).

    Returns
    -------
    (..., N) numpy float64 array
        For torch tensors too.
        In the order of `outcomes`. The weights of the gains sum to ``Omega+(P(gain))`` and those of the losses to
        ``Omega-(P(loss))``: in all they need not sum to 1.

    Raises
    ------
    ValueError
        If the shapes differ, a prospect is empty, a number is not finite, a probability is negative, probabilities do
        not sum to 1, or a capacity does not map 0 to 0 and 1 to 1; if there are losses and no `loss`; if `presorted`
        and an outcome is below the one before it; and, unless `allow_negative`, if a capacity says that it is not
        monotone or a weight is negative.
    TypeError
        If a capacity is not callable, or a tensor requires a gradient, which the result could not carry on.

    Notes
    -----
    Source: arXiv 2509.24207, Eq. 4. The paper gives gains only and takes outcomes to be distinct.

    Of equal outcomes only the summed weight is defined: it is shared in proportion to their probabilities, so that
    splitting an outcome changes nothing. An outcome of probability 0 has weight 0.

    Capacities are infinitely steep at 0 and 1. So a cumulative probability above .9 is taken as 1 minus the sum of the
    rest, and its log is passed on (to capacities with a ``log``): a sum that rounding leaves at ``1 - 2**-53`` counts
    as 1, whose weight it would miss by 5.5e-5 at gamma .3.
    The result does not depend on the order of the outcomes, to the last bit (if `presorted`, up to rounding: what ties
    weigh then depends on their order).

    The time is mostly that of sorting and of passes over the arrays: 5 to 20 times that of N capacity values where
    outcomes are distinct (5 to 12 times if `presorted`), 25 to 55 times where there are ties, as measured on one core
    from 10^4 outcomes on.

    Examples
    --------
    >>> from humanline.theory import TverskyKahneman
    >>> gain, loss = TverskyKahneman(0.61), TverskyKahneman(0.69)
    >>> decision_weights([36, 25, -9, -16], [0.7, 0.1, 0.1, 0.1], gain=gain, loss=loss).round(5).tolist()
    [0.53382, 0.07362, 0.08688, 0.17015]
    """
    z0 = _checks.finite("reference_point", reference_point)
    for name, capacity in (("gain", gain), ("loss", gain if loss is None else loss)):
        _check_capacity(name, capacity, allow_negative)
    z, p = last_axis(outcomes=outcomes, probs=probs)
    law_total("probs", probs, p)
    if loss is None:
        _checks.no_element("loss", "be given, since there are outcomes below the reference point", z < z0, z)
    if presorted:
        _checks.no_element(
            "outcomes", "not fall along the last axis, if presorted", z[..., 1:] < z[..., :-1], z[..., 1:]
        )
        weights = _sorted_weights(z, p, gain, loss, z0)
    else:
        order = _worst_to_best(z, p)
        sorted_weights = _sorted_weights(
            np.take_along_axis(z, order, -1), np.take_along_axis(p, order, -1), gain, loss, z0
        )
        weights = np.empty(z.shape)
        np.put_along_axis(weights, order, sorted_weights, -1)
    if not allow_negative:
        rule = "give no negative decision weight, unless allow_negative"
        _checks.no_element("gain, loss", rule, ~(weights >= -NEGATIVE_TOLERANCE), weights)
        weights = np.maximum(weights, 0.0)
    return weights


def separable_weights(
    outcomes: ArrayLike,
    probs: ArrayLike,
    *,
    gain: Capacity,
    loss: Capacity | None = None,
    reference_point: float = 0.0,
) -> NDArray[np.float64]:
    """Weigh each outcome of a prospect by its own probability: what prospect theory did before it was cumulative.

    ``omega(z) = Omega+(P(Z = z))`` for a gain, and ``Omega-(P(Z = z))`` for a loss.

    Parameters
    ----------
    outcomes, probs : (..., N) arrays
        As in `decision_weights`.
    gain, loss : Capacity
        As in `decision_weights`.
    reference_point : float

    Returns
    -------
    (..., N) numpy float64 array
        For torch tensors too. In the order of `outcomes`; the sum may be above or below 1.

    Raises
    ------
    ValueError
        As `decision_weights` does, but for weights, which are never negative here.
    TypeError
        As `decision_weights` does.

    Notes
    -----
    Source: Kahneman and Tversky (1979), Econometrica 47, 263-291, for comparison with Eq. 4 of arXiv 2509.24207. Their
    rules for prospects of gains only, whose least outcome is taken for sure, are left out: as used in comparisons of
    models, the form is that of Edwards (1954).

    Equal outcomes are one outcome, as their editing combines them: its weight is shared in proportion to their
    probabilities. Dominance can be violated: weights of many small probabilities can sum to more than 1.

    Examples
    --------
    >>> from humanline.theory import TverskyKahneman
    >>> separable_weights([3, 2, 1], [0.1, 0.1, 0.8], gain=TverskyKahneman(0.61)).round(5).tolist()
    [0.1863, 0.1863, 0.60744]
    """
    z0 = _checks.finite("reference_point", reference_point)
    for name, capacity in (("gain", gain), ("loss", gain if loss is None else loss)):
        _check_capacity(name, capacity, allow_negative=True)
    z, p = last_axis(outcomes=outcomes, probs=probs)
    p = p / law_total("probs", probs, p)
    if loss is None:
        _checks.no_element("loss", "be given, since there are outcomes below the reference point", z < z0, z)
    order = _worst_to_best(z, p)
    z, p = np.take_along_axis(z, order, -1), np.take_along_axis(p, order, -1)
    edge, change = np.ones((*p.shape[:-1], 1), dtype=bool), z[..., 1:] != z[..., :-1]
    first, last, tied = _tie_groups(np.concatenate([edge, change], -1), np.concatenate([change, edge], -1), p)
    zero = np.zeros(edge.shape)
    at_most = np.concatenate([zero, np.cumsum(p, -1)], -1)
    at_least = np.concatenate([np.cumsum(p[..., ::-1], -1)[..., ::-1], zero], -1)
    rest = np.take_along_axis(at_most, first, -1) + np.take_along_axis(at_least, last + 1, -1)
    sorted_weights = _perceived_by_sign(gain, loss, z >= z0, np.minimum(tied, 1.0), rest)
    sorted_weights = sorted_weights * np.divide(p, tied, out=np.zeros_like(p), where=tied > 0)
    weights = np.empty(z.shape)
    np.put_along_axis(weights, order, sorted_weights, -1)
    return weights


@dataclass(frozen=True, eq=False)
class CapacityDistances:
    """Hold how far a sampler, or each of several, is from decision weights w over the same outcomes.

    Parameters
    ----------
    sup : float or (...) array
        Largest absolute difference of the two curves of Figure 2, at their points.
    area : float or (...) array
        Area between the two curves, as straight lines between their points.
    l1 : float or (...) array
        ``sum |w - Q|``, the norm that bounds a utility gap.
    kl : float or (...) array
        ``KL(w || Q) - m + 1`` in nats, where m is the sum of the weights: ``KL(w || Q)`` if they sum to 1, and never
        negative. Infinite if the sampler never gives an outcome that has weight.
    reverse_kl : float or (...) array
        ``KL(Q || w) + m - 1`` in nats. Infinite if the sampler gives an outcome that has no weight.

    Notes
    -----
    Source: arXiv 2509.24207, Fig. 2 and Prop. 3.4. The paper draws the curves and gives no distance.
    """

    sup: Any
    area: Any
    l1: Any
    kl: Any
    reverse_kl: Any


@dataclass(frozen=True, eq=False)
class ImpliedCapacity:
    """Hold a sampler as a distortion of the policy's probabilities; `implied_capacity` makes it.

    As a function it is a capacity: from the policy's probability of the best outcomes to the sampler's. As the gains'
    capacity it makes `decision_weights` of the policy's probabilities return the sampler's.

    Parameters
    ----------
    outcomes : (K,) array
        Distinct, from least to most good.
    policy_probs : (K,) array
        The policy's probability of each.
    sampler_probs : (..., K) array
        The sampler's, or those of several samplers.

    Notes
    -----
    Source: arXiv 2509.24207, Fig. 2. Its axes run from the least good outcome up: `curve`, `policy_cumulative` and
    `sampler_cumulative`. A capacity runs from the best down, so ``capacity(p) = 1 - curve(1 - p)``.

    Between points both are straight, as ties share in proportion to the policy's probabilities. Where the curve jumps,
    at an outcome that the policy never gives, its value is the upper end of the jump, except at 0 and 1.

    Examples
    --------
    >>> implied = implied_capacity([1, 2, 3], [0.5, 0.3, 0.2], [0.25, 0.25, 0.5])
    >>> implied(0.2).tolist(), implied.curve(0.8).tolist()
    (0.5, 0.5)
    """

    outcomes: NDArray[np.float64]
    policy_probs: NDArray[np.float64]
    sampler_probs: NDArray[np.float64]

    @property
    def policy_cumulative(self) -> NDArray[np.float64]:
        """The policy's probability of the outcomes up to each, from 0 to 1: (K + 1,), Figure 2's x."""
        return _cumulative(self.policy_probs)

    @property
    def sampler_cumulative(self) -> NDArray[np.float64]:
        """The sampler's probability of the outcomes up to each, from 0 to 1: (..., K + 1), Figure 2's y."""
        return _cumulative(self.sampler_probs)

    @property
    def is_monotone(self) -> bool:
        """Whether the function never decreases: True."""
        return True

    def curve(self, prob: ArrayLike) -> Any:
        """Return Figure 2's y at any x.

        Parameters
        ----------
        prob : array or scalar in [0, 1], any shape
            Cumulative probability of the worst outcomes under the policy.

        Returns
        -------
        numpy float64 array, or numpy scalar for a number and one sampler
            The same under the sampler: the leading axes of `sampler_probs` and then those of `prob`. For torch tensors
            too.

        Raises
        ------
        ValueError
            If a probability lies outside [0, 1].
        """
        return _interpolate(_unit("prob", prob), self.policy_cumulative, self.sampler_cumulative, jump_up=True)

    def __call__(self, prob: ArrayLike) -> Any:
        """Return the sampler's probability of the best outcomes (shape and kind as in `curve`) from the policy's."""
        best_first = _cumulative(self.policy_probs[::-1]), _cumulative(self.sampler_probs[..., ::-1])
        return _interpolate(_unit("prob", prob), *best_first, jump_up=False)

    def distances(
        self,
        *,
        gain: Capacity,
        loss: Capacity | None = None,
        reference_point: float = 0.0,
        normalise: bool = False,
    ) -> CapacityDistances:
        """Return how far the sampler is from a human's decision weights of the policy's probabilities.

        Parameters
        ----------
        gain, loss : Capacity
            As in `decision_weights`; loss is needed only if an outcome is below the reference point.
        reference_point : float
        normalise : bool
            Divide the weights by their sum, which is not 1 when there are gains and losses: compare shapes only.

        Returns
        -------
        CapacityDistances
            Of numpy float64 arrays, or numpy scalars for one sampler.

        Raises
        ------
        ValueError
            As `decision_weights` does, or if there are losses and no `loss`.

        Examples
        --------
        >>> from humanline.theory import TverskyKahneman
        >>> on_policy = implied_capacity([1, 2, 3], [0.5, 0.3, 0.2], [0.5, 0.3, 0.2])
        >>> round(float(on_policy.distances(gain=TverskyKahneman(0.61)).kl), 6)
        0.053906
        """
        weights = decision_weights(
            self.outcomes,
            self.policy_probs,
            gain=gain,
            loss=loss,
            reference_point=reference_point,
            presorted=True,
        )
        if normalise:
            weights = weights / weights.sum()
        difference = np.cumsum(weights - self.sampler_probs, -1)
        start = np.concatenate([np.zeros((*difference.shape[:-1], 1)), difference[..., :-1]], -1)
        return CapacityDistances(
            sup=np.abs(difference).max(-1),
            area=(_mean_size(start, difference) * self.policy_probs).sum(-1),
            l1=np.abs(weights - self.sampler_probs).sum(-1),
            kl=unnormalised_divergence(weights, self.sampler_probs),
            reverse_kl=unnormalised_divergence(self.sampler_probs, weights),
        )


def implied_capacity(outcomes: ArrayLike, policy_probs: ArrayLike, sampler_probs: ArrayLike) -> ImpliedCapacity:
    """Return a sampler as a distortion of the policy's probabilities: the curves of Figure 2.

    From the least good outcome up, ``x = P_policy(Z <= z)`` and ``y = P_sampler(Z <= z)``.

    Parameters
    ----------
    outcomes : (N,) array
        In any order; equal outcomes are merged.
    policy_probs : (N,) array, >= 0
        Sums to 1 up to rounding, as in `decision_weights`, and is normalised.
    sampler_probs : (..., N) array, >= 0
        As `policy_probs`; leading axes are several samplers.

    Returns
    -------
    ImpliedCapacity
        Of numpy float64 arrays, for torch tensors too.

    Raises
    ------
    ValueError
        If the shapes differ, there is no outcome, a number is not finite, a probability is negative, or probabilities
        do not sum to 1.

    Notes
    -----
    Source: arXiv 2509.24207, Fig. 2. On-policy sampling is the diagonal, a worse model lies above it and saturates
    early, a better one below. The human curve in these axes is `human_curve`.

    Examples
    --------
    >>> worse = implied_capacity([1.0, -1.0, 1.0], [0.25, 0.5, 0.25], [0.1, 0.8, 0.1])
    >>> worse.policy_cumulative.tolist(), worse.sampler_cumulative.tolist()
    ([0.0, 0.5, 1.0], [0.0, 0.8, 1.0])
    """
    z, p = last_axis(outcomes=outcomes, policy_probs=policy_probs)
    if z.ndim != 1:
        raise _checks.fail("outcomes, policy_probs", "have one axis", z.shape)
    (q,) = last_axis(sampler_probs=sampler_probs)
    _checks.same_shape("sampler_probs", q.shape[-1:], "outcomes", z.shape)
    distinct, group = np.unique(z, return_inverse=True)
    merged = []
    for name, given, probs in (("policy_probs", policy_probs, p), ("sampler_probs", sampler_probs, q)):
        probs = probs / law_total(name, given, probs)
        order = np.lexsort((probs, np.broadcast_to(group, probs.shape)), axis=-1)  # rounding ignores the given order
        starts = np.searchsorted(np.sort(group), np.arange(len(distinct)))
        merged.append(np.add.reduceat(np.take_along_axis(probs, order, -1), starts, -1))
    return ImpliedCapacity(distinct + 0.0, *merged)


def human_curve(prob: ArrayLike, *, gain: Capacity, loss: Capacity | None = None, gain_prob: float = 1.0) -> Any:
    """Return the human curve of Figure 2: the summed decision weights of the worst outcomes.

    With ``l = 1 - gain_prob``, ``y = Omega-(x)`` where ``x <= l``, else
    ``y = Omega-(l) + Omega+(1 - l) - Omega+(1 - x)``. For gains only that is ``1 - Omega+(1 - x)``.

    Parameters
    ----------
    prob : array or scalar in [0, 1], any shape
        Cumulative probability of the worst outcomes under the policy (x).
    gain, loss : Capacity
        Loss is needed only if gain_prob < 1.
    gain_prob : float in [0, 1]
        Probability, under the policy, of outcomes at or above the reference point.

    Returns
    -------
    numpy float64 array, or numpy scalar for a number
        Of the same shape; for torch tensors too.
        From 0 to the mass of the weights, ``Omega+(gain_prob) + Omega-(1 - gain_prob)``: 1 for gains only, else often
        less (divide by the value at 1 to compare shapes).

    Raises
    ------
    ValueError
        If a probability lies outside [0, 1], a capacity does not map 0 to 0 and 1 to 1, or there are losses and no
        `loss`.

    Notes
    -----
    Source: arXiv 2509.24207, Fig. 2 (solid black), which has gains only; the general curve is ours, from Eq. 4.

    Examples
    --------
    >>> from humanline.theory import TverskyKahneman
    >>> gain, loss = TverskyKahneman(0.61), TverskyKahneman(0.69)
    >>> human_curve([0.0, 0.5, 0.99, 1.0], gain=gain).round(6).tolist()
    [0.0, 0.579361, 0.944734, 1.0]
    >>> human_curve([0.25, 0.5, 1.0], gain=gain, loss=loss, gain_prob=0.5).round(6).tolist()
    [0.293519, 0.453988, 0.874627]
    """
    x = _unit("prob", prob)
    gains = float(_unit("gain_prob", _checks.finite("gain_prob", gain_prob)))
    losses = 1 - gains
    if loss is None:
        if losses > 0:
            raise _checks.fail("loss", "be given, since gain_prob < 1", loss)
        loss = gain
    for name, capacity in (("gain", gain), ("loss", loss)):
        _check_capacity(name, capacity, allow_negative=True)
    is_loss = x <= losses
    worst, best = np.where(is_loss, x, losses), np.where(is_loss, gains, 1 - x)
    rest = np.where(is_loss, losses, x)
    at_reference = _perceived(gain, np.full_like(x, gains), np.full_like(x, losses))
    curve = _perceived(loss, worst, 1 - worst) + at_reference - _perceived(gain, best, rest)
    return curve[()]


def unnormalised_divergence(w: NDArray[np.float64], q: NDArray[np.float64]) -> Any:
    """Return sum(w ln(w/q) - w + q) >= 0 along the last axis, accurate also where w is close to q."""
    near = np.abs(w - q) < 1e-3 * q
    excess = np.divide(w - q, q, out=np.zeros(near.shape), where=near)
    series = q * excess**2 * (1 / 2 - excess / 6 + excess**2 / 12 - excess**3 / 20)  # the closed form cancels there
    return np.where(near, series, kl_div(w, q)).sum(-1)


def _unit(name: str, prob: ArrayLike) -> NDArray[np.float64]:
    array = float64(name, prob)
    _checks.no_element(name, "lie in [0, 1]", ~((array >= 0) & (array <= 1)), array)
    return array


def _check_capacity(name: str, capacity: Any, allow_negative: bool) -> None:
    if not callable(capacity):
        raise TypeError(f"{name} must be a capacity function; got {capacity!r}")
    if getattr(capacity, "has_arrays", False):  # an axis of people would be taken for that of outcomes
        rule = "have numbers as parameters here; of arrays, one for each person, see humanline.fit.Prepared.for_groups"
        raise _checks.wrong_kind(name, rule, capacity)
    ends = np.asarray(capacity(np.array([0.0, 1.0])))
    if ends.shape != (2,) or not (abs(ends[0]) <= NEGATIVE_TOLERANCE and abs(ends[1] - 1) <= NEGATIVE_TOLERANCE):
        raise _checks.fail(name, "map 0 to 0 and 1 to 1", ends.tolist())
    if not allow_negative and not getattr(capacity, "is_monotone", True):
        raise _checks.fail(name, "be monotone, or its weights can be negative; see allow_negative", capacity)


def _worst_to_best(z: NDArray[Any], p: NDArray[Any]) -> NDArray[Any]:
    """Return indices that sort the outcomes; probability breaks ties, so that not even rounding sees their order."""
    order: NDArray[Any] = np.argsort(z, -1)
    ranked = np.take_along_axis(z, order, -1)
    if (ranked[..., 1:] == ranked[..., :-1]).any():
        order = np.lexsort((p, z), axis=-1)
    return order


def _sorted_weights(z: NDArray[Any], p: NDArray[Any], gain: Any, loss: Any, z0: float) -> NDArray[Any]:
    """Return the decision weights of outcomes that stand from worst to best."""
    p = p / p.sum(-1, keepdims=True)
    at_most, at_least = np.cumsum(p, -1), np.cumsum(p[..., ::-1], -1)[..., ::-1]
    zero = np.zeros((*p.shape[:-1], 1))
    is_gain = z >= z0
    total = np.where(is_gain, at_least, at_most)
    rest = np.where(
        is_gain, np.concatenate([zero, at_most[..., :-1]], -1), np.concatenate([at_least[..., 1:], zero], -1)
    )
    change = z[..., 1:] != z[..., :-1]
    if change.all():
        perceived = _perceived_by_sign(gain, loss, is_gain, total, rest)
        better, worse = np.concatenate([perceived[..., 1:], zero], -1), np.concatenate([zero, perceived[..., :-1]], -1)
        return np.asarray(perceived - np.where(is_gain, better, worse))

    edge = np.ones(zero.shape, dtype=bool)
    starts, ends = np.concatenate([edge, change], -1), np.concatenate([change, edge], -1)
    needed = np.where(is_gain, starts, ends)  # of each group the outcome from which the sum takes in the whole group
    perceived = np.zeros(p.shape)
    perceived[needed] = _perceived_by_sign(gain, loss, is_gain[needed], total[needed], rest[needed])
    first, last, tied = _tie_groups(starts, ends, p)
    padded = np.concatenate([zero, perceived, zero], -1)  # an outcome's own place is 1 further on
    own, other = np.where(is_gain, first + 1, last + 1), np.where(is_gain, last + 2, first)
    weights = np.take_along_axis(padded, own, -1) - np.take_along_axis(padded, other, -1)
    weights *= np.divide(p, tied, out=np.zeros_like(p), where=tied > 0)
    return np.asarray(weights)


def _tie_groups(
    starts: NDArray[Any], ends: NDArray[Any], p: NDArray[Any]
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Return, for each of the sorted outcomes, the first and last index of its equals and their total probability."""
    place = np.broadcast_to(np.arange(p.shape[-1]), p.shape)
    first = np.maximum.accumulate(np.where(starts, place, 0), -1)
    last = np.minimum.accumulate(np.where(ends, place, p.shape[-1])[..., ::-1], -1)[..., ::-1]
    group = np.cumsum(starts.ravel()) - 1
    return first, last, np.bincount(group, weights=p.ravel())[group].reshape(p.shape)


def _perceived_by_sign(
    gain: Any, loss: Any, is_gain: NDArray[Any], total: NDArray[Any], rest: NDArray[Any]
) -> NDArray[Any]:
    """Return Omega+(total) for gains and Omega-(total) for losses."""
    if is_gain.all():
        return _perceived(gain, total, rest)
    out = np.empty(total.shape)
    for side, capacity in ((is_gain, gain), (~is_gain, loss)):
        out[side] = _perceived(capacity, total[side], rest[side])
    return out


def _perceived(capacity: Any, total: NDArray[Any], rest: NDArray[Any]) -> NDArray[Any]:
    """Return Omega(total), where rest = 1 - total, which is the more precise of the two if it is small."""
    steep = rest < _STEEP
    if not steep.any():
        return np.asarray(capacity(total)) if total.size else total
    out = np.empty_like(total)
    flat = ~steep
    if flat.any():
        out[flat] = capacity(total[flat])
    rest = rest[steep]
    out[steep] = np.exp(capacity.log(np.log1p(-rest))) if hasattr(capacity, "log") else capacity(1 - rest)
    return out


def _cumulative(probs: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return 0, the running sums, and exactly 1 at the end."""
    out = np.zeros((*probs.shape[:-1], probs.shape[-1] + 1))
    np.minimum(np.cumsum(probs, -1), 1.0, out=out[..., 1:])
    out[..., -1] = 1.0
    return out


def _interpolate(x: NDArray[Any], xp: NDArray[Any], yp: NDArray[Any], *, jump_up: bool) -> Any:
    """Return the straight line through the points at x, with 0 at 0, 1 at 1, and one end of any jump between."""
    right = np.clip(np.searchsorted(xp, x, side="right" if jump_up else "left"), 1, len(xp) - 1)
    width = xp[right] - xp[right - 1]
    share = np.divide(x - xp[right - 1], width, out=np.ones_like(x), where=width > 0)
    y = yp[..., right - 1] + share * (yp[..., right] - yp[..., right - 1])
    return np.where(x <= 0, 0.0, np.where(x >= 1, 1.0, y))[()]


def _mean_size(start: NDArray[Any], end: NDArray[Any]) -> NDArray[Any]:
    """Return the mean of |f| over an interval on which f is straight."""
    size = np.abs(start) + np.abs(end)
    crossing = np.divide(start**2 + end**2, size, out=np.zeros_like(size), where=size > 0)
    return np.asarray(np.where(start * end < 0, crossing, size) / 2)
