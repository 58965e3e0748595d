"""Capacity functions that are simple: linear in the log-odds or in the probability, a power, none at all."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from humanline import _checks
from humanline.theory.capacity.family import (
    LOG_ODDS,
    Family,
    choose,
    crossing,
    expit,
    log_expit,
    log_of,
    powered_odds,
    set_parameters,
    set_positive,
)


@dataclass(frozen=True)
class LinearInLogOdds(Family):
    """Perceive log-odds as a linear function of the log-odds.

    ``Omega(p) = elevation p**slope / (elevation p**slope + (1 - p)**slope)``, that is,
    ``logit Omega(p) = slope logit p + ln elevation``.

    Parameters
    ----------
    slope : float > 0, or array
        Curvature (gamma); below 1 the function is inverse-S.
    elevation : float > 0, or array
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
        set_positive(self, "slope", "elevation")

    def _fixed_point(self) -> float | None:
        return None if self.slope == 1 else expit(log_of(self.elevation) / (1 - self.slope))

    def _inflection(self) -> float | None:
        g, shift = self.slope, math.log(self.elevation)
        if g == 1:
            return None
        return expit(crossing(lambda x: np.tanh(x / 2) - g * np.tanh((g * x + shift) / 2), LOG_ODDS))

    @property
    def _slopes(self) -> tuple[float, float]:
        if self._arrays:
            flat, ends = self.slope == 1, choose(self.slope < 1, math.inf, 0.0)
            return choose(flat, self.elevation, ends), choose(flat, 1 / self.elevation, ends)
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
        return self._terms(xp, lp)[0]

    def _terms(self, xp: Any, lp: Any, log_q: Any = None) -> tuple[Any, Any, Any]:
        """Return ln Omega, ln(1 - p), and the log-odds of Omega."""
        upper, log_q, ratio = powered_odds(xp, lp, self.slope, log_q)
        log_odds = self.slope * (lp - log_q) + log_of(self.elevation)
        likely = log_odds > 0
        # Next to 1 the power keeps the digits of 1 - p that the log-odds lose.
        against = xp.exp(xp.where(likely, -log_odds, log_odds))
        against = xp.where(likely & upper, ratio / self.elevation, against)
        return xp.where(likely, 0.0, log_odds) - xp.log1p(against), log_q, log_odds

    def _elasticity(self, xp: Any, lp: Any) -> Any:
        log_value, log_q, log_odds = self._terms(xp, lp)
        return self.slope * xp.exp(log_value - log_odds - log_q)

    def _with_partials(self, xp: Any, lp: Any, log_q: Any) -> tuple[Any, list[Any]]:
        log_value, log_q, log_odds = self._terms(xp, lp, log_q)
        value, rest = xp.exp(log_value), xp.exp(log_value - log_odds)  # 1 - Omega
        return value, [value * rest * (lp - log_q), value * rest / self.elevation]

    def _inverse(self, xp: Any, w: Any) -> Any:
        log_odds = (xp.log(w) - xp.log1p(-w) - log_of(self.elevation)) / self.slope
        return xp.exp(log_expit(xp, log_odds))


@dataclass(frozen=True)
class PowerWeight(Family):
    """Raise probabilities to a power.

    ``Omega(p) = p**exponent``

    Parameters
    ----------
    exponent : float > 0, or array
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
        set_positive(self, "exponent")

    @property
    def _slopes(self) -> tuple[float, float]:
        at_zero = choose(self.exponent == 1, 1.0, choose(self.exponent > 1, 0.0, math.inf))
        return at_zero, self.exponent

    def _value(self, xp: Any, p: Any) -> Any:
        return p**self.exponent

    def _log(self, xp: Any, lp: Any) -> Any:
        return self.exponent * lp

    def _elasticity(self, xp: Any, lp: Any) -> Any:
        return xp.zeros_like(lp) + self.exponent if self._arrays else xp.full_like(lp, self.exponent)

    def _log_partials(self, xp: Any, lp: Any) -> list[Any]:
        return [lp]

    def _inverse(self, xp: Any, w: Any) -> Any:
        return w ** (1 / self.exponent)


@dataclass(frozen=True)
class NeoAdditive(Family):
    """Perceive probabilities linearly between a jump at 0 and a jump at 1.

    ``Omega(p) = intercept + slope p`` for ``0 < p < 1``, ``Omega(0) = 0``, ``Omega(1) = 1``.

    Parameters
    ----------
    slope : float > 0, or array
        Sensitivity to probability (a).
    intercept : float >= 0, or array
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
        set_parameters(self, slope=_checks.positive, intercept=_checks.non_negative)
        total = self.slope + self.intercept
        if self._arrays:
            _checks.no_element("slope + intercept", "be <= 1", total > 1, total)
        elif total > 1:
            raise _checks.fail("slope + intercept", "be <= 1", total)

    def _fixed_point(self) -> float | None:
        return self.intercept / (self.intercept + self._top_jump) if self.intercept > 0 and self._top_jump > 0 else None

    @property
    def _top_jump(self) -> Any:
        total = self.slope + self.intercept
        if self._arrays:
            return choose(total == 1, 0.0, 1 - self.slope - self.intercept)
        return 0.0 if total == 1 else math.fsum((1.0, -self.slope, -self.intercept))

    @property
    def _slopes(self) -> tuple[float, float]:
        at_zero = choose(self.intercept > 0, math.inf, self.slope)
        return at_zero, choose(self._top_jump > 0, math.inf, self.slope)

    def _value(self, xp: Any, p: Any) -> Any:
        return self.intercept + self.slope * p

    def _log(self, xp: Any, lp: Any) -> Any:
        if not self._arrays and self.intercept == 0:
            return math.log(self.slope) + lp
        value = self.intercept + self.slope * xp.exp(lp)
        likely = value > 0.5
        below_one = xp.where(likely, self.slope * xp.expm1(lp) - self._top_jump, 0.0)
        return xp.where(likely, xp.log1p(below_one), xp.log(xp.where(likely, 1.0, value)))

    def _slope(self, xp: Any, lp: Any) -> Any:
        return xp.zeros_like(lp) + self.slope if self._arrays else xp.full_like(lp, self.slope)

    def _with_partials(self, xp: Any, lp: Any, log_q: Any) -> tuple[Any, list[Any]]:
        return xp.exp(self._log(xp, lp)), [xp.exp(lp), xp.ones_like(lp)]

    def _inverse(self, xp: Any, w: Any) -> Any:
        p = (w - self.intercept) / self.slope
        return xp.where(p < 0, 0.0, xp.where(p > 1, 1.0, p))


@dataclass(frozen=True)
class Identity(Family):
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

    def _log_partials(self, xp: Any, lp: Any) -> list[Any]:
        return []

    def _inverse(self, xp: Any, w: Any) -> Any:
        return w
