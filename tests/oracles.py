"""Slow second opinions on the theory: plain loops and mpmath, written from the equations. Imports no humanline."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
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


def prelec(p: Any, alpha: Any, beta: Any = 1) -> Any:
    """Prelec (1998), compound invariance."""
    return mpmath.exp(-mpf(beta) * (-mpmath.log(p)) ** mpf(alpha))


def linear_in_log_odds(p: Any, slope: Any, elevation: Any) -> Any:
    """Gonzalez and Wu (1999)."""
    favour, against = mpf(elevation) * mpf(p) ** mpf(slope), (1 - mpf(p)) ** mpf(slope)
    return favour / (favour + against)


def power_weight(p: Any, exponent: Any) -> Any:
    """A power."""
    return mpf(p) ** mpf(exponent)


def neo_additive(p: Any, slope: Any, intercept: Any) -> Any:
    """A line with jumps at both ends."""
    return mpf(intercept) + mpf(slope) * mpf(p) if 0 < p < 1 else mpf(p)


def exponential_power(p: Any, alpha: Any, beta: Any) -> Any:
    """Prelec (1998), conditional invariance."""
    a, b = mpf(alpha), mpf(beta)
    return mpf(p) ** a if b == 0 else mpmath.exp(-a / b * (1 - mpf(p) ** b))


def hyperbolic_log(p: Any, alpha: Any, beta: Any) -> Any:
    """Prelec (1998), projection invariance."""
    return (1 - mpf(alpha) * mpmath.log(p)) ** (-mpf(beta) / mpf(alpha))


CAPACITIES: dict[str, Callable[..., Any]] = {
    "TverskyKahneman": tversky_kahneman,
    "Prelec": prelec,
    "LinearInLogOdds": linear_in_log_odds,
    "PowerWeight": power_weight,
    "NeoAdditive": neo_additive,
    "ExponentialPower": exponential_power,
    "HyperbolicLog": hyperbolic_log,
    "Identity": lambda p: mpf(p),
}


def log_capacity(family: str, log_p: Any, parameters: Sequence[Any]) -> Any:
    """The log of a capacity, with enough digits for 1 - p when log_p is as small as -1e-300."""
    with mp.workdps(700):
        return mpmath.log(CAPACITIES[family](mpmath.exp(mpf(log_p)), *parameters))


def capacity_slope(family: str, p: Any, parameters: Sequence[Any], order: int = 1) -> Any:
    """A derivative of a capacity by finite differences, of a step that suits the distance to the nearer end."""
    room = min(mpf(p), 1 - mpf(p))
    with mp.workdps(200 - 2 * int(mpmath.log10(room))):
        step = room * mpf(10) ** -40
        return mpmath.diff(lambda x: CAPACITIES[family](x, *parameters), mpf(p), order, h=step)


def capacity_inverse(family: str, w: Any, parameters: Sequence[Any]) -> Any:
    """Where a monotone capacity takes a value, by bisection of the log-odds."""
    with mp.workdps(400):
        low, high = mpf(-3000), mpf(300)
        for _ in range(90):
            middle = (low + high) / 2
            below = CAPACITIES[family](1 / (1 + mpmath.exp(-middle)), *parameters) < mpf(w)
            low, high = (middle, high) if below else (low, middle)
        return 1 / (1 + mpmath.exp(-low))


def exponential_value(z: Any, curvature: Any, loss_curvature: Any, loss_aversion: Any) -> Any:
    """Scholten and Read (2014), Eq. 1."""
    c, d, z = mpf(curvature), mpf(loss_curvature), mpf(z)
    return -mpmath.expm1(-c * z) / c if z >= 0 else mpf(loss_aversion) * mpmath.expm1(d * z) / d


def logarithmic_value(z: Any, curvature: Any, loss_curvature: Any, loss_aversion: Any) -> Any:
    """Scholten and Read (2014), Eq. 2."""
    c, d, z = mpf(curvature), mpf(loss_curvature), mpf(z)
    return mpmath.log1p(c * z) / c if z >= 0 else -mpf(loss_aversion) * mpmath.log1p(-d * z) / d


def logistic_value(z: Any, curvature: Any, loss_curvature: Any, loss_aversion: Any) -> Any:
    """KTO's logistic function, less its value at the reference point."""
    with mp.workdps(700):
        z = mpf(z)
        if z >= 0:
            return 1 / (1 + mpmath.exp(-mpf(curvature) * z)) - mpf(1) / 2
        return mpf(loss_aversion) * (1 / (1 + mpmath.exp(-mpf(loss_curvature) * z)) - mpf(1) / 2)


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


def gap_bound(rule: str, norm: Any, weights_mass: Any, values: Sequence[Any]) -> Any:
    """The bound of |sum (w - Q) v| from a bound of sum |w - Q|, over values between the smallest and the largest."""
    low, high = mpf(min(values)), mpf(max(values))
    if rule == "as-printed":
        return max(abs(low), abs(high)) * norm
    return (high - low) / 2 * norm + abs((high + low) / 2) * abs(mpf(weights_mass) - 1)


def norm_at(rule: str, divergence: Any, m: Any) -> Any:
    """The bound of sum |w - Q| that a rule gives at KL(w/m || Q)."""
    k, m = mpf(divergence), mpf(m)
    if rule == "trivial":
        return 1 + m
    if rule == "pinsker":
        return m * mpmath.sqrt(2 * k) + abs(1 - m)
    if rule == "bretagnolle-huber":
        return 2 * m * mpmath.sqrt(1 - mpmath.exp(-k)) + abs(1 - m)
    if rule == "as-printed":
        return mpmath.sqrt(2 * k)
    return mpmath.sqrt(2 * (m + 2) * (m * k + m * mpmath.log(m) - m + 1) / 3)


def largest_divergence(rule: str, gap: Any, values: Sequence[Any], m: Any) -> Any:
    """The largest KL(w/m || Q) at which a rule bounds the gap as asked, by bisection; None where there is none."""

    def holds(k: Any) -> bool:
        return bool(gap_bound(rule, norm_at(rule, k, m), m, values) <= mpf(gap))

    with mp.workdps(30):
        if not holds(0):
            return None
        if holds(1000):
            return mpmath.inf
        low, high = mpf(0), mpf(1000)
        for _ in range(70):
            middle = (low + high) / 2
            low, high = (middle, high) if holds(middle) else (low, middle)
        return low


# ---- theory: the curves of Figure 2 ---------------------------------------------------------------------------------


def curve_points(outcomes: Sequence[Any], probs: Sequence[Any]) -> list[Any]:
    """0, then the probability of all outcomes up to each distinct one, from least to most good."""
    total = mpmath.fsum(mpf(p) for p in probs)
    points = [mpf(0)]
    for z in sorted(set(outcomes)):
        points.append(mpmath.fsum(mpf(p) for y, p in zip(outcomes, probs, strict=True) if y <= z) / total)
    return points


def human_point(x: Any, gain: MpCapacity, loss: MpCapacity, gain_probability: Any) -> Any:
    """The sum of the decision weights of the worst outcomes, of total probability x, in a prospect cut finely."""
    x, losses = mpf(x), 1 - mpf(gain_probability)
    if x <= losses:
        return loss(x)
    return loss(losses) + gain(1 - losses) - gain(1 - x)


def curve_distances(
    outcomes: Sequence[Any],
    policy: Sequence[Any],
    sampler: Sequence[Any],
    gain: MpCapacity,
    loss: MpCapacity,
    z0: Any,
    normalise: bool,
) -> dict[str, Any]:
    """Distances of a sampler to the decision weights, outcome by outcome."""
    weights = decision_weights(outcomes, policy, gain, loss, z0)
    mass = mpmath.fsum(weights.values())
    scale = mass if normalise else mpf(1)
    x, y = curve_points(outcomes, policy), curve_points(outcomes, sampler)
    w = [weights[z] / scale for z in sorted(weights)]
    q = [b - a for a, b in pairwise(y)]
    gaps = [mpf(0)]
    for weight, prob in zip(w, q, strict=True):
        gaps.append(gaps[-1] + weight - prob)
    area = mpf(0)
    for i in range(len(w)):
        a, b, width = gaps[i], gaps[i + 1], x[i + 1] - x[i]
        if a * b >= 0:
            area += width * abs(a + b) / 2
        else:
            cut = a / (a - b)  # where the straight line crosses 0
            area += width * (cut * abs(a) + (1 - cut) * abs(b)) / 2
    return {
        "sup": max(abs(g) for g in gaps),
        "area": area,
        "l1": mpmath.fsum(abs(a - b) for a, b in zip(w, q, strict=True)),
        "kl": kl(w, q) - mass / scale + 1,
        "reverse_kl": kl(q, w) + mass / scale - 1,
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


def log_beta_cdf(x: Any, a: Any, b: Any) -> Any:
    """The log of `beta_cdf` for shapes of any size, with t = x exp(-s) in the integral from 0 to x."""
    x, a, b = mpf(x), mpf(a), mpf(b)
    if x > a / (a + b):
        return mpmath.log1p(-mpmath.exp(log_beta_cdf(1 - x, b, a))) if x < 1 else mpf(0)
    decay = a - (b - 1) * x / (1 - x)
    pieces = [n / decay for n in (0, 1, 4, 10, 30, 100, 300)]
    area = mpmath.quad(lambda s: mpmath.exp(-a * s + (b - 1) * mpmath.log1p(-x * mpmath.exp(-s))), pieces)
    log_norm = mpmath.loggamma(a) + mpmath.loggamma(b) - mpmath.loggamma(a + b)
    return a * mpmath.log(x) + mpmath.log(area) - log_norm


def log_acceptance(log_ratio: Any, policy: Sequence[Any], ref: Sequence[Any], bounds: Sequence[Any], rule: str) -> Any:
    """The log of `acceptance`, for shapes of any size."""
    r = mpmath.exp(mpf(log_ratio))
    logs = [
        log_beta_cdf(min(mpf(1), y), *shape)
        for y, shape in ((r / mpf(bounds[0]), policy), (1 / (r * mpf(bounds[1])), ref))
    ]
    if rule == "either":
        return mpmath.fsum(logs)
    first, second = (mpmath.exp(value) for value in logs)
    return mpmath.log(first + second - first * second)


def rejection_sampled(proposal: Sequence[Any], accept: Sequence[Any]) -> tuple[list[Any], Any]:
    """The law of what is first accepted and the chance that one proposal is, from the geometric series of attempts."""
    rate = mpmath.fsum(mpf(q) * a for q, a in zip(proposal, accept, strict=True))
    return [mpf(q) * a / rate for q, a in zip(proposal, accept, strict=True)], rate


def sequences(conditionals: Sequence[Any]) -> dict[tuple[int, ...], list[Any]]:
    """For every sequence of token numbers the conditional probabilities along it, from nested lists."""
    paths: dict[tuple[int, ...], list[Any]] = {(): []}
    for step in conditionals:
        longer = {}
        for path, along in paths.items():
            row = step
            for token in path:
                row = row[token]
            for token, p in enumerate(row):
                longer[(*path, token)] = [*along, mpf(p)]
        paths = longer
    return paths


def resampled_sequences(
    policy: Sequence[Any], ref: Sequence[Any], accept: Callable[[Any], Any], resample: str
) -> tuple[dict[tuple[int, ...], Any], Any]:
    """Law of sequences proposed by `ref`, and tokens proposed for each; `accept` takes a log-ratio."""
    theta, old = sequences(policy), sequences(ref)
    kept = {y: [q * accept(mpmath.log(p / q)) for p, q in zip(theta[y], old[y], strict=True)] for y in theta}
    if resample == "sequence":
        weights = {y: mpmath.fprod(parts) for y, parts in kept.items()}
        rate = mpmath.fsum(weights.values())
        return {y: w / rate for y, w in weights.items()}, len(policy) / rate
    law, proposed = {}, mpf(0)

    def normaliser(prefix: tuple[int, ...]) -> Any:
        return mpmath.fsum(
            {y[: len(prefix) + 1]: kept[y][len(prefix)] for y in kept if y[: len(prefix)] == prefix}.values()
        )

    for y in kept:
        rates = [normaliser(y[:t]) for t in range(len(policy))]
        law[y] = mpmath.fprod(part / rate for part, rate in zip(kept[y], rates, strict=True))
        proposed += law[y] * mpmath.fsum(1 / rate for rate in rates)
    return law, proposed


def relative_entropy(mean: Any, x: Any) -> Any:
    """kl(mean || x) of two coins."""
    m, x = mpf(mean), mpf(x)
    return m * mpmath.log(m / x) + (1 - m) * mpmath.log((1 - m) / (1 - x))


def clip_error(log_ratio: Any, log_low: Any, log_high: Any, k: Any, bounds: Sequence[Any]) -> Any:
    """The chance that Theorem 4.3's rule at concentration k decides otherwise than the clip."""
    kept = acceptance(log_ratio, *theorem_shapes(log_low, log_high, k, bounds), bounds, "either")
    return 1 - kept if mpf(log_low) <= mpf(log_ratio) <= mpf(log_high) else kept
