"""Differences that derivatives in parameters need, with all their digits also where their terms almost cancel."""

from __future__ import annotations

import math
from typing import Any

_TERMS = 12
#: Below this the series is summed, whose first term left out is then less than a rounding error.
_NEAR = 0.05


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


def _series(x: Any, coefficients: list[float]) -> Any:
    total = coefficients[-1] + 0 * x
    for coefficient in coefficients[-2::-1]:
        total = total * x + coefficient
    return total


_EXP = [1 / (math.factorial(k) * (k + 2)) for k in range(_TERMS)]
_LOG = [(k + 1) / (k + 2) for k in range(_TERMS)]
