"""How utilities become responses: logit and probit with lapses, normal errors; logs, scores and information."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Prediction:
    """What a model says of each problem: of choices the log-probabilities, of equivalents their mean and spread.

    Derivatives (rows, K) are those of ln P(second) and ln P(first), or of the mean and the spread; None if not asked.
    """

    mean: Array
    log_second: Array | None = None
    log_first: Array | None = None
    noise: Any = None
    of_second: Array | None = None
    of_first: Array | None = None

    @classmethod
    def of_choices(cls, rule: str, eta: Array, lapse: Any, by_eta: Any, by_lapse: Any) -> Prediction:
        """Return that of ``P(second) = (1 - lapse) F(eta) + lapse/2``."""
        log_up, log_down, log_density = _logistic(eta) if rule == "logit" else _normal(eta)
        if np.ndim(lapse) == 0 and lapse == 0:
            second, first, density = log_up, log_down, log_density
        else:
            with np.errstate(divide="ignore"):
                guess, heeded = np.log(lapse / 2), np.log1p(-np.asarray(lapse))
            second, first = np.logaddexp(heeded + log_up, guess), np.logaddexp(heeded + log_down, guess)
            density = log_density + heeded
        if by_eta is None:
            return cls(np.exp(second), second, first)
        up, down = np.exp(density - second)[:, None], -np.exp(density - first)[:, None]
        of_second, of_first = up * by_eta, down * by_eta
        if by_lapse.any():
            of_second += ((0.5 - np.exp(log_up)) * np.exp(-second))[:, None] * by_lapse
            of_first += ((0.5 - np.exp(log_down)) * np.exp(-first))[:, None] * by_lapse
        return cls(np.exp(second), second, first, None, of_second, of_first)

    @classmethod
    def of_equivalents(cls, mean: Array, noise: Any, by_mean: Any, by_noise: Any) -> Prediction:
        """Return that of a normal with this mean and standard deviation."""
        return cls(mean, noise=np.broadcast_to(noise, mean.shape), of_second=by_mean, of_first=by_noise)

    def at(self, place: NDArray[np.int64]) -> Prediction:
        """Return those of chosen problems."""
        taken: list[Any] = [None if each is None else each[place] for each in vars(self).values()]
        return Prediction(*taken)


@dataclass(frozen=True, eq=False)
class Terms:
    """Rows of a log-likelihood: value (M,), score (M, K), and vectors whose outer products are the information."""

    value: Array
    score: Any = None
    root: Any = None


def response_terms(found: Prediction, response: Array, trials: Array, objective: str) -> Terms:
    """Return the rows of the log-likelihood of responses (of the second, of so many), or minus half squared errors."""
    if found.noise is not None:
        return _equivalent_terms(found, response)
    assert found.log_second is not None and found.log_first is not None
    if objective == "least squares":
        error = np.divide(response, trials, out=found.mean.copy(), where=trials > 0) - found.mean
        value = -trials * error**2 / 2
        if found.of_second is None:
            return Terms(value)
        slope = found.mean[:, None] * found.of_second
        return Terms(value, (trials * error)[:, None] * slope, np.sqrt(trials)[:, None] * slope)
    others = trials - response
    value = _times(response, found.log_second) + _times(others, found.log_first)
    if found.of_second is None or found.of_first is None:
        return Terms(value)
    score = response[:, None] * found.of_second + others[:, None] * found.of_first
    # The information of a choice is P2 s2 s2' + P1 s1 s1', and P2 s2 = -P1 s1: that with the larger P has more digits.
    likely = found.log_second > found.log_first
    size = np.exp(np.where(likely, found.log_first - found.log_second, found.log_second - found.log_first) / 2)
    smaller = np.where(likely[:, None], found.of_first, found.of_second)
    root = np.sqrt(trials)[:, None] * size[:, None] * smaller
    return Terms(value, score, root)


def _equivalent_terms(found: Prediction, response: Array) -> Terms:
    off = (response - found.mean) / found.noise
    value = -(off**2) / 2 - np.log(found.noise) - math.log(2 * math.pi) / 2
    if found.of_second is None or found.of_first is None:
        return Terms(value)
    noise = found.noise[:, None]
    with np.errstate(invalid="ignore"):  # of an infinite equivalent, which no climb steps to
        score = off[:, None] / noise * found.of_second + (off**2 - 1)[:, None] / noise * found.of_first
    return Terms(value, score, np.stack([found.of_second / noise, math.sqrt(2) * found.of_first / noise], axis=1))


def _times(count: Array, log_prob: Array) -> Array:
    """Return count * log_prob, 0 where the count is."""
    return np.where(count > 0, count, 0.0) * np.where(count > 0, log_prob, 0.0)


def _logistic(eta: Array) -> tuple[Array, Array, Array]:
    """Return ln F(eta), ln F(-eta) and ln F'(eta)."""
    tail = np.log1p(np.exp(-np.abs(eta)))
    up, down = np.minimum(eta, 0) - tail, np.minimum(-eta, 0) - tail
    return up, down, up + down


def _normal(eta: Array) -> tuple[Array, Array, Array]:
    from scipy.special import log_ndtr

    return log_ndtr(eta), log_ndtr(-eta), -(eta**2) / 2 - math.log(2 * math.pi) / 2
