"""Decision weights: what replaces the probabilities of a prospect's outcomes (Definition 3.2)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from humanline import _checks
from humanline.theory._arrays import last_axis
from humanline.theory.capacity import Capacity

#: How far a prospect's probabilities may sum from 1 before they are refused; within it they are normalised.
SUM_TOLERANCE = 1e-6
#: Above minus this a negative weight of a capacity of unknown shape is rounding, and becomes 0.
NEGATIVE_TOLERANCE = 1e-12


def decision_weights(
    outcomes: ArrayLike,
    probs: ArrayLike,
    *,
    gain: Capacity,
    loss: Capacity,
    reference_point: float = 0.0,
    allow_negative: bool = False,
) -> NDArray[np.float64]:
    """Weigh the outcomes of a prospect: gains from the best down, losses from the worst up.

    For a gain ``omega(z) = Omega+(P(Z >= z)) - Omega+(P(Z > z))``, and for a loss
    ``omega(z) = Omega-(P(Z <= z)) - Omega-(P(Z < z))``.

    Parameters
    ----------
    outcomes : (..., N) array
        In any order, in the unit of the reference point.
    probs : (..., N) array, >= 0
        Sums to 1 along the last axis within 1e-6, and is normalised. Either of the two arrays may be (N,) and is then
        shared by all prospects of the other; nothing else is broadcast.
    gain, loss : Capacity
        Applied to gains (``outcome >= reference_point``) and to losses.
    reference_point : float
    allow_negative : bool
        Return the negative weights that a capacity which is not monotone gives.

    Returns
    -------
    (..., N) float64 array
        In the order of `outcomes`. The weights of the gains sum to ``Omega+(P(gain))`` and those of the losses to
        ``Omega-(P(loss))``: in all they need not sum to 1.

    Raises
    ------
    ValueError
        If the shapes differ, a prospect is empty, a number is not finite, a probability is negative, probabilities do
        not sum to 1, or a capacity does not map 0 to 0 and 1 to 1; and, unless `allow_negative`, if a capacity says
        that it is not monotone or a weight is negative.

    Notes
    -----
    Source: arXiv 2509.24207, Eq. 4. The paper gives gains only and takes outcomes to be distinct.

    Of equal outcomes only the summed weight is defined: it is shared in proportion to their probabilities, so that
    splitting an outcome changes nothing. An outcome of probability 0 has weight 0.

    Capacities are infinitely steep at 0 and 1. So each cumulative probability is summed from the end at which it is
    small, and one above 1/2 is passed on as the log of 1 minus the other end (to capacities with a ``log``).
    The result does not depend on the order of the outcomes, to the last bit.

    Examples
    --------
    >>> from humanline.theory import TverskyKahneman
    >>> gain, loss = TverskyKahneman(0.61), TverskyKahneman(0.69)
    >>> decision_weights([36, 25, -9, -16], [0.7, 0.1, 0.1, 0.1], gain=gain, loss=loss).round(5).tolist()
    [0.53382, 0.07362, 0.08688, 0.17015]
    """
    z0 = _checks.finite("reference_point", reference_point)
    for name, capacity in (("gain", gain), ("loss", loss)):
        _check_capacity(name, capacity, allow_negative)
    z, p = last_axis(outcomes=outcomes, probs=probs)
    _checks.no_element("probs", "be >= 0", p < 0, p)
    off = np.abs(p.sum(-1) - 1) > SUM_TOLERANCE
    _checks.no_element("probs", f"sum to 1 within {SUM_TOLERANCE:g} along the last axis", off, p.sum(-1))

    order = np.lexsort((p, z), axis=-1)  # probability breaks ties, so that even the rounding ignores the given order
    z, p = np.take_along_axis(z, order, -1), np.take_along_axis(p, order, -1)
    p = p / p.sum(-1, keepdims=True)
    first, last, tied = _tie_groups(z, p)
    zero = np.zeros((*p.shape[:-1], 1))
    below = np.concatenate([zero, np.cumsum(p, -1)], -1)  # [i]: total of the i worst
    above = np.concatenate([np.cumsum(p[..., ::-1], -1)[..., ::-1], zero], -1)  # [i]: total of all but the i worst
    at_least, less = np.take_along_axis(above, first, -1), np.take_along_axis(below, first, -1)
    at_most, more = np.take_along_axis(below, last + 1, -1), np.take_along_axis(above, last + 1, -1)

    weights = np.empty_like(p)
    is_gain = z >= z0
    for side, capacity, outer, outer_rest, inner, inner_rest in (
        (is_gain, gain, at_least, less, more, at_most),
        (~is_gain, loss, at_most, more, less, at_least),
    ):
        outer_value = _perceived(capacity, outer[side], outer_rest[side])
        weights[side] = outer_value - _perceived(capacity, inner[side], inner_rest[side])
    if not allow_negative:
        rule = "give no negative decision weight, unless allow_negative"
        _checks.no_element("gain, loss", rule, weights < -NEGATIVE_TOLERANCE, weights)
        weights = np.maximum(weights, 0.0)
    weights *= np.divide(p, tied, out=np.zeros_like(p), where=tied > 0)

    given_order = np.empty(weights.shape)
    np.put_along_axis(given_order, order, weights, -1)
    return given_order


def _check_capacity(name: str, capacity: Any, allow_negative: bool) -> None:
    if not callable(capacity):
        raise TypeError(f"{name} must be a capacity function; got {capacity!r}")
    ends = np.asarray(capacity(np.array([0.0, 1.0])))
    if ends.shape != (2,) or not np.allclose(ends, [0.0, 1.0], rtol=0, atol=NEGATIVE_TOLERANCE):
        raise _checks.fail(name, "map 0 to 0 and 1 to 1", ends.tolist())
    if not allow_negative and not getattr(capacity, "is_monotone", True):
        raise _checks.fail(name, "be monotone, or its weights can be negative; see allow_negative", capacity)


def _tie_groups(z: NDArray[Any], p: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Return, for each of the sorted outcomes, the first and last index of its equals and their total probability."""
    place = np.broadcast_to(np.arange(z.shape[-1]), z.shape)
    change = z[..., 1:] != z[..., :-1]
    edge = np.ones((*z.shape[:-1], 1), dtype=bool)
    starts, ends = np.concatenate([edge, change], -1), np.concatenate([change, edge], -1)
    first = np.maximum.accumulate(np.where(starts, place, 0), -1)
    last = np.minimum.accumulate(np.where(ends, place, z.shape[-1])[..., ::-1], -1)[..., ::-1]
    group = np.cumsum(starts.ravel()) - 1
    return first, last, np.bincount(group, weights=p.ravel())[group].reshape(p.shape)


def _perceived(capacity: Any, total: NDArray[Any], rest: NDArray[Any]) -> NDArray[Any]:
    """Return Omega(total), where rest = 1 - total is the more precise of the two if it is the smaller."""
    out = np.empty_like(total)
    small = total <= rest
    out[small] = capacity(total[small])
    rest = rest[~small]
    out[~small] = np.exp(capacity.log(np.log1p(-rest))) if hasattr(capacity, "log") else capacity(1 - rest)
    return out
