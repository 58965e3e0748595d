"""Slow second opinions on the theory: plain loops and mpmath, written from the equations. Imports no humanline."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mpmath
from mpmath import mp, mpf

mp.dps = 60  # for whoever imports this module

MpCapacity = Callable[[Any], Any]


# ---- theory: value and capacity -------------------------------------------------------------------------------------


def power_value(z: Any, curvature: Any, loss_curvature: Any, loss_aversion: Any, z0: Any = 0) -> Any:
    """Eq. 2 with an exponent for each side."""
    excess = mpf(z) - mpf(z0)
    return excess ** mpf(curvature) if excess >= 0 else -mpf(loss_aversion) * (-excess) ** mpf(loss_curvature)


def tversky_kahneman(p: Any, gamma: Any) -> Any:
    """Eq. 3 at any gamma; p may be an mpf closer to 1 than a float can be."""
    p, g = mpf(p), mpf(gamma)
    return p**g / (p**g + (1 - p) ** g) ** (1 / g)


def log_tversky_kahneman(log_p: Any, gamma: Any) -> Any:
    """The log of Eq. 3, with enough digits for 1 - p when log_p is as small as -1e-300."""
    with mp.workdps(700):
        log_p, g = mpf(log_p), mpf(gamma)
        p = mpmath.exp(log_p)
        return g * log_p - mpmath.log(p**g + (1 - p) ** g) / g


def medians() -> tuple[MpCapacity, MpCapacity, Callable[[Any], Any]]:
    """Capacity of gains, capacity of losses and value function of Tversky and Kahneman (1992)."""
    return (
        lambda p: tversky_kahneman(p, "0.61"),
        lambda p: tversky_kahneman(p, "0.69"),
        lambda z: power_value(z, "0.88", "0.88", "2.25"),
    )


def flat_point() -> tuple[Any, Any]:
    """The gamma and p at which the slope of Eq. 3 touches 0 from above: slope = 0 and its derivative = 0."""

    def slope_sign(g: Any, p: Any) -> Any:  # (d/dp ln Omega) * p**g + (1-p)**g, up to a positive factor
        q = 1 - p
        return g * (p**g + q**g) / p - (p ** (g - 1) - q ** (g - 1))

    root = mpmath.findroot(
        lambda g, p: [slope_sign(g, p), mpmath.diff(lambda x: slope_sign(g, x), p)], (mpf("0.28"), mpf("0.1"))
    )
    return root[0], root[1]


def fixed_point(gamma: Any, start: Any) -> Any:
    """Where Eq. 3 crosses the diagonal between 0 and 1."""
    return mpmath.findroot(lambda p: tversky_kahneman(p, gamma) - p, mpf(start))


# ---- theory: prospects ----------------------------------------------------------------------------------------------


def decision_weights(
    outcomes: Sequence[Any], probs: Sequence[Any], gain: MpCapacity, loss: MpCapacity, z0: Any = 0
) -> dict[Any, Any]:
    """Eq. 4 for each distinct outcome, by adding up the probabilities of all outcomes as good, or as bad."""
    total = mpmath.fsum(mpf(p) for p in probs)
    pairs = [(z, mpf(p) / total) for z, p in zip(outcomes, probs, strict=True)]
    weights = {}
    for z in set(outcomes):
        if z >= z0:
            weights[z] = gain(sum(p for y, p in pairs if y >= z)) - gain(sum(p for y, p in pairs if y > z))
        else:
            weights[z] = loss(sum(p for y, p in pairs if y <= z)) - loss(sum(p for y, p in pairs if y < z))
    return weights


def utility(
    outcomes: Sequence[Any],
    probs: Sequence[Any],
    gain: MpCapacity,
    loss: MpCapacity,
    value: Callable[[Any], Any],
    z0: Any = 0,
) -> Any:
    """Def. 3.3."""
    weights = decision_weights(outcomes, probs, gain, loss, z0)
    return mpmath.fsum(w * value(z) for z, w in weights.items())


def certainty_equivalent(outcomes: Sequence[Any], probs: Sequence[Any]) -> Any:
    """The sure outcome of the same utility under the medians, by bisection of the value function."""
    gain, loss, value = medians()
    target = utility(outcomes, probs, gain, loss, value)
    low, high = mpf(min(outcomes)), mpf(max(outcomes))
    for _ in range(120):
        middle = (low + high) / 2
        low, high = (middle, high) if value(middle) < target else (low, middle)
    return (low + high) / 2


def total_mass(gain_probability: Any) -> Any:
    """The sum of all decision weights under the medians."""
    gain, loss, _ = medians()
    return gain(mpf(gain_probability)) + loss(1 - mpf(gain_probability))


def kl(p: Sequence[Any], q: Sequence[Any]) -> Any:
    """Sum of p ln(p/q) over p > 0."""
    if any(a > 0 and b == 0 for a, b in zip(p, q, strict=True)):
        return mpmath.inf
    return mpmath.fsum(mpf(a) * mpmath.log(mpf(a) / mpf(b)) for a, b in zip(p, q, strict=True) if a > 0)


def norm_bounds(weights: Sequence[Any], candidate: Sequence[Any]) -> dict[str, Any]:
    """Upper bounds of sum |w - Q| for weights of positive mass."""
    m = mpmath.fsum(mpf(w) for w in weights)
    k = kl([mpf(w) / m for w in weights], candidate)
    d = kl(weights, candidate) - m + 1
    return {
        "trivial": 1 + m,
        "pinsker": m * mpmath.sqrt(2 * k) + abs(1 - m),
        "bretagnolle-huber": 2 * m * mpmath.sqrt(1 - mpmath.exp(-k)) + abs(1 - m),
        "unnormalised": mpmath.sqrt(2 * (m + 2) * d / 3),
    }


# ---- theory: rejection ----------------------------------------------------------------------------------------------


def beta_cdf(x: Any, a: Any, b: Any) -> Any:
    """The regularised incomplete beta function."""
    return mpmath.betainc(mpf(a), mpf(b), 0, mpf(x), regularized=True)


def acceptance(log_ratio: Any, policy: Sequence[Any], ref: Sequence[Any], bounds: Sequence[Any], rule: str) -> Any:
    """The probability that Eq. 5 keeps a token: neither test fires, or (rule "both") not both of them."""
    r = mpmath.exp(mpf(log_ratio))
    passes_policy = beta_cdf(min(mpf(1), r / mpf(bounds[0])), *policy)
    passes_ref = beta_cdf(min(mpf(1), 1 / (r * mpf(bounds[1]))), *ref)
    if rule == "either":
        return passes_policy * passes_ref
    return 1 - (1 - passes_policy) * (1 - passes_ref)


def theorem_shapes(log_low: Any, log_high: Any, k: Any, bounds: Sequence[Any]) -> tuple[tuple[Any, Any], ...]:
    """Both Beta shapes of the family of Theorem 4.3."""
    policy_mean = mpmath.exp(mpf(log_low)) / mpf(bounds[0])
    ref_mean = 1 / (mpmath.exp(mpf(log_high)) * mpf(bounds[1]))
    return tuple((mpf(k) * mean, mpf(k) * (1 - mean)) for mean in (policy_mean, ref_mean))
