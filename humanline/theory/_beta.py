"""The Beta distribution function at an argument given by its logarithm, precise at both ends and far in its tail."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from humanline.theory._special import betainc, betaincc, betaln

#: Below this, scipy's distribution function is about to underflow and the log comes from the series instead.
SMALL = 1e-290


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
    while (term > 1e-17 * total).any():
        term = term * x * (a + b + n) / (a + 1 + n)
        total += term
        n += 1
    return a * log_x + b * np.log1p(-x) - np.log(a) - betaln(a, b) + np.log(total)
