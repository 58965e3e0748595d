"""The maximum of a log-likelihood within bounds: damped scoring, and scipy's L-BFGS-B where that is slow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from humanline.fit.scaled import scaled

Array = NDArray[np.float64]
#: A start has converged where a step of undamped scoring promises less than this share of the log-likelihood,
TOLERANCE = 1e-12
#: or, where rounding or the other method ends a climb, less than this one.
COARSE = 1e-9
#: Where a step promises less than this one, estimates are right to a ten-millionth of a standard error or so.
FINE = 1e-18
#: Steps of scoring; it comes to an optimum in about ten, unless the model is far from right.
STEPS = 50


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


def climb(likelihood: Any, start: Array, low: Array, high: Array) -> Optimum:
    """Climb to a maximum within bounds.

    Scoring takes a few steps where the model is about right: there its expected information is what curves the
    log-likelihood. Where it is not, the rest of the way is L-BFGS-B's, and the observed information says if it arrived.

    Parameters
    ----------
    likelihood : Likelihood
        Of everyone; anything that has ``derivatives`` and ``value``.
    start, low, high : (K,) arrays
    """
    found = score(likelihood, start, low, high)
    if found.converged or not np.isfinite(found.value):
        return found
    return _descend(likelihood, found, low, high)


def score(likelihood: Any, start: Array, low: Array, high: Array, *, most: int = STEPS) -> Optimum:
    """Climb by steps that maximise ``g'd - d'(I + damping diag I)d/2`` within the bounds, I the expected information.

    Steps that lead down are damped more.

    Parameters
    ----------
    likelihood, start, low, high
        As in `climb`.
    most : int
        Steps before it gives up.
    """
    at = np.clip(np.asarray(start, dtype=np.float64), low, high)
    value, gradient, information = likelihood.derivatives(at)
    if not np.isfinite(value) or not len(at):
        return Optimum(at, float(value), 0, bool(np.isfinite(value)))
    damping, small = 1e-3, 0

    def arrived(tolerance: float) -> bool:
        whole = _step(gradient, information, low - at, high - at)
        return bool(_promise(gradient, information, whole) <= tolerance * (1 + abs(value)))

    for step in range(most):
        if arrived(TOLERANCE):
            found = value, gradient, information
            return Optimum(*_polished(likelihood, at, found, low, high), step, True)
        while True:
            damped = information + damping * np.diag(np.maximum(np.diag(information), 1e-12 * np.trace(information)))
            move = _step(gradient, damped, low - at, high - at)
            new = np.clip(at + move, low, high)
            reached = likelihood.value(new)
            if reached > value:
                break
            if damping > 1e12:  # no step of any length leads up: the last digits are those of rounding
                return Optimum(at, float(value), step, arrived(COARSE))
            damping *= 6
        promise = _promise(gradient, information, move)
        damping = damping / 8 if reached - value > 0.25 * promise else damping * 2
        damping = max(damping, 1e-15)
        small = small + 1 if reached - value <= 1e-14 * (1 + abs(value)) else 0
        at, (value, gradient, information) = new, likelihood.derivatives(new)
        if small >= 3:
            return Optimum(at, float(value), step + 1, arrived(COARSE))
    return Optimum(at, float(value), most, False)


def _polished(likelihood: Any, at: Array, found: Any, low: Array, high: Array) -> tuple[Array, float]:
    """Return where a few more steps lead, and the value there: so near that it is the gradient that tells the better.

    The log-likelihood is flat there to its last digit, the estimates are not: half of their digits are won here.
    `found` is what ``derivatives`` returned where they begin.
    """
    best, least = (at, float(found[0])), np.inf
    for _ in range(4):
        value, gradient, information = found
        move = _step(gradient, information, low - at, high - at)
        promise = _promise(gradient, information, move)
        worse = promise > 0.5 * least
        if promise < least:
            best, least = (at, float(value)), promise
        if worse or promise <= FINE * (1 + abs(value)):
            break
        at = np.clip(at + move, low, high)
        found = likelihood.derivatives(at)
    return best


def _descend(likelihood: Any, begun: Optimum, low: Array, high: Array) -> Optimum:
    """Go on by L-BFGS-B, and see by the observed information whether that has arrived."""
    from scipy.optimize import minimize

    def down(at: Array) -> tuple[float, Array]:
        value, gradient, _ = likelihood.derivatives(at)
        return -float(value), -gradient

    options = {"ftol": 1e-15, "gtol": 1e-9, "maxiter": 2000, "maxls": 60}
    bounds = list(zip(low, high, strict=True))
    found = minimize(down, begun.coordinates, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    at, value, steps = np.clip(found.x, low, high), -float(found.fun), begun.steps + int(found.nit)
    if not value >= begun.value:
        return begun
    gradient = -down(at)[1]
    free = ~(((at <= low) & (gradient < 0)) | ((at >= high) & (gradient > 0)))
    if not free.any():
        return Optimum(at, value, steps, True)
    seen = _observed(down, at)[np.ix_(free, free)]
    if not np.isfinite(seen).all():  # it ended beside places with no likelihood, as of an infinite equivalent
        return Optimum(at, value, steps, False)
    there = scaled(seen)
    turned = there.vectors.T @ (gradient[free] / there.scale)
    promise = float((turned**2 / np.maximum(there.eigen, 1e-8 * there.eigen[-1])).sum() / 2)
    curved = bool(there.eigen[0] > -1e-6 * there.eigen[-1])
    return Optimum(at, value, steps, curved and promise <= COARSE * (1 + abs(value)))


def _observed(down: Any, at: Array, step: float = 1e-5) -> Array:
    """Return the second derivatives of what goes down, by differences of its gradient."""
    moves = np.eye(len(at)) * step
    found = np.array([down(at + move)[1] - down(at - move)[1] for move in moves]) / (2 * step)
    return np.asarray((found + found.T) / 2)


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
