"""The law that people's coordinates follow: rounds of drawing points for each person and climbing the law's likelihood."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from humanline.fit.faults import NotConverged
from humanline.fit.people.normal import (
    Anchor,
    Normal,
    Points,
    curvature,
    em_step,
    moments,
    objective,
    shares,
    unpacked,
)
from humanline.fit.people.own import OwnLikelihoods, climb_each

Array = NDArray[np.float64]

#: Points of each person in the first rounds, and in the last ones.
FEW, MANY = 48, 192
#: A law is found where it is nearer to the maximum than this share of its standard error, squared, in all directions.
DECREMENT = 1e-8
#: New points must not move the law by more than this share of its standard error, squared, for each of its numbers.
MOVED = 0.02
_FREEDOM = 5.0
_ROUNDS = 12


@dataclass(frozen=True, eq=False)
class Population:
    """The law of people's coordinates and how it was found.

    Parameters
    ----------
    law : Normal
        Of straight coordinates.
    anchor : Anchor
    points : Points
        Of each person, at which the last climb looked.
    information : (H, H) array
        Minus the second derivatives of the marginal log-likelihood in the law's numbers (`Normal.moved`).
    path : tuple of float
        The marginal log-likelihood at each step of the last climb; it never falls.
    decrement : float
        ``g' information^-1 g`` at its end: squared distance from the maximum, in standard errors.
    moves : tuple of float
        The same for each round, of the law before at the new points, for each of the law's numbers.
    """

    law: Normal
    anchor: Anchor
    points: Points
    information: Array
    path: tuple[float, ...]
    decrement: float
    moves: tuple[float, ...]

    @property
    def effective(self) -> Array:
        """The effective number of points of each person, (P,): how many equally weighted ones would say as much."""
        share = shares(self.points, self.law)[1]
        return np.asarray(1 / (share**2).sum(-1))


def fit_population(own: OwnLikelihoods, start: Normal, *, anchor: Anchor, seed: int) -> Population:
    """Fit a normal law to people's straight coordinates by maximum marginal likelihood.

    The integral of each person's likelihood over the law is a sum over points, drawn around the person's most likely
    coordinates under the law (Laplace's approximation of their posterior), then anew around posterior means, until new
    points do not move the law.

    Parameters
    ----------
    own : OwnLikelihoods
    start : Normal
    anchor : Anchor
    seed : int

    Raises
    ------
    NotConverged
        If a climb does not come to a maximum, or new points keep moving the law.
    """
    rng = np.random.default_rng(seed)
    law = start
    summits = climb_each(
        own, np.tile(law.mean, (own.choices.people, 1)), own.all, mean=law.mean, precision=law.precision, tolerance=1e-6
    )
    mean = summits.coordinates
    covariance = np.linalg.inv(own.derivatives(mean)[2] + law.precision)
    moves: list[float] = []
    for number in range(_ROUNDS):
        points = draw_points(own, mean, covariance, FEW if number < 3 else MANY, rng)
        if number:
            moves.append(_decrement(points, law, anchor) / _size(law))
        law, path, decrement = climb_law(points, law, anchor)
        if number > 3 and moves[-1] < MOVED:
            information = curvature(points, law, anchor)[1]
            return Population(law, anchor, points, information, path, decrement, tuple(moves))
        mean, covariance = moments(points, shares(points, law)[1])
        covariance = _widened(covariance, law)
    told = ", ".join(f"{each:.2g}" for each in moves)
    raise NotConverged(
        f"the law of {own.choices.people} people did not settle in {_ROUNDS} rounds: new points kept moving it by these "
        f"squared shares of its standard errors: {told}; fix or equate parameters that these choices say little of"
    )


def climb_law(points: Points, law: Normal, anchor: Anchor) -> tuple[Normal, tuple[float, ...], float]:
    """Return the law that maximises the objective at some points, the objective on the way, and the decrement there.

    Steps are Newton's where these lead up, else of expectation and maximisation, which always do.

    Raises
    ------
    NotConverged
        If the gradient does not vanish, or the objective fell.
    """
    path = [objective(points, law, anchor)]
    for step in range(2000):
        gradient, information = curvature(points, law, anchor) if step >= 5 else (np.zeros(0), np.zeros((0, 0)))
        newton = None
        if step >= 5 and np.linalg.eigvalsh(information)[0] > 0:
            move = np.linalg.solve(information, gradient)
            decrement = float(gradient @ move)
            if decrement <= DECREMENT:
                return law, tuple(path), decrement
            newton = law.moved(*unpacked(move * min(1.0, 1 / np.abs(move).max()), len(law.mean)))
        if newton is not None and (reached := objective(points, newton, anchor)) > path[-1]:
            law = newton
        else:
            law = em_step(points, law, anchor)[1]
            reached = objective(points, law, anchor)
        if not reached >= path[-1] - 1e-9 * (1 + abs(path[-1])):
            raise NotConverged(f"the likelihood of the people's law fell from {path[-1]!r} to {reached!r}")
        path.append(reached)
    raise NotConverged("the likelihood of the people's law has no maximum that 2000 steps came to")


def draw_points(own: OwnLikelihoods, mean: Array, covariance: Array, size: int, rng: np.random.Generator) -> Points:
    """Return points of each person from a multivariate t around a mean, (P, K), with a covariance, (P, K, K).

    Every person has the same evenly spread points, shifted at random: what they miss differs between people.
    """
    from scipy.special import gammainccinv, gammaln, ndtri
    from scipy.stats import qmc

    people, number = mean.shape
    even = qmc.Sobol(number + 1, seed=rng).random(1 << (size - 1).bit_length())[:size]
    uniform = (even[None] + rng.random((people, 1, number + 1))) % 1.0
    uniform = np.clip(uniform, 1e-12, 1 - 1e-12)
    spread = np.sqrt(_FREEDOM / (2 * gammainccinv(_FREEDOM / 2, uniform[..., -1])))
    steps = ndtri(uniform[..., :-1]) * spread[..., None]
    root = np.linalg.cholesky(covariance)
    at = mean[:, None] + steps @ np.swapaxes(root, -1, -2)
    constant = (
        gammaln((_FREEDOM + number) / 2)
        - gammaln(_FREEDOM / 2)
        - number / 2 * np.log(np.pi * _FREEDOM)
        - np.log(np.einsum("pii->pi", root)).sum(-1)
    )
    log_law = constant[:, None] - (_FREEDOM + number) / 2 * np.log1p((steps**2).sum(-1) / _FREEDOM)
    value = np.stack([own.value(at[:, each]) for each in range(size)], axis=1)
    return Points(at, value - log_law - np.log(size))


def _decrement(points: Points, law: Normal, anchor: Anchor) -> float:
    gradient, information = curvature(points, law, anchor)
    eigen, axes = np.linalg.eigh(information)
    return float(((axes.T @ gradient) ** 2 / np.maximum(eigen, 1e-3 * eigen[-1])).sum())


def _size(law: Normal) -> int:
    number = len(law.mean)
    return number + number * (number + 1) // 2


def _widened(covariance: Array, law: Normal) -> Array:
    """Return covariances of points a little wider, and never without any width in some direction."""
    return np.asarray(1.1 * covariance + 1e-3 * law.covariance)
