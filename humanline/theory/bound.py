"""How far two measures are apart, and the gap in utility that this allows (Proposition 3.4)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from humanline import _checks
from humanline.theory._arrays import float64, last_axis, law_total
from humanline.theory._special import rel_entr
from humanline.theory.weighting import unnormalised_divergence

#: How far the weights may sum from 1 for the rules that hold only at mass 1.
MASS_TOLERANCE = 1e-12
#: Rounding that a gap may fall short by of the least that any distance guarantees.
_SLACK = 1e-14
_ALWAYS = "it holds for any weights and any candidate"
_FINITE = "the divergence is finite: no weight falls where the candidate has no probability"
_MASS_ONE = "the weights sum to 1, as those of gains only or of losses only do"
#: Of the rules that bound a gap by a divergence: what to say if it is the smallest, and when it applies.
_DIVERGENCE_RULES = {
    "trivial": ("no divergence is small enough to improve on the sum of both masses", _ALWAYS),
    "pinsker": ("the normalised weights are close to the candidate", _FINITE),
    "bretagnolle-huber": (
        "the normalised weights are too far from the candidate for Pinsker's inequality to help",
        _FINITE,
    ),
    "unnormalised": (
        "it measures shape and missing mass together, where the other rules add the missing mass in full",
        _FINITE,
    ),
}
#: Those that are given for comparison and never chosen.
_OTHER_RULES = {"as-printed": f"{_MASS_ONE}, and {_FINITE}", "total-variation": _ALWAYS}


def kl_divergence(p: ArrayLike, q: ArrayLike) -> Any:
    """Return the Kullback-Leibler divergence of one measure from another.

    ``KL(p || q) = sum p ln(p/q)``, with ``0 ln 0 = 0``

    Parameters
    ----------
    p, q : (..., N) arrays, >= 0
        Need not sum to 1; either may be (N,).

    Returns
    -------
    (...) numpy float64 array, or numpy scalar for one measure
        For torch tensors too.
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
    (...) numpy float64 array, or numpy scalar for one measure
        For torch tensors too. In [0, 1] for distributions.

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


@dataclass(frozen=True, eq=False)
class GapRule:
    """Hold what one rule of `utility_gap_bound` or `distance_for_gap` says.

    Parameters
    ----------
    value : float or (...) array
        The bound, or the distance; nan where the rule does not apply or no distance will do.
    applies : bool or (...) array
        Whether it holds; of a distance, whether it guarantees the gap at all.
    condition : str
        When the rule holds.

    Notes
    -----
    Source: arXiv 2509.24207, Prop. 3.4.
    """

    value: Any
    applies: Any
    condition: str


@dataclass(frozen=True, eq=False)
class UtilityGapBound:
    """Hold an upper bound of a utility gap and where it comes from.

    Parameters
    ----------
    value : float or (...) array
        The bound, in the unit of the value function.
    rule : str or (...) array of str
        ``trivial``, ``pinsker``, ``bretagnolle-huber`` or ``unnormalised``: see `utility_gap_bound`.
    reason : str or (...) array of str
        One sentence on why this rule gave the smallest bound.
    all : mapping from str to GapRule
        Each of the rules, and for comparison ``as-printed`` and ``total-variation``.

    Notes
    -----
    Source: arXiv 2509.24207, Prop. 3.4.
    """

    value: Any
    rule: Any
    reason: Any
    all: Mapping[str, GapRule]


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
    weights : (..., N) array, >= 0
        Decision weights w of the outcomes, of any mass.
    candidate : (..., N) array, >= 0
        Probabilities Q of the same outcomes; sums to 1 up to rounding, as in `decision_weights`, and is normalised.
    values : (..., N) array
        The outcomes' values v. Any of the three may be (N,).

    Returns
    -------
    UtilityGapBound
        Of numpy arrays, or Python's floats and strings for one set of outcomes; for torch tensors too.
        Its ``all`` also holds two that are never chosen: ``as-printed``, the paper's ``max|v| sqrt(2 KL(w || Q))``,
        which applies only at m = 1 and is then at least pinsker's; and ``total-variation``, with ``sum |w - Q|``
        itself for L, which no bound of these w, Q, mid and half_range can improve on.

    Raises
    ------
    ValueError
        If the shapes differ, there is no outcome, a number is not finite, a weight or probability is negative, or the
        candidate does not sum to 1.

    Notes
    -----
    Source: arXiv 2509.24207, Prop. 3.4, corrected. As printed it fails when there are gains and losses: the weights
    then do not sum to 1, and the divergence can be 0 or negative while the gap is large. It holds for gains only and
    for losses only, if the capacity is monotone. The paper asks that supp(Q) lie within supp(w); what makes the
    divergence finite is that supp(w) lies within supp(Q), and where it does not only the trivial rule is left.

    Why: for any c, ``sum (w - Q) v = sum (w - Q)(v - c) + c (m - 1)``; c = mid is the best choice since every L is at
    least ``|m - 1|``, and it never exceeds ``L max|v|``. Pinsker and Bretagnolle-Huber apply to
    ``w - Q = m (w/m - Q) + (m - 1) Q``. The last rule follows from ``u ln u - u + 1 >= 3 (u - 1)**2 / (2 (u + 2))`` at
    ``u = w/Q`` and the Cauchy-Schwarz inequality; at m = 1 it is Pinsker's.

    Examples
    --------
    >>> bound = utility_gap_bound([0.454, 0.421], [0.5, 0.5], [-1.0, 1.0])
    >>> round(bound.value, 4), bound.rule
    (0.1297, 'unnormalised')
    >>> bound.all["as-printed"].applies, bound.all["as-printed"].condition.split(",")[0]
    (False, 'the weights sum to 1')
    """
    w, q, v = last_axis(weights=weights, candidate=candidate, values=values)
    _checks.no_element("weights", "be >= 0", w < 0, w)
    q = q / law_total("candidate", candidate, q)

    m = w.sum(-1)
    off_mass = np.abs(1 - m)
    shape = np.divide(w, m[..., None], out=np.array(q), where=m[..., None] > 0)  # without weights m multiplies k = 0
    k = unnormalised_divergence(shape, q)
    d = unnormalised_divergence(w, q)
    middle, half_range = _middle_and_half_range(v)
    from_mass = np.abs(middle) * off_mass

    finite = np.isfinite(d)
    norms = {
        "trivial": (1 + m, np.True_),
        "pinsker": (m * np.sqrt(2 * k) + off_mass, finite),
        "bretagnolle-huber": (2 * m * np.sqrt(-np.expm1(-k)) + off_mass, finite),
        "unnormalised": (np.sqrt(2 / 3 * (m + 2) * d), finite),
        "total-variation": (np.abs(w - q).sum(-1), np.True_),
    }
    with np.errstate(invalid="ignore"):  # infinite * 0, which does not apply
        bounds = {name: (norm * half_range + from_mass, applies) for name, (norm, applies) in norms.items()}
        printed = np.abs(v).max(-1) * np.sqrt(2 * d)
    bounds["as-printed"] = (printed, finite & (off_mass <= MASS_TOLERANCE))

    rules = _rules(bounds, m.shape)
    each = np.stack([np.where(rules[name].applies, rules[name].value, np.inf) for name in _DIVERGENCE_RULES], -1)
    names, reasons = _texts("The {} rule is the smallest: {}.")
    rule = each.argmin(-1)
    return UtilityGapBound(_plain(each.min(-1)), _plain(names[rule]), _plain(reasons[rule]), rules)


@dataclass(frozen=True, eq=False)
class GapDistance:
    """Hold how close a candidate must be to weights w of mass m for a utility gap to stay small.

    Parameters
    ----------
    divergence : float or (...) array
        The largest ``KL(w/m || Q)``, in nats, at which some rule guarantees the gap: infinite where any candidate will
        do, nan where none is close enough.
    total_variation : float or (...) array
        The largest ``1/2 sum |w - Q|`` that guarantees the gap (any candidate has at most ``(1 + m) / 2``); nan where
        none does.
    rule : str or (...) array of str
        The rule that allows this divergence, as in `utility_gap_bound`, or ``none``.
    reason : str or (...) array of str
    all : mapping from str to GapRule
        The distance by each rule: of ``total-variation`` the total variation, of the others the divergence.

    Notes
    -----
    Source: arXiv 2509.24207, Prop. 3.4.
    """

    divergence: Any
    total_variation: Any
    rule: Any
    reason: Any
    all: Mapping[str, GapRule]


def distance_for_gap(gap: ArrayLike, values: ArrayLike, *, mass: ArrayLike = 1.0) -> GapDistance:
    """Return how close a candidate must be to the decision weights for the utility gap to be at most a given one.

    With ``L = (gap - |mid| |m - 1|) / half_range``, the inverse of each rule of `utility_gap_bound`:

    - trivial: any distance if ``L >= 1 + m``
    - pinsker: ``K <= ((L - |1 - m|) / m)**2 / 2``
    - bretagnolle-huber: ``K <= -ln(1 - ((L - |1 - m|) / (2 m))**2)``
    - unnormalised: ``m K + m ln m - m + 1 = D <= 3 L**2 / (2 (m + 2))``
    - total-variation: ``1/2 sum |w - Q| <= L / 2``

    Parameters
    ----------
    gap : array or scalar >= 0, any shape
        The utility gap to guarantee (delta), in the unit of the value function.
    values : (N,) array
        What outcomes can be worth; only the smallest and the largest count.
    mass : array or scalar > 0
        The sum m of the decision weights, which is 1 for gains only and for losses only. Broadcast with `gap`.

    Returns
    -------
    GapDistance
        Of numpy arrays, or Python's floats and strings where neither gap nor mass has axes; for torch tensors too.

    Raises
    ------
    ValueError
        If a number is not finite, a gap is negative, a mass is not > 0, `values` is not (N,) with N > 0, or gap and
        mass cannot be broadcast.

    Notes
    -----
    Source: arXiv 2509.24207, Prop. 3.4, which has ``sqrt(KL) <= gap / (sqrt(2) max|v|)`` (here ``as-printed``, which
    needs m = 1).

    If ``m != 1`` no distance is 0: even at the candidate ``w/m`` the gap can be ``(half_range + |mid|) |1 - m|``. A
    smaller one cannot be guaranteed (nan), unless the values at hand happen to help.

    Examples
    --------
    >>> close = distance_for_gap(0.5, [-1.0, 1.0])
    >>> float(close.divergence), float(close.total_variation), close.rule
    (0.125, 0.25, 'pinsker')
    >>> float(distance_for_gap(0.1, [-1.0, 1.0], mass=0.8746).divergence)
    nan
    """
    gap_array, mass_array = float64("gap", gap), float64("mass", mass)
    for name, array in (("gap", gap_array), ("mass", mass_array)):
        _checks.no_element(name, "be finite", ~np.isfinite(array), array)
    _checks.no_element("gap", "be >= 0", gap_array < 0, gap_array)
    _checks.no_element("mass", "be > 0", mass_array <= 0, mass_array)
    delta, m = np.broadcast_arrays(gap_array, mass_array)
    (v,) = last_axis(values=values)
    if v.ndim != 1:
        raise _checks.fail("values", "have one axis", v.shape)
    middle, half_range = _middle_and_half_range(v)

    off_mass = np.abs(1 - m)
    from_mass = np.abs(middle) * off_mass
    enough = delta >= (from_mass + half_range * off_mass) * (1 - _SLACK)
    with np.errstate(divide="ignore", invalid="ignore"):  # half_range 0: any distance, or none
        norm = np.where(half_range > 0, np.maximum(delta - from_mass, 0.0) / half_range, np.inf)
        over = np.maximum(norm - off_mass, 0.0)
        pinsker = (over / m) ** 2 / 2
        share = np.minimum(over / (2 * m), 1.0)
        bretagnolle_huber = -np.log1p(-(share**2))
        at_mass = unnormalised_divergence(m[..., None], np.ones((*m.shape, 1)))  # D of the candidate w/m
        spare = 3 * norm**2 / (2 * (m + 2)) - at_mass
        printed = (delta / np.abs(v).max()) ** 2 / 2 if np.any(v) else np.full(delta.shape, np.inf)
    found = {
        "trivial": (np.full(delta.shape, np.inf), enough & (norm >= (1 + m) * (1 - _SLACK))),
        "pinsker": (pinsker, enough),
        "bretagnolle-huber": (bretagnolle_huber, enough),
        "unnormalised": (np.maximum(spare, 0.0) / m, enough & (spare >= -_SLACK * (1 + at_mass))),
        "total-variation": (norm / 2, enough),
        "as-printed": (printed, off_mass <= MASS_TOLERANCE),
    }
    rules = _rules(found, delta.shape)
    each = np.stack([np.where(rules[name].applies, rules[name].value, -np.inf) for name in _DIVERGENCE_RULES], -1)
    names, reasons = _texts("The {} rule allows the largest divergence: {}.")
    none = each.max(-1) == -np.inf
    rule = np.where(none, len(names), each.argmax(-1))
    names = np.append(names, "none")
    reasons = np.append(reasons, "No candidate is close enough: the mass that the weights miss can make a larger gap.")
    return GapDistance(
        _plain(np.where(none, np.nan, each.max(-1))),
        rules["total-variation"].value,
        _plain(names[rule]),
        _plain(reasons[rule]),
        rules,
    )


def _middle_and_half_range(v: NDArray[np.float64]) -> tuple[Any, Any]:
    low, high = v.min(-1), v.max(-1)
    return low / 2 + high / 2, high / 2 - low / 2


def _rules(found: Mapping[str, tuple[Any, Any]], shape: tuple[int, ...]) -> dict[str, GapRule]:
    """Return the rules with a value, or nan, and whether they apply, in the given shape (a scalar for no axes)."""
    conditions = {name: condition for name, (_, condition) in _DIVERGENCE_RULES.items()} | _OTHER_RULES
    out = {}
    for name, condition in conditions.items():
        value, applies = found[name]
        value = np.broadcast_to(np.where(applies, value, np.nan), shape)
        out[name] = GapRule(_plain(value), _plain(np.broadcast_to(applies, shape)), condition)
    return out


def _texts(sentence: str) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return names and reasons of the rules that can be chosen."""
    reasons = [sentence.format(name, why) for name, (why, _) in _DIVERGENCE_RULES.items()]
    return np.array(list(_DIVERGENCE_RULES), dtype=object), np.array(reasons, dtype=object)


def _plain(array: Any) -> Any:
    """Return an array, as a Python object if it has no axes."""
    return array.item() if isinstance(array, np.ndarray | np.generic) and array.ndim == 0 else array


def _measures(**values: ArrayLike) -> list[NDArray[np.float64]]:
    arrays = last_axis(**values)
    for name, array in zip(values, arrays, strict=True):
        _checks.no_element(name, "be >= 0", array < 0, array)
    return arrays
