"""What is known of people if their law is only estimated: posterior shares of points over laws that might be."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from humanline.fit.people.normal import Normal, objective, shares, unpacked
from humanline.fit.people.population import Population

Array = NDArray[np.float64]

#: Laws that are drawn: fewer of a crowd, whose law is better known.
LAWS = 512
_FREEDOM = 8.0


@dataclass(frozen=True, eq=False)
class Integrated:
    """Laws that might be, and what they say of people together.

    Parameters
    ----------
    laws : tuple of Normal
    weight : (laws,) array
        Of each, summing to 1: how likely it makes everyone's responses, over how likely it was to be drawn.
    share : (P, S) array
        Posterior shares of each person's points, averaged over the laws.
    """

    laws: tuple[Normal, ...]
    weight: Array
    share: Array

    @property
    def effective(self) -> float:
        """The effective number of laws."""
        return float(1 / (self.weight**2).sum())

    def law_errors(self) -> tuple[Array, Array]:
        """Return the standard errors of the law's mean, (K,), and of the logarithms of its standard deviations."""
        means = np.array([law.mean for law in self.laws])
        spreads = np.array([np.log(np.diag(law.covariance)) / 2 for law in self.laws])
        return _deviation(means, self.weight), _deviation(spreads, self.weight)


def integrate(population: Population, *, seed: int, laws: int = LAWS) -> Integrated:
    """Draw laws from their approximate posterior, weigh them by the exact one, and average what they say of people.

    Plain empirical Bayes takes the estimated law for the true one; so its intervals are too short.

    Parameters
    ----------
    population : Population
    seed : int
    laws : int
        Drawn from a multivariate t about the estimate, in pairs that mirror each other.
    """
    rng = np.random.default_rng(seed)
    law, number = population.law, len(population.law.mean)
    size, axes = np.linalg.eigh(population.information)
    normal = rng.standard_normal((laws // 2, len(size)))
    scale = np.sqrt(_FREEDOM / rng.chisquare(_FREEDOM, laws // 2))
    steps = np.repeat(normal * scale[:, None], 2, axis=0) * np.tile([1.0, -1.0], laws // 2)[:, None]
    log_weight = np.zeros(len(steps))
    drawn = []
    for each, step in enumerate(steps):
        drawn.append(law.moved(*unpacked(axes @ (step / np.sqrt(size)), number)))
        log_drawn = -(_FREEDOM + len(size)) / 2 * np.log1p(step @ step / _FREEDOM)
        log_weight[each] = objective(population.points, drawn[-1], population.anchor) - log_drawn
    weight = np.exp(log_weight - log_weight.max())
    weight /= weight.sum()
    share = sum(w * shares(population.points, each)[1] for w, each in zip(weight, drawn, strict=True))
    return Integrated(tuple(drawn), weight, np.asarray(share))


def _deviation(values: Array, weight: Array) -> Array:
    mean = weight @ values
    return np.asarray(np.sqrt(weight @ (values - mean) ** 2))
