"""The three families of capacity functions that Prelec (1998) derives from axioms."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from humanline import _checks
from humanline.theory._excess import exp_excess, log_excess
from humanline.theory.capacity.family import (
    LOG_SURPRISE,
    Family,
    choose,
    crossing,
    exp_minus_exp,
    set_parameters,
    set_positive,
    strictly_between,
)
from humanline.theory.capacity.simple import PowerWeight


@dataclass(frozen=True)
class Prelec(Family):
    """Raise the surprise of an event to a power: the compound-invariant family.

    ``Omega(p) = exp(-beta (-ln p)**alpha)``

    Parameters
    ----------
    alpha : float > 0, or array
        Curvature; below 1 the function is inverse-S.
    beta : float > 0, or array
        Elevation, 1 in the family of one parameter: a larger one perceives less.

    Raises
    ------
    ValueError
        If alpha or beta is not > 0 or not finite.

    Notes
    -----
    Source: Prelec (1998), Econometrica 66, 497-527. arXiv 2509.24207 has Eq. 3 only.

    For alpha other than 1 there is one fixed point, ``exp(-beta**(1/(1 - alpha)))``, and one inflection; with beta = 1
    both are 1/e. For alpha < 1 the slope is infinite at both ends, and for alpha > 1 it is 0.

    Examples
    --------
    >>> Prelec(0.65)([0.0, 0.01, 0.5, 0.99, 1.0]).round(6).tolist()
    [0.0, 0.067312, 0.454745, 0.950961, 1.0]
    >>> round(Prelec(0.65).fixed_point, 6)
    0.367879
    """

    alpha: float
    beta: float = 1.0

    def __post_init__(self) -> None:
        set_positive(self, "alpha", "beta")

    def _fixed_point(self) -> float | None:
        return None if self.alpha == 1 else exp_minus_exp(math.log(self.beta) / (1 - self.alpha))

    def _inflection(self) -> float | None:
        a, b = self.alpha, self.beta
        if a == 1:
            return None
        if b == 1:
            return math.exp(-1)
        # With t = -ln p = exp(s), the second derivative is 0 where alpha beta t**alpha = t + alpha - 1.
        return exp_minus_exp(crossing(lambda s: a * b * np.exp(a * s) - np.exp(s) - (a - 1), LOG_SURPRISE))

    @property
    def _slopes(self) -> tuple[float, float]:
        if self._arrays:
            flat, ends = self.alpha == 1, choose(self.alpha < 1, math.inf, 0.0)
            return tuple(choose(flat, slope, ends) for slope in PowerWeight(self.beta)._slopes)
        if self.alpha == 1:
            return PowerWeight(self.beta)._slopes
        return (math.inf, math.inf) if self.alpha < 1 else (0.0, 0.0)

    def _log(self, xp: Any, lp: Any) -> Any:
        return -self.beta * (-lp) ** self.alpha

    def _elasticity(self, xp: Any, lp: Any) -> Any:
        return self.alpha * self.beta * (-lp) ** (self.alpha - 1)

    def _log_partials(self, xp: Any, lp: Any) -> list[Any]:
        power = (-lp) ** self.alpha
        return [-self.beta * power * xp.log(-lp), -power]

    def _inverse(self, xp: Any, w: Any) -> Any:
        return xp.exp(-((-xp.log(w) / self.beta) ** (1 / self.alpha)))


@dataclass(frozen=True)
class ExponentialPower(Family):
    """Take the exponential of a power: Prelec's conditionally invariant family.

    ``Omega(p) = exp(-(alpha/beta) (1 - p**beta))``, and its limit ``p**alpha`` for beta = 0.

    Parameters
    ----------
    alpha : float > 0, or array
        The slope at 1.
    beta : float, or array
        Below 0 the function is flat at 0; above 0 it jumps there, to ``exp(-alpha/beta)``.

    Raises
    ------
    ValueError
        If alpha is not > 0, or a parameter is not finite.

    Notes
    -----
    Source: Prelec (1998), Econometrica 66, 497-527. arXiv 2509.24207 has Eq. 3 only.

    For beta > 0 the function is exact at 0 and jumps next to it: ``log`` is -inf at -inf and tends to -alpha/beta above
    it, the derivative at 0 is infinite (the gradient returned there is 0), and the inverse is 0 up to
    ``exp(-alpha/beta)``. There is one fixed point if beta > 0 and alpha > 1, or beta < 0 and alpha < 1, and one
    inflection, ``((1 - beta)/alpha)**(1/beta)``, if that lies between 0 and 1.

    Examples
    --------
    >>> ExponentialPower(alpha=2.0, beta=0.5)([0.0, 0.01, 0.5, 0.99, 1.0]).round(6).tolist()
    [0.0, 0.027324, 0.309879, 0.980149, 1.0]
    """

    alpha: float
    beta: float

    def __post_init__(self) -> None:
        set_parameters(self, alpha=_checks.positive, beta=_checks.finite)

    def _fixed_point(self) -> float | None:
        a, b = self.alpha, self.beta
        if (a - 1) * b <= 0:
            return None
        return exp_minus_exp(crossing(lambda s: a / b * np.expm1(-b * np.exp(s)) + np.exp(s), LOG_SURPRISE))

    def _inflection(self) -> float | None:
        if self.beta == 0 or self.beta >= 1:
            return None
        log_p = (math.log1p(-self.beta) - math.log(self.alpha)) / self.beta
        return strictly_between(math.exp(log_p)) if log_p < 0 else None

    @property
    def _slopes(self) -> tuple[float, float]:
        if self._arrays:
            ends = choose(self.beta > 0, math.inf, 0.0)
            return choose(self.beta == 0, PowerWeight(self.alpha)._slopes[0], ends), self.alpha
        if self.beta == 0:
            return PowerWeight(self.alpha)._slopes
        return (math.inf if self.beta > 0 else 0.0), self.alpha

    def _log(self, xp: Any, lp: Any) -> Any:
        if self._arrays:
            return self._log_of_arrays(xp, lp)
        if self.beta == 0:
            return self.alpha * lp
        if self.beta > 0:
            return self.alpha / self.beta * xp.expm1(self.beta * lp)
        # Far below, the result is too negative for a float; beyond this it is -inf, with gradient 0.
        limit = math.log(xp.finfo(lp.dtype).max) - 1 - math.log1p(self.alpha) - math.log1p(-self.beta)
        beyond = self.beta * lp > limit
        log_value = self.alpha / self.beta * xp.expm1(self.beta * xp.where(beyond, -1.0, lp))
        return xp.where(beyond, -math.inf, log_value)

    def _log_of_arrays(self, xp: Any, lp: Any) -> Any:
        flat = self.beta == 0
        beta = choose(flat, 1.0, self.beta)
        return choose(flat, self.alpha, 0.0) * lp + choose(flat, 0.0, self.alpha / beta) * xp.expm1(beta * lp)

    def _log_partials(self, xp: Any, lp: Any) -> list[Any]:
        flat = self.beta == 0
        beta = choose(flat, 1.0, self.beta)
        by_alpha = lp if not self._arrays and flat else xp.expm1(beta * lp) / beta
        if self._arrays:
            by_alpha = xp.where(flat, lp, by_alpha)
        return [by_alpha, self.alpha * lp**2 * exp_excess(xp, self.beta * lp)]

    def _slope(self, xp: Any, lp: Any) -> Any:
        return self.alpha * xp.exp(self._log(xp, lp) + (self.beta - 1) * lp)

    def _inverse(self, xp: Any, w: Any) -> Any:
        if self._arrays:
            flat = self.beta == 0
            beta = choose(flat, 1.0, self.beta)
            power = beta / self.alpha * xp.log(w)
            jumped = power <= -1
            found = xp.where(jumped, 0.0, xp.exp(xp.log1p(xp.where(jumped, 0.0, power)) / beta))
            return xp.where(flat, xp.exp(xp.log(w) / self.alpha), found)
        if self.beta == 0:
            return xp.exp(xp.log(w) / self.alpha)
        power = self.beta / self.alpha * xp.log(w)
        jumped = power <= -1
        return xp.where(jumped, 0.0, xp.exp(xp.log1p(xp.where(jumped, 0.0, power)) / self.beta))


@dataclass(frozen=True)
class HyperbolicLog(Family):
    """Take a power of a hyperbola in the surprise of an event: Prelec's projection-invariant family.

    ``Omega(p) = (1 - alpha ln p)**(-beta/alpha)``

    Parameters
    ----------
    alpha : float > 0, or array
        Towards 0 the function becomes ``p**beta``.
    beta : float > 0, or array
        The slope at 1.

    Raises
    ------
    ValueError
        If alpha or beta is not > 0 or not finite.

    Notes
    -----
    Source: Prelec (1998), Econometrica 66, 497-527. arXiv 2509.24207 has Eq. 3 only.

    The slope at 0 is infinite. There is one fixed point if beta > 1, and one inflection,
    ``exp((1 - alpha - beta)/alpha)``, if alpha + beta > 1.

    Examples
    --------
    >>> HyperbolicLog(alpha=1.0, beta=1.5)([0.0, 0.01, 0.5, 0.99, 1.0]).round(6).tolist()
    [0.0, 0.075356, 0.453898, 0.985112, 1.0]
    """

    alpha: float
    beta: float

    def __post_init__(self) -> None:
        set_positive(self, "alpha", "beta")

    def _fixed_point(self) -> float | None:
        a, b = self.alpha, self.beta
        if b <= 1:
            return None
        return exp_minus_exp(crossing(lambda s: b / a * np.log1p(a * np.exp(s)) - np.exp(s), LOG_SURPRISE))

    def _inflection(self) -> float | None:
        return strictly_between(math.exp(min(0.0, (1 - self.alpha - self.beta) / self.alpha)))

    @property
    def _slopes(self) -> tuple[float, float]:
        return math.inf, self.beta

    def _log(self, xp: Any, lp: Any) -> Any:
        return -self.beta / self.alpha * xp.log1p(-self.alpha * lp)

    def _elasticity(self, xp: Any, lp: Any) -> Any:
        return self.beta / (1 - self.alpha * lp)

    def _log_partials(self, xp: Any, lp: Any) -> list[Any]:
        scaled = -self.alpha * lp
        return [self.beta * lp**2 * log_excess(xp, scaled), -xp.log1p(scaled) / self.alpha]

    def _inverse(self, xp: Any, w: Any) -> Any:
        return xp.exp(-xp.expm1(-self.alpha / self.beta * xp.log(w)) / self.alpha)
