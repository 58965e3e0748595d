"""Subjective utility, distances between measures, and the bound of a utility gap (Definition 3.3, Prop. 3.4)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import kl_div, rel_entr

from humanline import _checks
from humanline.theory._arrays import last_axis
from humanline.theory.capacity import Capacity
from humanline.theory.value import ValueFunction
from humanline.theory.weighting import SUM_TOLERANCE, decision_weights


def subjective_utility(
    outcomes: ArrayLike,
    probs: ArrayLike,
    *,
    value: ValueFunction,
    gain: Capacity,
    loss: Capacity,
    allow_negative: bool = False,
) -> Any:
    """Sum the values of a prospect's outcomes, each times its decision weight.

    ``u = sum_z omega(z) v(z)``

    Parameters
    ----------
    outcomes, probs : (..., N) arrays
        As in `decision_weights`.
    value : ValueFunction
        Its reference point also divides gains from losses.
    gain, loss : Capacity
    allow_negative : bool
        As in `decision_weights`.

    Returns
    -------
    (...) float64 array, or a scalar for one prospect

    Raises
    ------
    ValueError
        As `decision_weights` does.

    Notes
    -----
    Source: arXiv 2509.24207, Def. 3.3. The sum is over distinct outcomes, as there; the proof of Prop. 3.4 sums over
    outputs, which counts tied outcomes more than once.

    Examples
    --------
    >>> from humanline.theory import PowerValue, TverskyKahneman
    >>> human = dict(value=PowerValue(), gain=TverskyKahneman(0.61), loss=TverskyKahneman(0.69))
    >>> float(subjective_utility([36, 25, -9, -16], [0.7, 0.1, 0.1, 0.1], **human).round(6))
    8.008447
    """
    weights = decision_weights(
        outcomes,
        probs,
        gain=gain,
        loss=loss,
        reference_point=value.reference_point,
        allow_negative=allow_negative,
    )
    return (weights * value(np.asarray(outcomes, dtype=np.float64))).sum(-1)


def certainty_equivalent(
    outcomes: ArrayLike, probs: ArrayLike, *, value: ValueFunction, gain: Capacity, loss: Capacity
) -> Any:
    """Return the sure outcome that is worth as much as the prospect.

    ``v^-1(u)``

    Parameters
    ----------
    outcomes, probs : (..., N) arrays
        As in `decision_weights`.
    value : ValueFunction
    gain, loss : Capacity

    Returns
    -------
    (...) float64 array, or a scalar for one prospect
        In the unit of the outcomes.

    Raises
    ------
    ValueError
        As `decision_weights` does.

    Notes
    -----
    Source: arXiv 2509.24207, Def. 3.3 (the gamble of section 3: what it takes to forgo playing).

    Examples
    --------
    >>> from humanline.theory import PowerValue, TverskyKahneman
    >>> human = dict(value=PowerValue(), gain=TverskyKahneman(0.61), loss=TverskyKahneman(0.69))
    >>> float(certainty_equivalent([100, -100], [0.8, 0.2], **human).round(4))
    1.7987
    """
    return value.inverse(subjective_utility(outcomes, probs, value=value, gain=gain, loss=loss))


def kl_divergence(p: ArrayLike, q: ArrayLike) -> Any:
    """Return the Kullback-Leibler divergence of one measure from another.

    ``KL(p || q) = sum p ln(p/q)``, with ``0 ln 0 = 0``

    Parameters
    ----------
    p, q : (..., N) arrays, >= 0
        Need not sum to 1; either may be (N,).

    Returns
    -------
    (...) float64 array, or a scalar
        Nats; infinite where p puts mass outside the support of q, negative only if the masses differ.

    Raises
    ------
    ValueError
        If the shapes differ, the last axis is empty, or an entry is negative or not finite.

    Notes
    -----
    Source: arXiv 2509.24207, Prop. 3.4. It is finite only if supp(p) lies within supp(q); the appendix of the paper
    has this condition the other way round.

    Examples
    --------
    >>> float(kl_divergence([0.5, 0.5], [0.25, 0.75]).round(6))
    0.143841
    """
    return rel_entr(*_measures(p=p, q=q)).sum(-1)


def total_variation(p: ArrayLike, q: ArrayLike) -> Any:
    """Return half the summed absolute difference of two measures.

    ``TV(p, q) = 1/2 sum |p - q|``

    Parameters
    ----------
    p, q : (..., N) arrays, >= 0
        Either may be (N,).

    Returns
    -------
    (...) float64 array, or a scalar
        In [0, 1] for distributions.

    Raises
    ------
    ValueError
        If the shapes differ, the last axis is empty, or an entry is negative or not finite.

    Notes
    -----
    Source: arXiv 2509.24207, Prop. 3.4 (half of the norm in its proof).

    Examples
    --------
    >>> float(total_variation([0.5, 0.5], [0.25, 0.75]))
    0.25
    """
    first, second = _measures(p=p, q=q)
    return np.abs(first - second).sum(-1) / 2


@dataclass(frozen=True)
class UtilityGapBound:
    """Hold an upper bound of a utility gap and where it comes from.

    Parameters
    ----------
    value : float
        The bound, in the unit of the value function.
    rule : str
        ``trivial``, ``pinsker``, ``bretagnolle-huber`` or ``unnormalised``: see `utility_gap_bound`.
    reason : str
        One sentence on why this rule gave the smallest bound.

    Notes
    -----
    Source: arXiv 2509.24207, Prop. 3.4.
    """

    value: float
    rule: str
    reason: str


def utility_gap_bound(weights: ArrayLike, candidate: ArrayLike, values: ArrayLike) -> UtilityGapBound:
    """Bound the gap between a subjective utility and the expected value under a candidate distribution.

    ``|sum (w - Q) v| <= L * half_range + |mid| * |m - 1|``, where ``m = sum w``, the values lie in
    ``mid +- half_range`` and L is the least of four bounds of ``sum |w - Q|``:

    - trivial: ``1 + m``
    - pinsker: ``m sqrt(2 K) + |1 - m|`` with ``K = KL(w/m || Q)``
    - bretagnolle-huber: ``2 m sqrt(1 - exp(-K)) + |1 - m|``
    - unnormalised: ``sqrt(2/3 (m + 2) D)`` with ``D = KL(w || Q) - m + 1``

    Parameters
    ----------
    weights : (N,) array, >= 0
        Decision weights w of the outcomes, of any mass.
    candidate : (N,) array, >= 0
        Probabilities Q of the same outcomes; sums to 1 within 1e-6, and is normalised.
    values : (N,) array
        The outcomes' values v.

    Returns
    -------
    UtilityGapBound

    Raises
    ------
    ValueError
        If the shapes differ or are not (N,) with N > 0, a number is not finite, a weight or probability is negative,
        or the candidate does not sum to 1.

    Notes
    -----
    Source: arXiv 2509.24207, Prop. 3.4, corrected. As printed, ``max|v| sqrt(2 KL(w || Q))``, it fails when there are
    gains and losses: the weights then do not sum to 1, and the divergence can be 0 or negative while the gap is large.

    Why: for any c, ``sum (w - Q) v = sum (w - Q)(v - c) + c (m - 1)``; c = mid is the best choice since every L is at
    least ``|m - 1|``, and it never exceeds ``L max|v|``. Pinsker and Bretagnolle-Huber apply to
    ``w - Q = m (w/m - Q) + (m - 1) Q``. The last rule follows from ``u ln u - u + 1 >= 3 (u - 1)**2 / (2 (u + 2))`` at
    ``u = w/Q`` and the Cauchy-Schwarz inequality; at m = 1 it is Pinsker's.

    Examples
    --------
    >>> bound = utility_gap_bound([0.454, 0.421], [0.5, 0.5], [-1.0, 1.0])
    >>> round(bound.value, 4), bound.rule
    (0.1297, 'unnormalised')
    """
    w, q, v = last_axis(weights=weights, candidate=candidate, values=values)
    if w.ndim != 1:
        raise _checks.fail("weights", "have one axis", w.shape)
    _checks.no_element("weights", "be >= 0", w < 0, w)
    _checks.no_element("candidate", "be >= 0", q < 0, q)
    if abs(q.sum() - 1) > SUM_TOLERANCE:
        raise _checks.fail("candidate", f"sum to 1 within {SUM_TOLERANCE:g}", float(q.sum()))
    q = q / q.sum()

    m = float(w.sum())
    k = _divergence(w / m, q) if m > 0 else 0.0  # m multiplies it
    d = _divergence(w, q)
    norms = {
        "trivial": (1 + m, "no divergence is small enough to improve on the sum of both masses"),
        "pinsker": (m * math.sqrt(2 * k) + abs(1 - m), "the normalised weights are close to the candidate"),
        "bretagnolle-huber": (
            2 * m * math.sqrt(-math.expm1(-k)) + abs(1 - m),
            "the normalised weights are too far from the candidate for Pinsker's inequality to help",
        ),
        "unnormalised": (
            math.sqrt(2 / 3 * (m + 2) * d),
            "it measures shape and missing mass together, where the other rules add the missing mass in full",
        ),
    }
    rule = min(norms, key=lambda name: norms[name][0])
    norm, why = norms[rule]
    low, high = float(v.min()), float(v.max())
    middle, half_range = low / 2 + high / 2, high / 2 - low / 2
    value = norm * half_range + abs(middle) * abs(m - 1)
    return UtilityGapBound(value, rule, f"The {rule} rule is the smallest: {why}.")


def _measures(**values: ArrayLike) -> list[NDArray[np.float64]]:
    arrays = last_axis(**values)
    for name, array in zip(values, arrays, strict=True):
        _checks.no_element(name, "be >= 0", array < 0, array)
    return arrays


def _divergence(w: NDArray[np.float64], q: NDArray[np.float64]) -> float:
    """Return sum(w ln(w/q) - w + q) >= 0, accurate also where w is close to q and the closed form cancels."""
    near = np.abs(w - q) < 1e-3 * q
    excess = np.divide(w - q, q, out=np.zeros_like(q), where=near)
    series = q * excess**2 * (1 / 2 - excess / 6 + excess**2 / 12 - excess**3 / 20)
    return float(np.where(near, series, kl_div(w, q)).sum())
