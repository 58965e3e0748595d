"""Fitted capacities and value functions as curves, with bands of what the estimates leave open."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from humanline.fit.result import Fit
from humanline.fit.uncertainty import degrees

Array = NDArray[np.float64]
DRAWS = 400


@dataclass(frozen=True, eq=False)
class Band:
    """A curve and its pointwise band.

    Parameters
    ----------
    x, y : (N,) arrays
    low, high : (N,) arrays
        nan where the estimates have no standard errors.
    """

    x: Array
    y: Array
    low: Array
    high: Array


def drawn_parameters(
    fit: Fit, *, errors: str = "information", draws: int = DRAWS, seed: int = 0
) -> list[Mapping[str, float]]:
    """Return parameters drawn from the law of the estimates, on the scale of estimation, within their bounds.

    A normal law, or Student's where errors are clustered. Those on a bound stay as they are. Nothing is drawn, and the
    list is empty, where there are no standard errors.
    """
    covariance = fit.covariance(errors)
    inner = np.flatnonzero(fit.inner)
    block = covariance[np.ix_(inner, inner)]
    if not len(inner) or not np.isfinite(block).all():
        return []
    size, axes = np.linalg.eigh(block)
    root = axes * np.sqrt(np.maximum(size, 0.0))
    rng = np.random.default_rng(seed)
    standard = rng.standard_normal((draws, len(inner)))
    if math.isfinite(freedom := degrees(fit, errors)):
        standard *= np.sqrt(freedom / rng.chisquare(freedom, (draws, 1)))
    drawn = np.tile(fit.coordinates, (draws, 1))
    drawn[:, inner] += standard @ root.T
    for place, name in enumerate(fit.names):
        spec = fit.likelihood.specs[name]
        if not spec.unit:
            drawn[:, place] = np.clip(drawn[:, place], spec.coordinate(spec.low), spec.coordinate(spec.high))
    return [fit.likelihood.natural(each) for each in drawn]


def capacity_band(fit: Fit, side: str, probs: ArrayLike, drawn: list[Mapping[str, float]]) -> Band:
    """Return the capacity of "gain" or "loss" at cumulative probabilities, with a pointwise band of 95 %."""
    place = 1 if side == "gain" else 2
    return _band(fit, np.asarray(probs, dtype=np.float64), drawn, lambda families: families[place])


def value_band(fit: Fit, outcomes: ArrayLike, unit: float, drawn: list[Mapping[str, float]]) -> Band:
    """Return the value function at outcomes, in units of the value of a gain of `unit`, with a pointwise band."""

    def scaled(families: Any) -> Callable[[Array], Array]:
        value = families[0]
        one = float(value(np.array([value.reference_point + unit]))[0])
        return lambda z: np.asarray(value(z)) / one

    return _band(fit, np.asarray(outcomes, dtype=np.float64), drawn, scaled)


def _band(fit: Fit, x: Array, drawn: list[Mapping[str, float]], curve: Callable[[Any], Callable[[Array], Any]]) -> Band:
    zero = fit.likelihood.reference_point
    y = np.asarray(curve(fit.model.families(fit.parameters, zero))(x), dtype=np.float64)
    if not drawn:
        return Band(x, y, np.full_like(y, np.nan), np.full_like(y, np.nan))
    curves = np.array([curve(fit.model.families(each, zero))(x) for each in drawn])
    low, high = np.quantile(curves, [0.025, 0.975], axis=0)
    return Band(x, y, low, high)


@dataclass(frozen=True, eq=False)
class Shown:
    """A fit as its figures show it.

    Parameters
    ----------
    fit : Fit
    errors : str
        Which standard errors bands are made from.
    seed : int
        Of the draws of bands.
    title : str
        What the data are called.
    noise : (M,) array, optional
        The sampling variance of each response, where it is known.
    """

    fit: Fit
    errors: str = "information"
    seed: int = 0
    title: str = ""
    noise: Array | None = None


@dataclass(frozen=True, eq=False)
class ByProblem:
    """What was answered and foretold, problem by problem (of those with answers).

    Parameters
    ----------
    names : tuple
    observed, predicted : (P,) arrays
        The share of the second option, or the mean certainty equivalent.
    weight : (P,) array
        Choices.
    deviation : (P,) array
        Standard deviation that sampling alone gives the observed share, if the model is right; nan where unknown.
    """

    names: tuple[Any, ...]
    observed: Array
    predicted: Array
    weight: Array
    deviation: Array


def by_problem(fit: Fit, noise: Array | None = None) -> ByProblem:
    """Return what was answered to each problem, and what the fit says."""
    data, predicted = fit.choices, fit.predicted()
    weight = np.bincount(data.problem, weights=data.trials, minlength=data.problems).astype(float)
    some = weight > 0

    def mean(values: Array) -> Array:
        total = np.bincount(data.problem, weights=data.trials * values, minlength=data.problems)
        return np.asarray(total[some] / weight[some])

    foretold = mean(predicted)
    if noise is not None:
        squares = np.bincount(data.problem, weights=data.trials**2 * noise, minlength=data.problems)
        deviation = np.sqrt(squares[some]) / weight[some]
    elif data.kind in ("choices", "counts"):
        deviation = np.sqrt(foretold * (1 - foretold) / weight[some])
    else:
        deviation = np.full(int(some.sum()), np.nan)
    names = tuple(name for name, there in zip(data.problem_names, some, strict=True) if there)
    return ByProblem(names, mean(data.response / data.trials), foretold, weight[some], deviation)
