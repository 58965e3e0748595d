"""The log-likelihoods of people, each in coordinates of their own, and climbs of many people at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from humanline.fit.choices import Choices
from humanline.fit.likelihood import Likelihood
from humanline.fit.model import Model
from humanline.fit.optimum import TOLERANCE
from humanline.fit.starts import bounds
from humanline.fit.straight import Straight

Array = NDArray[np.float64]
Index = NDArray[np.int64]


class OwnLikelihoods:
    """Each person's log-likelihood as a function of straight coordinates (`humanline.fit.straight`).

    Beyond a bound a parameter has the value of the bound: the functions are flat there, and defined everywhere.

    Parameters
    ----------
    choices : Choices
    model : Model
    reference_point : float

    Attributes
    ----------
    everyone : Likelihood
        With the same parameters for all.
    low, high : (K,) arrays
        Bounds of the straight coordinates.
    """

    def __init__(self, choices: Choices, model: Model, reference_point: float = 0.0):
        self.choices, self.model, self.reference_point = choices, model, reference_point
        self.everyone = Likelihood(choices, model, reference_point=reference_point)
        self.low, self.high = bounds(self.everyone)
        self.all = np.arange(choices.people)
        self._whole = self._made(choices)  # of everyone: made once, for it is what takes longest
        self._kept, self._straight = self.all, self._whole

    @property
    def names(self) -> tuple[str, ...]:
        """The K free parameters."""
        return self.everyone.names

    @property
    def typical_size(self) -> float:
        """The size of an outcome at which straight coordinates have sensitivity and loss aversion: 1 but for powers."""
        power = self.model.value == "power"
        return self.choices.typical_size(self.reference_point) if power else 1.0

    def value(self, at: Array, people: Index | None = None) -> Array:
        """Return the log-likelihood of some people (all by default) at coordinates (people, K): (people,) in nats."""
        straight, place, full = self._of(self.all if people is None else people, at)
        return np.asarray(straight.value(np.clip(full, self.low, self.high)))[place]

    def derivatives(self, at: Array, people: Index | None = None) -> tuple[Array, Array, Array]:
        """Return the log-likelihoods, gradients (people, K) and expected informations (people, K, K)."""
        straight, place, full = self._of(self.all if people is None else people, at)
        value, gradient, information = straight.derivatives(np.clip(full, self.low, self.high))
        inside = ((full >= self.low) & (full <= self.high))[place]
        moves = inside[:, :, None] & inside[:, None, :]
        return np.asarray(value)[place], gradient[place] * inside, information[place] * moves

    def natural_coordinates(self, at: Array) -> Array:
        """Return the coordinates of the parameters themselves, (people, K), of straight ones."""
        return self._whole.back(np.clip(at, self.low, self.high))

    def hessian(self, natural: Array) -> Array:
        """Return the second derivatives of the log-likelihoods in the parameters' own coordinates: (people, K, K)."""
        return self._whole.likelihood.hessian(natural)

    def _made(self, choices: Choices) -> Straight:
        return Straight(Likelihood(choices, self.model, reference_point=self.reference_point, by_person=True))

    def _of(self, people: Index, at: Array) -> tuple[Straight, Index, Array]:
        """Return a table that holds these people, where they stand in it, and coordinates for all who are in it."""
        kept = self._kept
        if not np.isin(people, kept).all():
            kept, self._straight = self.all, self._whole
        if len(people) < 0.6 * len(kept):  # the work is proportional to who is in the table
            kept, self._straight = people, self._made(people_of(self.choices, people))
        self._kept = kept
        place = np.searchsorted(kept, people)
        full = np.broadcast_to((self.low + self.high) / 2, (len(kept), len(self.low))).copy()
        full[place] = at
        return self._straight, place, full


def people_of(choices: Choices, people: Index) -> Choices:
    """Return the choices of some people, given in order; problems and what was prepared of them stay."""
    some = choices.take(np.isin(choices.person, people), all_problems=True)
    names = tuple(choices.person_names[at] for at in people)
    return some.with_answers(person=np.searchsorted(people, some.person), person_names=names)


@dataclass(frozen=True, eq=False)
class Summits:
    """Where the climbs of people ended.

    Parameters
    ----------
    coordinates : (people, K) array
    value : (people,) array
        What was climbed there.
    converged : (people,) bool array
    """

    coordinates: Array
    value: Array
    converged: NDArray[np.bool_]

    def better(self, other: Summits) -> Summits:
        """Return, for each person, the higher of two summits; one that was not reached counts as low."""
        mine, theirs = (np.where(each.converged, each.value, -np.inf) for each in (self, other))
        first = mine >= theirs
        return Summits(
            np.where(first[:, None], self.coordinates, other.coordinates),
            np.where(first, self.value, other.value),
            np.where(first, self.converged, other.converged),
        )


def climb_each(
    own: OwnLikelihoods,
    begin: Array,
    people: Index,
    *,
    mean: Array | None = None,
    precision: Array | None = None,
    tolerance: float = TOLERANCE,
    most: int = 300,
) -> Summits:
    """Climb each person's log-likelihood, within bounds, or that times a normal law, without bounds.

    Damped scoring, as `humanline.fit.optimum.climb`, with one damping for each person.

    Parameters
    ----------
    own : OwnLikelihoods
    begin : (people, K) array
    people : int array
        Who, in order.
    mean, precision : (K,), (K, K) arrays, optional
        Of the normal law.
    tolerance : float
        A person has arrived where an undamped step promises less than this share of 1 + the log-likelihood.
    most : int
        Steps before those who have not arrived are given up.
    """
    law = None if mean is None or precision is None else (mean, precision)
    low, high = (own.low, own.high) if law is None else (np.full_like(own.low, -np.inf), np.full_like(own.high, np.inf))

    def look(at: Array, who: Index) -> tuple[Array, Array, Array]:
        value, gradient, information = own.derivatives(at, who)
        if law is not None:
            off = at - law[0]
            value = value - np.einsum("pi,ij,pj->p", off, law[1], off) / 2
            gradient, information = gradient - off @ law[1], information + law[1]
        return value, gradient, information

    at = np.clip(np.array(begin, dtype=np.float64), low, high)
    value, gradient, information = look(at, people)
    damping = np.full(len(people), 1e-3)
    done, converged, small = ~np.isfinite(value), np.zeros(len(people), dtype=bool), np.zeros(len(people), dtype=int)
    for _ in range(most):
        going = np.flatnonzero(~done)
        promise, _ = _steps(gradient[going], information[going], at[going], low, high, 0.0)
        arrived = promise <= tolerance * (1 + np.abs(value[going]))
        stuck = (damping[going] > 1e12) | (small[going] >= 3)  # the last digits are those of rounding
        converged[going] = arrived | (stuck & (promise <= 1e-9 * (1 + np.abs(value[going]))))
        done[going] = arrived | stuck
        going = going[~done[going]]
        if not len(going):
            break
        expected, move = _steps(gradient[going], information[going], at[going], low, high, damping[going])
        new = np.clip(at[going] + move, low, high)
        found = look(new, people[going])
        gain = found[0] - value[going]
        up = gain > 0
        tiny = gain <= 1e-14 * (1 + np.abs(value[going]))
        damping[going] *= np.where(up, np.where(gain > 0.25 * expected, 1 / 8, 2.0), 6.0)
        damping[going] = np.maximum(damping[going], 1e-15)
        small[going] = np.where(up, np.where(tiny, small[going] + 1, 0), small[going])
        moved = going[up]
        at[moved], value[moved], gradient[moved], information[moved] = new[up], *(each[up] for each in found)
    return Summits(at, value, converged)


def _steps(gradient: Array, information: Array, at: Array, low: Any, high: Any, damping: Any) -> tuple[Array, Array]:
    """Return what steps promise, and the steps; a coordinate on a bound that the gradient leads out of stays."""
    held = ((at <= low) & (gradient < 0)) | ((at >= high) & (gradient > 0))
    gradient = np.where(held, 0.0, gradient)
    diagonal = np.einsum("pii->pi", information)
    largest = diagonal.max(-1, keepdims=True, initial=1e-300)
    scale = np.sqrt(np.maximum(diagonal, 1e-12 * largest))
    scaled = information / (scale[:, :, None] * scale[:, None, :])
    scaled = np.where(held[:, :, None] | held[:, None, :], 0.0, scaled)
    ridge = np.where(held, 1.0, 1e-13) + np.reshape(damping, (-1, 1)) + np.zeros_like(gradient)
    scaled = scaled + ridge[:, :, None] * np.eye(gradient.shape[1])
    wanted = gradient / scale
    move = np.linalg.solve(scaled, wanted[:, :, None])[:, :, 0]
    promise = (wanted * move).sum(-1) / 2
    return promise, move / scale
