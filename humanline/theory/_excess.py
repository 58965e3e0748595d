"""Differences that derivatives in parameters need, with all their digits also where their terms almost cancel."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

_TERMS = 12
#: Below this the series is summed, whose first term left out is then less than a rounding error.
_NEAR = 0.05
#: Below this an exponential is 0 in every type; what is multiplied by it need not be larger.
_GONE = -1e4


def exp_excess(xp: Any, x: Any) -> Any:
    """Return ``(x exp(x) - expm1(x)) / x**2``, which is 1/2 at 0: ``sum_k x**k / (k! (k + 2))``."""
    near = abs(x) < _NEAR
    far = xp.where(near, 1.0, x)
    return xp.where(near, _series(x, _EXP), (far * xp.exp(far) - xp.expm1(far)) / far / far)


def log_excess(xp: Any, x: Any) -> Any:
    """Return ``(log1p(x) - x / (1 + x)) / x**2`` for x >= 0, 1/2 at 0: ``sum_k (-x)**k (k + 1) / (k + 2)``."""
    near = x < _NEAR
    far = xp.where(near, 1.0, x)
    return xp.where(near, _series(-x, _LOG), (xp.log1p(far) - far / (1 + far)) / far / far)


def exp_excess_of(xp: Any, size: Any, rate: Any) -> Any:
    """Return ``size**2 exp_excess(rate size)`` for size >= 0 and rate < 0, also where the square is too large."""
    x = rate * size
    near = x > -_NEAR
    small = xp.where(near, size, 0.0)
    far, own = xp.where(near, -1.0, xp.where(x < _GONE, _GONE, x)), xp.where(near, -1.0, rate)
    return xp.where(near, small**2 * _series(rate * small, _EXP), (far * xp.exp(far) - xp.expm1(far)) / own / own)


def log_excess_of(xp: Any, size: Any, rate: Any) -> Any:
    """Return ``size**2 log_excess(rate size)`` for size >= 0 and rate > 0, also where the square is too large."""
    x = rate * size
    near = x < _NEAR
    small, far, own = xp.where(near, size, 0.0), xp.where(near, 1.0, x), xp.where(near, 1.0, rate)
    return xp.where(near, small**2 * _series(-rate * small, _LOG), (xp.log1p(far) - far / (1 + far)) / own / own)


def minus_log1p(s: Any) -> Any:
    """Return ``s - log(1 + s)`` of a numpy array, by its series where the two cancel."""
    small = np.where(np.abs(s) < 0.01, s, 0.0)
    series = sum((-1) ** n * small**n / n for n in range(2, 12))
    with np.errstate(divide="ignore"):
        return np.where(np.abs(s) < 0.01, series, s - np.log1p(s))


def _series(x: Any, coefficients: list[float]) -> Any:
    total = coefficients[-1] + 0 * x
    for coefficient in coefficients[-2::-1]:
        total = total * x + coefficient
    return total


_EXP = [1 / (math.factorial(k) * (k + 2)) for k in range(_TERMS)]
_LOG = [(k + 1) / (k + 2) for k in range(_TERMS)]
