"""The capacity function of Tversky and Kahneman, which the paper uses (Eq. 3)."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from humanline.theory.capacity.family import (
    LOG_ODDS,
    Family,
    choose,
    crossing,
    expit,
    log_expit,
    powered_odds,
    set_positive,
)

#: The smallest gamma at which `TverskyKahneman` is non-decreasing: the root of (2g-1) ln g + (2-g) ln(1-g) = 0.
MONOTONE_GAMMA = 0.279204247014938541855


@dataclass(frozen=True)
class TverskyKahneman(Family):
    """Overweight small and underweight large cumulative probabilities, by one parameter.

    ``Omega(p) = p**gamma / (p**gamma + (1 - p)**gamma)**(1/gamma)``

    Parameters
    ----------
    gamma : float > 0, or array
        1 leaves probabilities alone; the 1992 medians are .61 for gains and .69 for losses.

    Raises
    ------
    ValueError
        If gamma is not > 0 or not finite.

    Warns
    -----
    UserWarning
        If gamma < 0.27920424701...: below it the function decreases somewhere, so that Eq. 4 gives negative weights.

    Notes
    -----
    Source: arXiv 2509.24207, Eq. 3. The paper allows every gamma in R+ and does not mention the threshold.

    There is one fixed point for gamma < 2, none from 2 on (nor at 1, where all points are). There is one inflection
    for gamma <= 2 (at 1 none), two for gamma between 2 and about 2.7, of which the lower is given, and none above.
    The inverse has no closed form: Newton's method on the log-odds, kept within a bracket.

    nan stays nan. With torch, the slope at 0 and at 1 is infinite for gamma < 1; the gradient returned there is 0.
    The check that probabilities lie in [0, 1] needs their values: it is skipped inside torch.func.vmap and on the
    meta device.

    Examples
    --------
    >>> TverskyKahneman(0.61)([0.0, 0.01, 0.5, 0.99, 1.0]).round(6).tolist()
    [0.0, 0.055266, 0.420639, 0.911584, 1.0]
    >>> float(TverskyKahneman(0.61).log(-1e5).round(6))
    -61000.0
    >>> round(TverskyKahneman(0.61).fixed_point, 6)
    0.338781
    """

    gamma: float

    def __post_init__(self) -> None:
        set_positive(self, "gamma")
        if not self.is_monotone:
            warnings.warn(
                f"gamma={np.min(self.gamma):g} is below {MONOTONE_GAMMA:.6f}: the capacity is not monotone and "
                "decision weights can be negative",
                stacklevel=3,
            )

    @property
    def is_monotone(self) -> bool:
        """Whether the function never decreases."""
        return _all(self.gamma >= MONOTONE_GAMMA) if self._arrays else self.gamma >= MONOTONE_GAMMA

    def _fixed_point(self) -> float | None:
        g = self.gamma
        if g == 1 or g >= 2:
            return None

        def excess(x: Any) -> Any:
            lp, log_q = -np.logaddexp(0, -x), -np.logaddexp(0, x)
            return (g - 1) * lp - np.logaddexp(g * lp, g * log_q) / g

        return expit(crossing(excess, LOG_ODDS))

    def _inflection(self) -> float | None:
        g = self.gamma
        if g == 1:
            return None

        def curvature(x: Any) -> Any:  # of the sign of the second derivative, from E (E - 1) + dE/d ln p
            odds, share, rest = np.exp(x), np.exp(-np.logaddexp(0, -g * x)), np.exp(-np.logaddexp(0, g * x))
            elasticity = (g - 1) * share + rest * (g + odds)
            return elasticity * (elasticity - 1) + (1 + odds) * rest * (odds - g * share * (1 + odds))

        return expit(crossing(curvature, LOG_ODDS))

    @property
    def _slopes(self) -> tuple[float, float]:
        if self._arrays:
            low, one = self.gamma < 1, self.gamma == 1
            at_zero = choose(one, 1.0, choose(low, math.inf, 0.0))
            return at_zero, choose(one, 1.0, choose(low, math.inf, self.gamma - 1))
        if self.gamma == 1:
            return 1.0, 1.0
        return (math.inf, math.inf) if self.gamma < 1 else (0.0, self.gamma - 1)

    def _closed_value(self, xp: Any, p: Any) -> Any:
        if self._arrays or self.gamma == 1 or not (isinstance(p, np.ndarray) and p.dtype == np.float64):
            return super()._closed_value(xp, p)
        # Logs and exps, which numpy vectorises, where a power takes several times as long: with l = ln p, m = ln(1-p),
        # ln Omega = g l - max(l, m) - ln(1 + exp(-g |l - m|))/g. Both ends come out exactly.
        flat = p.reshape(-1)
        with np.errstate(divide="ignore"):
            out, larger = np.log(flat), np.subtract(1.0, flat)
            np.log(larger, out=larger)
        ratio = np.subtract(out, larger)
        np.abs(ratio, out=ratio)
        ratio *= -self.gamma
        np.exp(ratio, out=ratio)
        np.log1p(ratio, out=ratio)
        ratio /= self.gamma
        np.maximum(out, larger, out=larger)
        larger += ratio
        out *= self.gamma
        out -= larger
        return np.exp(out, out=out).reshape(p.shape)

    def _value(self, xp: Any, p: Any) -> Any:
        q = 1 - p
        upper = p >= q
        larger, smaller = xp.where(upper, p, q), xp.where(upper, q, p)
        # Dividing both sums by the larger term keeps every intermediate within [0, 2], for any gamma.
        return p**self.gamma / larger * xp.exp(-xp.log1p((smaller / larger) ** self.gamma) / self.gamma)

    def _log(self, xp: Any, lp: Any) -> Any:
        return self._terms(xp, lp)[0]

    def _terms(self, xp: Any, lp: Any, log_q: Any = None) -> tuple[Any, Any, Any, Any]:
        """Return ln Omega, the log of the lesser odds, these to the power gamma, and ln(1 + that)."""
        upper, log_q, ratio = powered_odds(xp, lp, self.gamma, log_q)
        larger, joint = xp.where(upper, lp, log_q), xp.log1p(ratio)
        return self.gamma * lp - larger - joint / self.gamma, -abs(lp - log_q), ratio, joint

    def _with_partials(self, xp: Any, lp: Any, log_q: Any) -> tuple[Any, list[Any]]:
        log_value, log_odds, ratio, joint = self._terms(xp, lp, log_q)
        value = xp.exp(log_value)
        return value, [value * (lp - log_odds * ratio / (self.gamma * (1 + ratio)) + joint / self.gamma**2)]

    def _elasticity(self, xp: Any, lp: Any) -> Any:
        upper, log_q, ratio = powered_odds(xp, lp, self.gamma)
        share, rest = xp.where(upper, 1.0, ratio) / (1 + ratio), xp.where(upper, ratio, 1.0) / (1 + ratio)
        return (self.gamma - 1) * share + rest * (self.gamma + xp.exp(lp - log_q))

    def _inverse(self, xp: Any, w: Any) -> Any:
        constant = w.detach() if hasattr(w, "detach") else w  # no gradient through the iterations
        target = xp.log(constant) - xp.log1p(-constant)
        least = choose(self.gamma < 1, self.gamma, 1.0)
        low = xp.zeros_like(target) - 750 / least if self._arrays else xp.full_like(target, -750 / least)
        high = xp.full_like(target, -0.97 * math.log(xp.finfo(target.dtype).smallest_normal))
        tolerance = 4 * float(xp.finfo(target.dtype).eps)
        x = target / least
        for _ in range(64):
            # The log-odds of Omega are almost linear in those of p towards both ends.
            lp = log_expit(xp, x)
            log_value = self._log(xp, lp)
            rest = -xp.expm1(log_value)
            value = log_value - xp.log(rest)
            low, high = xp.where(value <= target, x, low), xp.where(value >= target, x, high)
            slope = self._elasticity(xp, lp) * xp.exp(log_expit(xp, -x)) / rest
            step = x + (target - value) / xp.where(slope > 0, slope, 1.0)
            best = xp.where((slope > 0) & (step >= low) & (step <= high), step, (low + high) / 2)
            moved = xp.abs(best - x) > tolerance * xp.abs(x)
            x = best
            if not _any(moved):
                break
        # One more step, in ln p, has the precision of `_log` and carries the gradient.
        lp = log_expit(xp, x)
        elasticity = self._elasticity(xp, lp)
        return xp.exp(lp + (xp.log(w) - self._log(xp, lp)) / xp.where(elasticity > 1e-8, elasticity, 1e-8))


def _any(condition: Any) -> bool:
    """Return whether a condition holds anywhere; True where values cannot be read."""
    try:
        return bool(condition.any())
    except (RuntimeError, TypeError):  # JAX raises the latter
        return True


def _all(condition: Any) -> bool:
    """Return whether a condition holds everywhere; True where values cannot be read."""
    try:
        return bool(condition.all())
    except (RuntimeError, TypeError):
        return True
