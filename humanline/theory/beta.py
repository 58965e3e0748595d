"""The Beta distribution: shapes, draws, and its distribution function, precise at both ends and far in its tail."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from humanline import _checks
from humanline.theory._arrays import float64, plain
from humanline.theory._excess import minus_log1p
from humanline.theory._special import betainc, betaincc, betaln

#: Below this, scipy's distribution function is about to underflow and the log comes from the series instead.
SMALL = 1e-290
#: So many terms of that series, and then what it has not come to an end of is a continued fraction.
_TERMS = 5_000
_FRACTIONS = 1_000_000
#: From here on Stirling's series has all digits after two terms.
_LARGE = 1e4
#: Draws and values are made in blocks that stay in the cache.
BLOCK = 16_384


@dataclass(frozen=True)
class BetaShape:
    """Hold the two shapes of a Beta variable.

    density proportional to ``x**(a - 1) (1 - x)**(b - 1)`` on [0, 1]

    Parameters
    ----------
    a, b : float > 0

    Raises
    ------
    ValueError
        If a shape is not > 0 or not finite.

    Notes
    -----
    Source: arXiv 2509.24207, Def. 4.2, where they are called gamma and beta.

    Examples
    --------
    >>> BetaShape(1, 3).mean
    0.25
    """

    a: float
    b: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "a", _checks.positive("a", self.a))
        object.__setattr__(self, "b", _checks.positive("b", self.b))

    @property
    def mean(self) -> float:
        """The mean, ``a / (a + b)``."""
        return self.a / (self.a + self.b)

    @property
    def variance(self) -> float:
        """The variance, ``mean (1 - mean) / (a + b + 1)``."""
        return self.mean * (self.b / (self.a + self.b)) / (self.a + self.b + 1)

    def cdf(self, x: ArrayLike) -> Any:
        """Return the probability of a draw of at most x.

        ``I(x; a, b)``; ``x**a`` if b = 1, ``1 - (1 - x)**b`` if a = 1

        Parameters
        ----------
        x : array or scalar, any shape
            Below 0 the result is 0, above 1 it is 1; nan stays nan.

        Returns
        -------
        numpy float64 array, or numpy scalar for a number
            Of the same shape; for torch tensors too.

        Notes
        -----
        Source: arXiv 2509.24207, Prop. 4.1 (its proof derives ``x**a``).

        Examples
        --------
        >>> BetaShape(2, 1).cdf([-1.0, 0.5, 2.0]).tolist()
        [0.0, 0.25, 1.0]
        """
        given = float64("x", x)
        if given.size and not (given.min() >= 0 and given.max() <= 1):
            given = np.clip(given, 0.0, 1.0)
        if self.b == 1:
            return plain(np.power(given, self.a))
        if self.a == 1:
            return plain(_one_less_power(given, self.b))
        return plain(betainc(self.a, self.b, given))

    def sample(self, rng: np.random.Generator, size: int | tuple[int, ...] | None = None) -> Any:
        """Draw from the distribution.

        With E a standard exponential variable, ``exp(-E / a)`` is a draw if b = 1 and ``1 - exp(-E / b)`` if a = 1;
        other shapes are left to numpy.

        Parameters
        ----------
        rng : numpy.random.Generator
            Advanced by the draws. The values differ from those of ``rng.beta`` with the same state.
        size : int or tuple of int, optional
            Shape of the result; a scalar by default.

        Returns
        -------
        numpy float64 array in [0, 1] of shape `size`, or a float

        Raises
        ------
        TypeError
            If `rng` is not a Generator.

        Notes
        -----
        Source: arXiv 2509.24207, Prop. 4.1: its ``U**(1/gamma)`` is ``exp(-E / gamma)`` with ``E = -ln U``. As for
        numpy, a draw closer to 0 or 1 than floats are is 0 or 1.

        Examples
        --------
        >>> draws = BetaShape(0.61, 1).sample(np.random.default_rng(0), (2, 50_000))
        >>> draws.shape, bool(abs(draws.mean() - 0.61 / 1.61) < 0.01)
        ((2, 50000), True)
        """
        _checks.instance("rng", rng, np.random.Generator)
        if self.a != 1 and self.b != 1:
            return rng.beta(self.a, self.b, size)
        if size is None:
            return self.sample(rng, 1)[0]
        draws = np.empty(size)
        flat = draws.reshape(-1)
        scale = -1 / (self.a if self.b == 1 else self.b)
        for start in range(0, flat.size, BLOCK):
            block = flat[start : start + BLOCK]
            rng.standard_exponential(out=block)
            np.multiply(block, scale, out=block)
            np.exp(block, out=block)
            if self.b != 1:
                np.subtract(1.0, block, out=block)
        return draws


def _one_less_power(x: NDArray[np.float64], b: float) -> NDArray[np.float64]:
    """Return ``1 - (1 - x)**b`` for x in [0, 1], of the same shape."""
    result = np.empty(x.shape)
    flat, given = result.reshape(-1), x.reshape(-1)
    with np.errstate(divide="ignore"):
        for start in range(0, flat.size, BLOCK):
            block = np.negative(given[start : start + BLOCK], out=flat[start : start + BLOCK])
            np.log1p(block, out=block)
            np.multiply(block, b, out=block)
            np.expm1(block, out=block)
            np.negative(block, out=block)
    return result


def cdf(a: Any, b: Any, log_x: Any) -> Any:
    """Return I(x; a, b), from the end at which its argument is precise."""
    low = betainc(a, b, np.exp(log_x))
    return np.where(log_x < -math.log(2), low, betaincc(b, a, -np.expm1(log_x)))


def survival(a: Any, b: Any, log_x: Any) -> Any:
    """Return 1 - I(x; a, b) without subtracting from 1."""
    low = betaincc(a, b, np.exp(log_x))
    return np.where(log_x < -math.log(2), low, betainc(b, a, -np.expm1(log_x)))


def log_cdf(a: Any, b: Any, log_x: Any) -> Any:
    """Return ln I(x; a, b), also where I itself underflows."""
    a, b, log_x = np.broadcast_arrays(a, b, np.asarray(log_x, dtype=np.float64))
    below, above = cdf(a, b, log_x), survival(a, b, log_x)
    with np.errstate(divide="ignore"):
        result = np.where(below < 0.5, np.log(below), np.log1p(-above) + 0.0)
    far = (below < SMALL) & (log_x > -np.inf)
    if far.any():
        result[far] = _log_tail(a[far], b[far], log_x[far])
    return result


def _log_tail(a: Any, b: Any, log_x: Any) -> Any:
    """Return ln I by ``I = x**a (1 - x)**b / (a B(a, b)) sum_n prod_{i<=n} x (a + b + i - 1) / (a + i)``."""
    x = np.exp(log_x)
    term, total, n = np.ones_like(x), np.ones_like(x), 0
    while (going := term > 1e-17 * total).any() and n < _TERMS:
        term = term * x * (a + b + n) / (a + 1 + n)
        total += term
        n += 1
    log_total = np.log(total)
    if going.any():  # x is so near 1 that the series would take up to 40 / (1 - x) terms
        log_total[going] = _log_continued(a[going], b[going], log_x[going])
    return _log_density(a, b, log_x) - np.log(a) + log_total


def _log_density(a: Any, b: Any, log_x: Any) -> Any:
    """Return ``ln(x**a (1 - x)**b / B(a, b))``, whose terms cancel where both shapes are large.

    There the powers are held against those at the mean m, ``-(a + b) kl(m || x)``, and Stirling's series does the rest
    (Loader, Fast and accurate computation of binomial probabilities, 2000).
    """
    x = np.exp(log_x)
    plainly = a * log_x + b * np.log1p(-x) - betaln(a, b)
    total = a + b
    away = x * total - a  # of a, and of b with the other sign
    large = (np.minimum(a, b) > _LARGE) & (away > -a / 2) & (away < b / 2)  # farther away little cancels
    if not large.any():
        return plainly
    away = np.where(large, away, 0.0)
    distance = a * minus_log1p(away / a) + b * minus_log1p(-away / b)
    series = [1 / (12 * shape) - 1 / (360 * shape**3) for shape in (total, a, b)]
    rest = (np.log(a) + np.log(b / total) - math.log(2 * math.pi)) / 2 + series[0] - series[1] - series[2]
    return np.where(large, rest - distance, plainly)


def _log_continued(a: Any, b: Any, log_x: Any) -> Any:
    """Return the logarithm of the same sum by its continued fraction (DLMF 8.17.22), evaluated forwards (Lentz).

    Its terms are some square root of the larger shape, or of 1 / (1 - x), in number.
    """
    x, m = np.exp(log_x), 0
    above, below = np.ones_like(x), 1 / (1 - (a + b) / (a + 1) * x)
    log_total, change = np.log(below), np.full_like(x, np.inf)
    while (abs(change - 1) > 1e-15).any() and m < _FRACTIONS:
        m += 1
        change = np.ones_like(x)
        even = m / (a + 2 * m - 1) * (b - m) / (a + 2 * m) * x
        odd = -(a + m) / (a + 2 * m) * ((a + b + m) / (a + 2 * m + 1)) * x
        for coefficient in (even, odd):
            above, below = 1 + coefficient / above, 1 / (1 + coefficient * below)
            change = change * above * below
        log_total += np.log(change)
    if (abs(change - 1) > 1e-15).any():  # a number that is not at its end would look like any other
        raise ArithmeticError(f"the tail of a Beta distribution has no end after {m:,} terms: 1 - x is too small")
    return log_total
