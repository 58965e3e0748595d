"""What a capacity function is, and what the families of them share (Definition 3.2)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, ClassVar, Protocol

import numpy as np
from array_api_compat import array_namespace

from humanline import _checks
from humanline.theory._arrays import floats, plain

#: Values of a numpy array that are worked on at a time: few enough for intermediate results to stay in the cache.
BLOCK = 32_768
#: ln p = ln(1 - p) here.
LOG_HALF = -math.log(2)
#: Where roots are looked for: log-odds of all floats between 0 and 1 and far below, and ln(-ln p).
LOG_ODDS = np.concatenate([-np.sinh(np.linspace(8, 0, 1000)), np.linspace(0, 36.8, 400)[1:]])
LOG_SURPRISE = np.linspace(-700, 700, 2800)


class Capacity(Protocol):
    """Map cumulative probabilities to perceived ones, 0 to 0 and 1 to 1.

    Any such function of arrays will do. The families of this package also have ``log(log_prob)``, which keeps its
    precision next to 1 and far below the smallest float, ``derivative``, ``partials``, ``inverse``, ``is_monotone``,
    ``fixed_point`` and ``inflection``.

    Notes
    -----
    Source: arXiv 2509.24207, Def. 3.2.
    """

    def __call__(self, prob: Any, /) -> Any:
        """Return the perceived cumulative probability, of the kind of `prob`."""


class Family:
    """What the families share: checks, exact ends, gradients that are never nan, and blocks of numpy arrays.

    A family gives, for what lies strictly between the ends: ``_log`` (of ln p), ``_elasticity`` (d ln Omega / d ln p,
    of ln p), ``_inverse`` (of the perceived probability) and, where there is something better than exp(_log(ln p)),
    ``_value``; ``_log_partials`` (d ln Omega / d parameter, of ln p, in the order of the fields), or ``_with_partials``
    (Omega, and its derivatives, where these share work); and ``_slopes``, the
    derivatives at 0 and at 1, infinite where the function jumps. Parameters may be arrays that broadcast against the
    probabilities, one entry for each person say; then the three properties below are not to be had.
    """

    #: Whether a parameter is an array with axes.
    _arrays: ClassVar[bool] = False

    @property
    def has_arrays(self) -> bool:
        """Whether a parameter is an array of several."""
        return self._arrays

    @property
    def is_monotone(self) -> bool:
        """Whether the function never decreases."""
        return True

    @property
    def fixed_point(self) -> float | None:
        """The probability strictly between 0 and 1 that is perceived as it is; None if none or all are."""
        self._needs_numbers("fixed_point")
        return self._fixed_point()

    @property
    def inflection(self) -> float | None:
        """The lowest probability strictly between 0 and 1 at which the curvature changes its sign, or None."""
        self._needs_numbers("inflection")
        return self._inflection()

    def __call__(self, prob: Any) -> Any:
        """Return the perceived cumulative probability.

        Parameters
        ----------
        prob : array or scalar in [0, 1], any shape
            nan stays nan.

        Returns
        -------
        numpy array, numpy scalar for a number, or torch tensor for a tensor
            Of the same shape, floating dtype and device; in [0, 1].

        Raises
        ------
        ValueError
            If a probability lies outside [0, 1].
        """
        return self._in_blocks(self._closed_value, "prob", "lie in [0, 1]", prob)

    def log(self, log_prob: Any) -> Any:
        """Return the log of the perceived cumulative probability, from the log of the probability.

        Parameters
        ----------
        log_prob : array or scalar <= 0, any shape
            Nats; a sequence's log-probability of -1e5 is fine, and so is -1e-300. nan stays nan.

        Returns
        -------
        numpy array, numpy scalar for a number, or torch tensor for a tensor
            Of the same shape, floating dtype and device; nats, <= 0.

        Raises
        ------
        ValueError
            If a log-probability is above 0.
        """

        def closed(xp: Any, lp: Any) -> Any:
            low, high = (-math.inf, -math.inf, 0.0), (0.0, 0.0, self._slopes[1])
            return between(xp, self._log, lp, low, high, LOG_HALF)

        return self._in_blocks(closed, "log_prob", "be <= 0", log_prob, lowest=-math.inf, highest=0.0)

    def derivative(self, prob: Any) -> Any:
        """Return the slope of the function.

        Parameters
        ----------
        prob : array or scalar in [0, 1], any shape
            nan stays nan.

        Returns
        -------
        numpy array, numpy scalar for a number, or torch tensor for a tensor
            Of the same shape, floating dtype and device.
            At 0 and at 1 the limit from inside, infinite where that is, and where the function jumps.

        Raises
        ------
        ValueError
            If a probability lies outside [0, 1].
        """

        def closed(xp: Any, p: Any) -> Any:
            low, high = (0.0, self._slopes[0], 0.0), (1.0, self._slopes[1], 0.0)
            return between(xp, lambda xp, inner: self._slope(xp, xp.log(inner)), p, low, high, 0.5)

        return self._in_blocks(closed, "prob", "lie in [0, 1]", prob)

    def inverse(self, perceived: Any) -> Any:
        """Return the probability that is perceived as the one given.

        Parameters
        ----------
        perceived : array or scalar in [0, 1], any shape
            nan stays nan.

        Returns
        -------
        numpy array, numpy scalar for a number, or torch tensor for a tensor
            Of the same shape, floating dtype and device; in [0, 1].
            A value that the function jumps over belongs to the end at which it jumps.

        Raises
        ------
        ValueError
            If a number lies outside [0, 1], or the function is not monotone: a value then can have several origins.
        """
        if not self.is_monotone:
            raise _checks.fail("capacity", "be monotone to have an inverse", self)

        def closed(xp: Any, w: Any) -> Any:
            with np.errstate(divide="ignore"):
                rises = [choose(slope > 0, 1 / choose(slope > 0, slope, 1.0), math.inf) for slope in self._slopes]
            return between(xp, self._inverse, w, (0.0, 0.0, rises[0]), (1.0, 1.0, rises[1]), 0.5)

        return self._in_blocks(closed, "perceived", "lie in [0, 1]", perceived)

    def partials(self, log_prob: Any, log_rest: Any = None) -> tuple[Any, dict[str, Any]]:
        """Return the perceived cumulative probability and its derivatives in the parameters, from ln p.

        Parameters
        ----------
        log_prob : array or scalar <= 0, any shape
            Nats: ``log(p)``, or ``log1p(-q)`` next to 1, where only ``q = 1 - p`` is known with all its digits. nan
            stays nan.
        log_rest : array of the same shape, optional
            ``log(1 - p)``, if it is known: it takes most of the time where a capacity needs it, and does not depend on
            parameters.

        Returns
        -------
        perceived : numpy array, numpy scalar for a number, or torch tensor for a tensor
            Of the same shape, floating dtype and device; in [0, 1].
        partials : dict from name to the like
            ``d Omega(p) / d parameter`` for each; 0 at both ends, which are exact for all parameters.

        Raises
        ------
        ValueError
            If a log-probability is above 0.
        """
        xp, (lp,) = floats(log_prob=log_prob)
        _checks.no_element("log_prob", "be <= 0", lp > 0, lp)
        below, above = lp == -math.inf, lp == 0
        ends = below | above
        inner = xp.where(ends, LOG_HALF, lp)
        rest = None if log_rest is None else xp.where(ends, LOG_HALF, log_rest)
        with np.errstate(over="ignore", under="ignore", divide="ignore", invalid="ignore"):
            value, found = self._with_partials(xp, inner, rest)
        names = [field.name for field in dataclasses.fields(self)]  # type: ignore[arg-type]
        perceived = xp.where(below, 0.0, xp.where(above, 1.0, value))
        vanished = ends | (value == 0)  # an infinite derivative of the logarithm is one of 0
        return plain(perceived), {
            name: plain(xp.where(vanished, 0.0, each)) for name, each in zip(names, found, strict=True)
        }

    def _with_partials(self, xp: Any, lp: Any, log_q: Any) -> tuple[Any, list[Any]]:
        value = xp.exp(self._log(xp, lp))
        return value, [value * each for each in self._log_partials(xp, lp)]

    def _log_partials(self, xp: Any, lp: Any) -> list[Any]:
        raise NotImplementedError

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
        return between(xp, self._value, p, (0.0, 0.0, low), (1.0, 1.0, high), 0.5)

    def _in_blocks(
        self,
        function: Callable[[Any, Any], Any],
        name: str,
        rule: str,
        value: Any,
        *,
        lowest: float = 0.0,
        highest: float = 1.0,
    ) -> Any:
        """Check the domain and apply an elementwise function, to large numpy arrays block by block."""
        xp, (given,) = floats(**{name: value})

        def checked(part: Any) -> Any:
            _checks.no_element(name, rule, (part < lowest) | (part > highest), part)
            return function(xp, part)

        with np.errstate(over="ignore"):
            if self._arrays or not isinstance(given, np.ndarray) or given.size <= BLOCK:
                return plain(checked(given))
            flat = given.reshape(-1)
            out = np.empty_like(flat)
            for start in range(0, flat.size, BLOCK):
                out[start : start + BLOCK] = checked(flat[start : start + BLOCK])
        return out.reshape(given.shape)

    def _needs_numbers(self, name: str) -> None:
        if self._arrays:
            raise TypeError(f"{name} is that of one capacity; the parameters of {type(self).__name__} are arrays")


def set_positive(capacity: Any, *names: str) -> None:
    """Replace fields of a new capacity by floats, or arrays; raise unless each is finite and > 0."""
    set_parameters(capacity, **dict.fromkeys(names, _checks.positive))


def set_parameters(capacity: Any, **checks: Callable[[str, Any], float]) -> None:
    """Replace fields of a new capacity by floats that pass their check, or arrays whose entries do."""
    for name, check in checks.items():
        value = _checks.parameter(name, getattr(capacity, name), check)
        object.__setattr__(capacity, name, value)
        if not isinstance(value, float):
            object.__setattr__(capacity, "_arrays", True)


def choose(condition: Any, yes: Any, no: Any) -> Any:
    """Return one of two numbers; of a condition on arrays one for each entry."""
    if not _checks.has_axes(condition):
        return yes if condition else no
    return array_namespace(condition).where(condition, yes, no)


def log_of(parameter: Any) -> Any:
    """Return the logarithm of a parameter."""
    return array_namespace(parameter).log(parameter) if _checks.has_axes(parameter) else math.log(parameter)


def between(
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
    at_low, at_high = (_at_end(xp, given, *end) for end in (low, high))
    return xp.where(below, at_low, xp.where(above, at_high, out))


def _at_end(xp: Any, given: Any, end: float, image: Any, slope: Any) -> Any:
    if _checks.has_axes(slope):
        smooth = (slope > 0) & (slope < math.inf)
        return image + xp.where(smooth, xp.where(smooth, slope, 0.0) * (given - end), 0.0)
    return image + slope * (given - end) if 0 < slope < math.inf else image


def powered_odds(xp: Any, lp: Any, power: float, log_q: Any = None) -> tuple[Any, Any, Any]:
    """Return whether p > 1/2, ln(1 - p) (which may be known), and the odds <= 1 of p or against it, to a power."""
    upper = lp > LOG_HALF
    if log_q is not None:
        return upper, log_q, xp.exp(-power * abs(lp - log_q))
    if isinstance(lp, np.ndarray) and lp.ndim and np.shape(power) in ((), lp.shape):
        return upper, *_odds_by_halves(lp, upper, power)
    high, low = xp.where(upper, lp, LOG_HALF), xp.where(upper, LOG_HALF, lp)
    log_q = xp.where(upper, xp.log(-xp.expm1(high)), xp.log1p(-xp.exp(low)))
    # Above 1/2, (1 - p)/p = exp(-lp) - 1 keeps all digits.
    return upper, log_q, xp.where(upper, xp.expm1(-high) ** power, xp.exp(power * (low - xp.log1p(-xp.exp(low)))))


def _odds_by_halves(lp: Any, upper: Any, power: Any) -> tuple[Any, Any]:
    """Return the last two of `powered_odds`, of either half of a numpy array only what it needs."""
    log_q, odds = np.empty_like(lp), np.empty_like(lp)
    for half in (upper, ~upper):
        mine, own = lp[half], power[half] if np.ndim(power) else power
        if half is upper:
            log_q[half], odds[half] = np.log(-np.expm1(mine)), np.expm1(-mine) ** own
        else:
            log_q[half] = rest = np.log1p(-np.exp(mine))
            odds[half] = np.exp(own * (mine - rest))
    return log_q, odds


def log_expit(xp: Any, log_odds: Any) -> Any:
    """Return the log of the probability of log-odds."""
    likely = log_odds > 0
    return xp.where(likely, 0.0, log_odds) - xp.log1p(xp.exp(xp.where(likely, -log_odds, log_odds)))


def crossing(function: Callable[[Any], Any], points: Any) -> float | None:
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


def expit(log_odds: float | None) -> float | None:
    """Return the probability of log-odds; None for None or where no float lies strictly between 0 and 1."""
    return None if log_odds is None else strictly_between(math.exp(-float(np.logaddexp(0, -log_odds))))


def exp_minus_exp(log_surprise: float | None) -> float | None:
    """Return the probability p of a given ln(-ln p); None for None or where no float lies strictly between 0 and 1."""
    return None if log_surprise is None else strictly_between(math.exp(-math.exp(min(log_surprise, 700.0))))


def strictly_between(prob: float) -> float | None:
    """Return the probability; None for 0 and 1, which are the ends of every capacity."""
    return prob if 0 < prob < 1 else None
