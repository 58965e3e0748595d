"""The maximum of a log-likelihood within bounds: damped scoring, whose bounded steps scipy solves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
#: A start has converged where a step of undamped scoring promises less than this share of the log-likelihood.
TOLERANCE = 1e-12


@dataclass(frozen=True, eq=False)
class Optimum:
    """Where a climb ended.

    Parameters
    ----------
    coordinates : (K,) array
    value : float
        The log-likelihood there.
    steps : int
    converged : bool
    """

    coordinates: Array
    value: float
    steps: int
    converged: bool


def climb(likelihood: Any, start: Array, low: Array, high: Array, *, most: int = 500) -> Optimum:
    """Climb to a maximum within bounds.

    Each step maximises ``g'd - d'(I + damping diag I)d/2`` within the bounds, with the expected information I. Steps
    that lead down are damped more.

    Parameters
    ----------
    likelihood : Likelihood
        Of everyone; anything that has ``derivatives`` and ``value``.
    start, low, high : (K,) arrays
    most : int
        Steps before it gives up.
    """
    at = np.clip(np.asarray(start, dtype=np.float64), low, high)
    value, gradient, information = likelihood.derivatives(at)
    if not np.isfinite(value) or not len(at):
        return Optimum(at, float(value), 0, bool(np.isfinite(value)))
    damping, small = 1e-3, 0
    for step in range(most):
        if _promise(gradient, information, _step(gradient, information, low - at, high - at)) <= TOLERANCE * (
            1 + abs(value)
        ):
            return Optimum(at, float(value), step, True)
        while True:
            damped = information + damping * np.diag(np.maximum(np.diag(information), 1e-12 * np.trace(information)))
            move = _step(gradient, damped, low - at, high - at)
            new = np.clip(at + move, low, high)
            reached = likelihood.value(new)
            if reached > value:
                break
            if damping > 1e12:  # no step of any length leads up: the last digits are those of rounding
                promise = _promise(gradient, information, _step(gradient, information, low - at, high - at))
                return Optimum(at, float(value), step, bool(promise <= 1e-9 * (1 + abs(value))))
            damping *= 6
        promise = _promise(gradient, information, move)
        damping = damping / 8 if reached - value > 0.25 * promise else damping * 2
        damping = max(damping, 1e-15)
        small = small + 1 if reached - value <= 1e-14 * (1 + abs(value)) else 0
        at, (value, gradient, information) = new, likelihood.derivatives(new)
        if small >= 3:
            promise = _promise(gradient, information, _step(gradient, information, low - at, high - at))
            return Optimum(at, float(value), step + 1, bool(promise <= 1e-9 * (1 + abs(value))))
    return Optimum(at, float(value), most, False)


def _promise(gradient: Array, information: Array, move: Array) -> float:
    return float(gradient @ move - move @ information @ move / 2)


def _step(gradient: Array, information: Array, low: Array, high: Array) -> Array:
    """Return the step within bounds that maximises the quadratic."""
    scale = np.sqrt(np.maximum(np.diag(information), 1e-300))
    scaled = information / np.outer(scale, scale) + 1e-13 * np.eye(len(scale))
    wanted = gradient / scale
    low, high = low * scale, high * scale
    try:
        root = np.linalg.cholesky(scaled)
    except np.linalg.LinAlgError:
        root = np.linalg.cholesky(scaled + 1e-8 * np.eye(len(scale)))
    half = np.linalg.solve(root, wanted)
    free = np.linalg.solve(root.T, half)
    if not ((free < low) | (free > high)).any():
        return np.asarray(free / scale)
    from scipy.optimize import lsq_linear

    room = np.maximum(high - low, 1e-12 * (1 + np.abs(low)))
    found = lsq_linear(root.T, half, bounds=(np.minimum(low, 0.0), np.minimum(low, 0.0) + room), method="bvls")
    return np.asarray(np.clip(found.x, low, high) / scale)
