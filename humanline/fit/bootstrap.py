"""Estimates from resampled data: how they vary over problems, or over people."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from humanline import _checks
from humanline.fit.likelihood import Likelihood
from humanline.fit.result import Fit
from humanline.fit.straight import Straight, climb_straight
from humanline.fit.uncertainty import ParameterInterval, check_confidence, place_of

UNITS = ("problem", "person", "response")


@dataclass(frozen=True, eq=False)
class Bootstrap:
    """Hold estimates from resampled data; `bootstrap` makes it.

    Parameters
    ----------
    fit : Fit
        Of the data themselves.
    coordinates : (draws, K) array
        Estimates of each draw, on the scale of estimation; nan where none was found.
    by : str
    seed : int
    """

    fit: Fit
    coordinates: NDArray[np.float64]
    by: str
    seed: int

    @property
    def failed(self) -> int:
        """How many draws have no estimate."""
        return int(_missing(self.coordinates).sum())

    @property
    def covariance(self) -> NDArray[np.float64]:
        """The covariance of the coordinates over draws, (K, K)."""
        found = self.coordinates[~_missing(self.coordinates)]
        return np.asarray(np.atleast_2d(np.cov(found, rowvar=False)))

    def interval(self, name: str, *, confidence: float = 0.95) -> ParameterInterval:
        """Return the percentile interval of a parameter.

        Returns
        -------
        ParameterInterval
            Without ends, and ``why`` says so, if more than one draw in a hundred has no estimate, or more
            of them than one end leaves out sit on the parameter's bound.
        """
        place, spec = place_of(self.fit, name), self.fit.likelihood.specs[name]
        check_confidence(confidence)
        found = self.coordinates[~_missing(self.coordinates), place]
        why = ""
        if self.failed > 0.01 * len(self.coordinates):
            why = f"{self.failed} of {len(self.coordinates)} draws have no estimate"
        else:
            low, high = np.quantile(found, [(1 - confidence) / 2, (1 + confidence) / 2])
            straight = Straight(self.fit.likelihood)
            ends = np.array([straight.there(each)[place] for each in self.coordinates[~_missing(self.coordinates)]])
            outside = (ends - self.fit.low[place] < 1e-6) | (self.fit.high[place] - ends < 1e-6)
            if outside.mean() > (1 - confidence) / 2:
                why = f"{int(outside.sum())} of {len(ends)} draws are on the parameter's bound"
        if why:
            return ParameterInterval(name, math.nan, math.nan, confidence, why)
        return ParameterInterval(name, float(spec.natural(low)), float(spec.natural(high)), confidence)


def bootstrap(fit: Fit, *, by: str = "problem", draws: int = 200, seed: int = 0) -> Bootstrap:
    """Fit a model again to data drawn with replacement, whole problems, people or single responses at a time.

    Each climb starts at the estimates of the data themselves.

    Parameters
    ----------
    fit : Fit
    by : str
        "problem", "person" or "response".
    draws : int >= 2
    seed : int

    Returns
    -------
    Bootstrap

    Raises
    ------
    ValueError
        If there are fewer than two units to draw from, or fewer than two draws.
    """
    _checks.one_of("by", by, UNITS)
    if draws < 2:
        raise _checks.fail("draws", "be >= 2", draws)
    data = fit.choices
    unit = {"problem": data.problem, "person": data.person, "response": np.arange(len(data))}[by]
    used, unit = np.unique(unit, return_inverse=True)
    if len(used) < 2:
        raise _checks.fail("by", f"have two units or more to draw from; these data have {len(used)}", by)
    order = np.argsort(unit, kind="stable")
    edges = np.concatenate([[0], np.cumsum(np.bincount(unit))])
    rng = np.random.default_rng(seed)
    found = np.full((draws, len(fit.names)), np.nan)
    for draw in range(draws):
        chosen = rng.integers(len(used), size=len(used))
        rows = np.concatenate([order[edges[each] : edges[each + 1]] for each in chosen])
        own = fit.likelihood
        likelihood = Likelihood(
            data.take(rows, all_problems=True), fit.model, reference_point=own.reference_point, objective=own.objective
        )
        ended = climb_straight(likelihood, fit.coordinates, fit.low, fit.high)
        if ended.converged:
            found[draw] = ended.coordinates
    return Bootstrap(fit, found, by, seed)


def _missing(coordinates: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return which draws have no estimate."""
    return np.asarray(np.isnan(coordinates).any(-1))
