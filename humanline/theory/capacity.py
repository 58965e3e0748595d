"""Capacity functions: from a cumulative probability to the one a human perceives (Definition 3.2)."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from humanline import _checks
from humanline.theory._arrays import floats, plain

#: The smallest gamma at which `TverskyKahneman` is non-decreasing: the root of (2g-1) ln g + (2-g) ln(1-g) = 0.
MONOTONE_GAMMA = 0.279204247014938541855
#: Values of a numpy array that are worked on at a time: few enough for intermediate results to stay in the cache.
BLOCK = 32_768
#: ln p = ln(1 - p) here.
LOG_HALF = -math.log(2)
#: Where roots are looked for: log-odds of all floats between 0 and 1 and far below, and ln(-ln p).
LOG_ODDS = np.concatenate([-np.sinh(np.linspace(8, 0, 1000)), np.linspace(0, 36.8, 400)[1:]])
LOG_SURPRISE = np.linspace(-700, 700, 2800)


class Capacity(Protocol):
    """Map cumulative probabilities to perceived ones, 0 to 0 and 1 to 1.

    Any such function of arrays will do. The families of this module also have ``log(log_prob)``, which keeps its
    precision next to 1 and far below the smallest float, ``derivative``, ``inverse``, ``is_monotone``,
    ``fixed_point`` and ``inflection``.

    Notes
    -----
    Source: arXiv 2509.24207, Def. 3.2.
    """

    def __call__(self, prob: Any, /) -> Any:
        """Return the perceived cumulative probability."""


class _Family:
    """What the families share: checks, exact ends, gradients that are never nan, and blocks of numpy arrays.

    A family gives, for what lies strictly between the ends: ``_log`` (of ln p), ``_elasticity`` (d ln Omega / d ln p,
    of ln p), ``_inverse`` (of the perceived probability) and, where there is something better than exp(_log(ln p)),
    ``_value``; and ``_slopes``, the derivatives at 0 and at 1, infinite where the function jumps.
    """

    @property
    def is_monotone(self) -> bool:
        """Whether the function never decreases."""
        return True

    @property
    def fixed_point(self) -> float | None:
        """The probability strictly between 0 and 1 that is perceived as it is; None if none or all are."""
        return self._fixed_point()

    @property
    def inflection(self) -> float | None:
        """The lowest probability strictly between 0 and 1 at which the curvature changes its sign, or None."""
        return self._inflection()

    def __call__(self, prob: Any) -> Any:
        """Return the perceived cumulative probability.

        Parameters
        ----------
        prob : array or scalar in [0, 1], any shape
            nan stays nan.

        Returns
        -------
        array of the same shape and kind, in [0, 1]

        Raises
        ------
        ValueError
            If a probability lies outside [0, 1].
        """
        return _in_blocks(self._closed_value, "prob", "lie in [0, 1]", prob)

    def log(self, log_prob: Any) -> Any:
        """Return the log of the perceived cumulative probability, from the log of the probability.

        Parameters
        ----------
        log_prob : array or scalar <= 0, any shape
            Nats; a sequence's log-probability of -1e5 is fine, and so is -1e-300. nan stays nan.

        Returns
        -------
        array of the same shape and kind
            Nats, <= 0.

        Raises
        ------
        ValueError
            If a log-probability is above 0.
        """

        def closed(xp: Any, lp: Any) -> Any:
            low, high = (-math.inf, -math.inf, 0.0), (0.0, 0.0, self._slopes[1])
            return _between(xp, self._log, lp, low, high, LOG_HALF)

        return _in_blocks(closed, "log_prob", "be <= 0", log_prob, lowest=-math.inf, highest=0.0)

    def derivative(self, prob: Any) -> Any:
        """Return the slope of the function.

        Parameters
        ----------
        prob : array or scalar in [0, 1], any shape
            nan stays nan.

        Returns
        -------
        array of the same shape and kind
            At 0 and at 1 the limit from inside, infinite where that is, and where the function jumps.

        Raises
        ------
        ValueError
            If a probability lies outside [0, 1].
        """

        def closed(xp: Any, p: Any) -> Any:
            low, high = (0.0, self._slopes[0], 0.0), (1.0, self._slopes[1], 0.0)
            return _between(xp, lambda xp, inner: self._slope(xp, xp.log(inner)), p, low, high, 0.5)

        return _in_blocks(closed, "prob", "lie in [0, 1]", prob)

    def inverse(self, perceived: Any) -> Any:
        """Return the probability that is perceived as the one given.

        Parameters
        ----------
        perceived : array or scalar in [0, 1], any shape
            nan stays nan.

        Returns
        -------
        array of the same shape and kind, in [0, 1]
            A value that the function jumps over belongs to the end at which it jumps.

        Raises
        ------
        ValueError
            If a number lies outside [0, 1], or the function is not monotone: a value then can have several origins.
        """
        if not self.is_monotone:
            raise _checks.fail("capacity", "be monotone to have an inverse", self)

        def closed(xp: Any, w: Any) -> Any:
            rises = [1 / slope if slope > 0 else math.inf for slope in self._slopes]
            return _between(xp, self._inverse, w, (0.0, 0.0, rises[0]), (1.0, 1.0, rises[1]), 0.5)

        return _in_blocks(closed, "perceived", "lie in [0, 1]", perceived)

    @property
    def _slopes(self) -> tuple[float, float]:
        raise NotImplementedError

    def _fixed_point(self) -> float | None:
        return None

    def _inflection(self) -> float | None:
        return None

    def _log(self, xp: Any, lp: Any) -> Any:
        raise NotImplementedError

    def _elasticity(self, xp: Any, lp: Any) -> Any:
        raise NotImplementedError

    def _inverse(self, xp: Any, w: Any) -> Any:
        raise NotImplementedError

    def _value(self, xp: Any, p: Any) -> Any:
        return xp.exp(self._log(xp, xp.log(p)))

    def _slope(self, xp: Any, lp: Any) -> Any:
        return xp.exp(self._log(xp, lp) - lp) * self._elasticity(xp, lp)

    def _closed_value(self, xp: Any, p: Any) -> Any:
        low, high = self._slopes
        return _between(xp, self._value, p, (0.0, 0.0, low), (1.0, 1.0, high), 0.5)


@dataclass(frozen=True)
class TverskyKahneman(_Family):
    """Overweight small and underweight large cumulative probabilities, by one parameter.

    ``Omega(p) = p**gamma / (p**gamma + (1 - p)**gamma)**(1/gamma)``

    Parameters
    ----------
    gamma : float > 0
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
        object.__setattr__(self, "gamma", _checks.positive("gamma", self.gamma))
        if not self.is_monotone:
            warnings.warn(
                f"gamma={self.gamma:g} is below {MONOTONE_GAMMA:.6f}: the capacity is not monotone and decision "
                "weights can be negative",
                stacklevel=3,
            )

    @property
    def is_monotone(self) -> bool:
        """Whether the function never decreases."""
        return self.gamma >= MONOTONE_GAMMA

    def _fixed_point(self) -> float | None:
        g = self.gamma
        if g == 1 or g >= 2:
            return None

        def excess(x: Any) -> Any:
            lp, log_q = -np.logaddexp(0, -x), -np.logaddexp(0, x)
            return (g - 1) * lp - np.logaddexp(g * lp, g * log_q) / g

        return _expit(_crossing(excess, LOG_ODDS))

    def _inflection(self) -> float | None:
        g = self.gamma
        if g == 1:
            return None

        def curvature(x: Any) -> Any:  # of the sign of the second derivative, from E (E - 1) + dE/d ln p
            odds, share, rest = np.exp(x), np.exp(-np.logaddexp(0, -g * x)), np.exp(-np.logaddexp(0, g * x))
            elasticity = (g - 1) * share + rest * (g + odds)
            return elasticity * (elasticity - 1) + (1 + odds) * rest * (odds - g * share * (1 + odds))

        return _expit(_crossing(curvature, LOG_ODDS))

    @property
    def _slopes(self) -> tuple[float, float]:
        if self.gamma == 1:
            return 1.0, 1.0
        return (math.inf, math.inf) if self.gamma < 1 else (0.0, self.gamma - 1)

    def _closed_value(self, xp: Any, p: Any) -> Any:
        if self.gamma == 1 or not (isinstance(p, np.ndarray) and p.dtype == np.float64):
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
        upper, log_q, ratio = _odds(xp, lp, self.gamma)
        return self.gamma * lp - xp.where(upper, lp, log_q) - xp.log1p(ratio) / self.gamma

    def _elasticity(self, xp: Any, lp: Any) -> Any:
        upper, log_q, ratio = _odds(xp, lp, self.gamma)
        share, rest = xp.where(upper, 1.0, ratio) / (1 + ratio), xp.where(upper, ratio, 1.0) / (1 + ratio)
        return (self.gamma - 1) * share + rest * (self.gamma + xp.exp(lp - log_q))

    def _inverse(self, xp: Any, w: Any) -> Any:
        constant = w.detach() if hasattr(w, "detach") else w  # no gradient through the iterations
        target = xp.log(constant) - xp.log1p(-constant)
        least = min(self.gamma, 1.0)
        low = xp.full_like(target, -750 / least)
        high = xp.full_like(target, -0.97 * math.log(xp.finfo(target.dtype).smallest_normal))
        tolerance = 4 * float(xp.finfo(target.dtype).eps)
        x = target / least
        for _ in range(64):
            # The log-odds of Omega are almost linear in those of p towards both ends.
            lp = _log_expit(xp, x)
            log_value = self._log(xp, lp)
            rest = -xp.expm1(log_value)
            value = log_value - xp.log(rest)
            low, high = xp.where(value <= target, x, low), xp.where(value >= target, x, high)
            slope = self._elasticity(xp, lp) * xp.exp(_log_expit(xp, -x)) / rest
            step = x + (target - value) / xp.where(slope > 0, slope, 1.0)
            best = xp.where((slope > 0) & (step >= low) & (step <= high), step, (low + high) / 2)
            moved = xp.abs(best - x) > tolerance * xp.abs(x)
            x = best
            if not _any(moved):
                break
        # One more step, in ln p, has the precision of `_log` and carries the gradient.
        lp = _log_expit(xp, x)
        elasticity = self._elasticity(xp, lp)
        return xp.exp(lp + (xp.log(w) - self._log(xp, lp)) / xp.where(elasticity > 1e-8, elasticity, 1e-8))


@dataclass(frozen=True)
class Prelec(_Family):
    """Raise the surprise of an event to a power: the compound-invariant family.

    ``Omega(p) = exp(-beta (-ln p)**alpha)``

    Parameters
    ----------
    alpha : float > 0
        Curvature; below 1 the function is inverse-S.
    beta : float > 0
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
        _set_positive(self, "alpha", "beta")

    def _fixed_point(self) -> float | None:
        return None if self.alpha == 1 else _exp_minus_exp(math.log(self.beta) / (1 - self.alpha))

    def _inflection(self) -> float | None:
        a, b = self.alpha, self.beta
        if a == 1:
            return None
        if b == 1:
            return math.exp(-1)
        # With t = -ln p = exp(s), the second derivative is 0 where alpha beta t**alpha = t + alpha - 1.
        return _exp_minus_exp(_crossing(lambda s: a * b * np.exp(a * s) - np.exp(s) - (a - 1), LOG_SURPRISE))

    @property
    def _slopes(self) -> tuple[float, float]:
        if self.alpha == 1:
            return PowerWeight(self.beta)._slopes
        return (math.inf, math.inf) if self.alpha < 1 else (0.0, 0.0)

    def _log(self, xp: Any, lp: Any) -> Any:
        return -self.beta * (-lp) ** self.alpha

    def _elasticity(self, xp: Any, lp: Any) -> Any:
        return self.alpha * self.beta * (-lp) ** (self.alpha - 1)

    def _inverse(self, xp: Any, w: Any) -> Any:
        return xp.exp(-((-xp.log(w) / self.beta) ** (1 / self.alpha)))


@dataclass(frozen=True)
class LinearInLogOdds(_Family):
    """Perceive log-odds as a linear function of the log-odds.

    ``Omega(p) = elevation p**slope / (elevation p**slope + (1 - p)**slope)``, that is,
    ``logit Omega(p) = slope logit p + ln elevation``.

    Parameters
    ----------
    slope : float > 0
        Curvature (gamma); below 1 the function is inverse-S.
    elevation : float > 0
        Attractiveness (delta): a larger one perceives more.

    Raises
    ------
    ValueError
        If the slope or the elevation is not > 0 or not finite.

    Notes
    -----
    Source: Goldstein and Einhorn (1987), in the form and with the names of Gonzalez and Wu (1999), Cognitive
    Psychology 38, 129-166. arXiv 2509.24207 has Eq. 3 only.

    For a slope other than 1 there is one fixed point, ``logit p = ln elevation/(1 - slope)``, and one inflection. At
    slope 1 there is neither.

    Examples
    --------
    >>> LinearInLogOdds(slope=0.61, elevation=0.724)([0.01, 0.5, 0.99]).round(6).tolist()
    [0.042048, 0.419954, 0.922732]
    """

    slope: float
    elevation: float

    def __post_init__(self) -> None:
        _set_positive(self, "slope", "elevation")

    def _fixed_point(self) -> float | None:
        return None if self.slope == 1 else _expit(math.log(self.elevation) / (1 - self.slope))

    def _inflection(self) -> float | None:
        g, shift = self.slope, math.log(self.elevation)
        if g == 1:
            return None
        return _expit(_crossing(lambda x: np.tanh(x / 2) - g * np.tanh((g * x + shift) / 2), LOG_ODDS))

    @property
    def _slopes(self) -> tuple[float, float]:
        if self.slope == 1:
            return self.elevation, 1 / self.elevation
        return (math.inf, math.inf) if self.slope < 1 else (0.0, 0.0)

    def _value(self, xp: Any, p: Any) -> Any:
        q = 1 - p
        upper = p >= q
        ratio = (xp.where(upper, q, p) / xp.where(upper, p, q)) ** self.slope
        favour = xp.where(upper, self.elevation, self.elevation * ratio)
        return favour / (favour + xp.where(upper, ratio, 1.0))

    def _log(self, xp: Any, lp: Any) -> Any:
        upper, log_q, ratio = _odds(xp, lp, self.slope)
        log_odds = self.slope * (lp - log_q) + math.log(self.elevation)
        likely = log_odds > 0
        # Next to 1 the power keeps the digits of 1 - p that the log-odds lose.
        against = xp.exp(xp.where(likely, -log_odds, log_odds))
        against = xp.where(likely & upper, ratio / self.elevation, against)
        return xp.where(likely, 0.0, log_odds) - xp.log1p(against)

    def _elasticity(self, xp: Any, lp: Any) -> Any:
        _, log_q, _ = _odds(xp, lp, self.slope)
        log_odds = self.slope * (lp - log_q) + math.log(self.elevation)
        return self.slope * xp.exp(self._log(xp, lp) - log_odds - log_q)

    def _inverse(self, xp: Any, w: Any) -> Any:
        log_odds = (xp.log(w) - xp.log1p(-w) - math.log(self.elevation)) / self.slope
        return xp.exp(_log_expit(xp, log_odds))


@dataclass(frozen=True)
class PowerWeight(_Family):
    """Raise probabilities to a power.

    ``Omega(p) = p**exponent``

    Parameters
    ----------
    exponent : float > 0
        Above 1 every probability is underweighted, below 1 overweighted.

    Raises
    ------
    ValueError
        If the exponent is not > 0 or not finite.

    Notes
    -----
    Source: Wakker (2010), Prospect Theory, section 5; it is also what Prop. 4.1 of arXiv 2509.24207 makes of Eq. 3 when
    probabilities are small.

    There is neither a fixed point nor an inflection.

    Examples
    --------
    >>> PowerWeight(2.0)([0.0, 0.2, 0.5, 1.0]).round(12).tolist()
    [0.0, 0.04, 0.25, 1.0]
    """

    exponent: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "exponent", _checks.positive("exponent", self.exponent))

    @property
    def _slopes(self) -> tuple[float, float]:
        at_zero = 1.0 if self.exponent == 1 else 0.0 if self.exponent > 1 else math.inf
        return at_zero, self.exponent

    def _value(self, xp: Any, p: Any) -> Any:
        return p**self.exponent

    def _log(self, xp: Any, lp: Any) -> Any:
        return self.exponent * lp

    def _elasticity(self, xp: Any, lp: Any) -> Any:
        return xp.full_like(lp, self.exponent)

    def _inverse(self, xp: Any, w: Any) -> Any:
        return w ** (1 / self.exponent)


@dataclass(frozen=True)
class NeoAdditive(_Family):
    """Perceive probabilities linearly between a jump at 0 and a jump at 1.

    ``Omega(p) = intercept + slope p`` for ``0 < p < 1``, ``Omega(0) = 0``, ``Omega(1) = 1``.

    Parameters
    ----------
    slope : float > 0
        Sensitivity to probability (a).
    intercept : float >= 0
        The jump at 0 (b); the jump at 1 is ``1 - slope - intercept``.

    Raises
    ------
    ValueError
        If the slope is not > 0, the intercept is negative, or they sum to more than 1.

    Notes
    -----
    Source: Chateauneuf, Eichberger and Grant (2007), Journal of Economic Theory 137, 538-567, as Wakker (2010) writes
    it for risk. Theirs includes slope 0, which has no inverse. arXiv 2509.24207 has Eq. 3 only.

    The function is exact at both ends and jumps next to them: ``log`` is -inf at -inf and about ln(intercept) right
    above it, 0 at 0 and ln(intercept + slope) right below it. The derivative is infinite where there is a jump (the
    gradient returned there is 0), else the slope. The inverse is 0 up to the intercept and 1 from intercept + slope
    on. The fixed point is ``intercept/(1 - slope)`` if there are jumps at both ends; there is no inflection.

    Examples
    --------
    >>> NeoAdditive(slope=0.8, intercept=0.1)([0.0, 0.01, 0.5, 0.99, 1.0]).round(6).tolist()
    [0.0, 0.108, 0.5, 0.892, 1.0]
    """

    slope: float
    intercept: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "slope", _checks.positive("slope", self.slope))
        object.__setattr__(self, "intercept", _checks.non_negative("intercept", self.intercept))
        if self.slope + self.intercept > 1:
            raise _checks.fail("slope + intercept", "be <= 1", self.slope + self.intercept)

    def _fixed_point(self) -> float | None:
        return self.intercept / (self.intercept + self._top_jump) if self.intercept > 0 and self._top_jump > 0 else None

    @property
    def _top_jump(self) -> float:
        total = self.slope + self.intercept
        return 0.0 if total == 1 else math.fsum((1.0, -self.slope, -self.intercept))

    @property
    def _slopes(self) -> tuple[float, float]:
        return (math.inf if self.intercept > 0 else self.slope), (math.inf if self._top_jump > 0 else self.slope)

    def _value(self, xp: Any, p: Any) -> Any:
        return self.intercept + self.slope * p

    def _log(self, xp: Any, lp: Any) -> Any:
        if self.intercept == 0:
            return math.log(self.slope) + lp
        value = self.intercept + self.slope * xp.exp(lp)
        likely = value > 0.5
        below_one = xp.where(likely, self.slope * xp.expm1(lp) - self._top_jump, 0.0)
        return xp.where(likely, xp.log1p(below_one), xp.log(xp.where(likely, 1.0, value)))

    def _slope(self, xp: Any, lp: Any) -> Any:
        return xp.full_like(lp, self.slope)

    def _inverse(self, xp: Any, w: Any) -> Any:
        p = (w - self.intercept) / self.slope
        return xp.where(p < 0, 0.0, xp.where(p > 1, 1.0, p))


@dataclass(frozen=True)
class ExponentialPower(_Family):
    """Take the exponential of a power: Prelec's conditionally invariant family.

    ``Omega(p) = exp(-(alpha/beta) (1 - p**beta))``, and its limit ``p**alpha`` for beta = 0.

    Parameters
    ----------
    alpha : float > 0
        The slope at 1.
    beta : float
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
        object.__setattr__(self, "alpha", _checks.positive("alpha", self.alpha))
        object.__setattr__(self, "beta", _checks.finite("beta", self.beta))

    def _fixed_point(self) -> float | None:
        a, b = self.alpha, self.beta
        if (a - 1) * b <= 0:
            return None
        return _exp_minus_exp(_crossing(lambda s: a / b * np.expm1(-b * np.exp(s)) + np.exp(s), LOG_SURPRISE))

    def _inflection(self) -> float | None:
        if self.beta == 0 or self.beta >= 1:
            return None
        log_p = (math.log1p(-self.beta) - math.log(self.alpha)) / self.beta
        return _proper(math.exp(log_p)) if log_p < 0 else None

    @property
    def _slopes(self) -> tuple[float, float]:
        if self.beta == 0:
            return PowerWeight(self.alpha)._slopes
        return (math.inf if self.beta > 0 else 0.0), self.alpha

    def _log(self, xp: Any, lp: Any) -> Any:
        if self.beta == 0:
            return self.alpha * lp
        if self.beta > 0:
            return self.alpha / self.beta * xp.expm1(self.beta * lp)
        # Far below, the result is too negative for a float; beyond this it is -inf, with gradient 0.
        limit = math.log(xp.finfo(lp.dtype).max) - 1 - math.log1p(self.alpha) - math.log1p(-self.beta)
        beyond = self.beta * lp > limit
        log_value = self.alpha / self.beta * xp.expm1(self.beta * xp.where(beyond, -1.0, lp))
        return xp.where(beyond, -math.inf, log_value)

    def _slope(self, xp: Any, lp: Any) -> Any:
        return self.alpha * xp.exp(self._log(xp, lp) + (self.beta - 1) * lp)

    def _inverse(self, xp: Any, w: Any) -> Any:
        if self.beta == 0:
            return xp.exp(xp.log(w) / self.alpha)
        power = self.beta / self.alpha * xp.log(w)
        jumped = power <= -1
        return xp.where(jumped, 0.0, xp.exp(xp.log1p(xp.where(jumped, 0.0, power)) / self.beta))


@dataclass(frozen=True)
class HyperbolicLog(_Family):
    """Take a power of a hyperbola in the surprise of an event: Prelec's projection-invariant family.

    ``Omega(p) = (1 - alpha ln p)**(-beta/alpha)``

    Parameters
    ----------
    alpha : float > 0
        Towards 0 the function becomes ``p**beta``.
    beta : float > 0
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
        _set_positive(self, "alpha", "beta")

    def _fixed_point(self) -> float | None:
        a, b = self.alpha, self.beta
        if b <= 1:
            return None
        return _exp_minus_exp(_crossing(lambda s: b / a * np.log1p(a * np.exp(s)) - np.exp(s), LOG_SURPRISE))

    def _inflection(self) -> float | None:
        return _proper(math.exp(min(0.0, (1 - self.alpha - self.beta) / self.alpha)))

    @property
    def _slopes(self) -> tuple[float, float]:
        return math.inf, self.beta

    def _log(self, xp: Any, lp: Any) -> Any:
        return -self.beta / self.alpha * xp.log1p(-self.alpha * lp)

    def _elasticity(self, xp: Any, lp: Any) -> Any:
        return self.beta / (1 - self.alpha * lp)

    def _inverse(self, xp: Any, w: Any) -> Any:
        return xp.exp(-xp.expm1(-self.alpha / self.beta * xp.log(w)) / self.alpha)


@dataclass(frozen=True)
class Identity(_Family):
    """Perceive probabilities as they are: ``Omega(p) = p``.

    Notes
    -----
    Source: arXiv 2509.24207, Eq. 3 at gamma = 1.

    Every point is a fixed point: `fixed_point` is None.

    Examples
    --------
    >>> Identity()([0.0, 0.3, 1.0]).tolist()
    [0.0, 0.3, 1.0]
    """

    @property
    def _slopes(self) -> tuple[float, float]:
        return 1.0, 1.0

    def _value(self, xp: Any, p: Any) -> Any:
        return p

    def _log(self, xp: Any, lp: Any) -> Any:
        return lp

    def _slope(self, xp: Any, lp: Any) -> Any:
        return xp.ones_like(lp)

    def _inverse(self, xp: Any, w: Any) -> Any:
        return w


def _set_positive(capacity: Any, *names: str) -> None:
    """Replace fields of a new capacity by floats; raise unless each is finite and > 0."""
    for name in names:
        object.__setattr__(capacity, name, _checks.positive(name, getattr(capacity, name)))


def _in_blocks(
    function: Callable[[Any, Any], Any], name: str, rule: str, value: Any, *, lowest: float = 0.0, highest: float = 1.0
) -> Any:
    """Check the domain and apply an elementwise function, to large numpy arrays block by block."""
    xp, (given,) = floats(**{name: value})

    def checked(part: Any) -> Any:
        _checks.no_element(name, rule, (part < lowest) | (part > highest), part)
        return function(xp, part)

    with np.errstate(over="ignore"):
        if not isinstance(given, np.ndarray) or given.size <= BLOCK:
            return plain(checked(given))
        flat = given.reshape(-1)
        out = np.empty_like(flat)
        for start in range(0, flat.size, BLOCK):
            out[start : start + BLOCK] = checked(flat[start : start + BLOCK])
    return out.reshape(given.shape)


def _between(
    xp: Any,
    function: Callable[[Any, Any], Any],
    given: Any,
    low: tuple[float, float, float],
    high: tuple[float, float, float],
    inner: float,
) -> Any:
    """Apply `function` strictly between two ends, each given as (end, image, slope).

    At an end the result is its image, with the slope as its gradient, or 0 if that is infinite. `function` sees an
    inner point instead: its own slope there may be infinite, and autograd would multiply that by 0.
    """
    below, above = given <= low[0], given >= high[0]
    out = function(xp, xp.where(below | above, inner, given))
    at_low, at_high = (
        image + slope * (given - end) if 0 < slope < math.inf else image for end, image, slope in (low, high)
    )
    return xp.where(below, at_low, xp.where(above, at_high, out))


def _odds(xp: Any, lp: Any, power: float) -> tuple[Any, Any, Any]:
    """Return whether p > 1/2, ln(1 - p), and the odds against p, or for p if that is less, to a power."""
    upper = lp > LOG_HALF
    high, low = xp.where(upper, lp, LOG_HALF), xp.where(upper, LOG_HALF, lp)
    log_q = xp.where(upper, xp.log(-xp.expm1(high)), xp.log1p(-xp.exp(low)))
    # Above 1/2, (1 - p)/p = exp(-lp) - 1 keeps all digits.
    return upper, log_q, xp.where(upper, xp.expm1(-high) ** power, xp.exp(power * (low - xp.log1p(-xp.exp(low)))))


def _log_expit(xp: Any, log_odds: Any) -> Any:
    """Return the log of the probability of log-odds."""
    likely = log_odds > 0
    return xp.where(likely, 0.0, log_odds) - xp.log1p(xp.exp(xp.where(likely, -log_odds, log_odds)))


def _any(condition: Any) -> bool:
    """Return whether a condition holds anywhere; True where values cannot be read."""
    try:
        return bool(condition.any())
    except RuntimeError:
        return True


def _crossing(function: Callable[[Any], Any], points: Any) -> float | None:
    """Return where `function` first changes its sign, going up through `points`; None if it does not."""
    from scipy.optimize import brentq

    with np.errstate(over="ignore", invalid="ignore"):
        signs = np.sign(function(points))
        points, signs = points[np.abs(signs) == 1], signs[np.abs(signs) == 1]
        changes = np.flatnonzero(signs[1:] != signs[:-1])
        if not changes.size:
            return None
        first = changes[0]
        return float(brentq(function, points[first], points[first + 1], xtol=1e-15, rtol=1e-15))


def _expit(log_odds: float | None) -> float | None:
    """Return the probability of log-odds; None for None or where no float lies strictly between 0 and 1."""
    return None if log_odds is None else _proper(math.exp(-float(np.logaddexp(0, -log_odds))))


def _exp_minus_exp(log_surprise: float | None) -> float | None:
    """Return the probability p of a given ln(-ln p); None for None or where no float lies strictly between 0 and 1."""
    return None if log_surprise is None else _proper(math.exp(-math.exp(min(log_surprise, 700.0))))


def _proper(prob: float) -> float | None:
    return prob if 0 < prob < 1 else None
