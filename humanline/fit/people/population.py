"""The law that people's coordinates follow: rounds of points of each person, and of climbing the law's likelihood."""

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
    objective,
    packed,
    scores_of,
    shares,
    unpacked,
)
from humanline.fit.people.own import OwnLikelihoods, climb_each

Array = NDArray[np.float64]

#: Points of each person in the first rounds, and in the last ones.
FEW, MANY = 128, 512
#: Of more people than these the law of every so many is found first, and points are half as many.
CROWD = 400
#: A law is found where it is nearer to the maximum than this share of its standard error, squared, in all directions.
DECREMENT = 1e-8
_FREEDOM, _WIDER = 5.0, 1.2
#: One point in so many is drawn from the law itself, so that no weight is large.
_EACH = 5
_MOST_ROUGH, _ROUNDS = 25, 32
#: How far a law may move, in its own spreads and in logs of them, before points are drawn anew.
_REACH = 0.4


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
    noise : float
        Variance of the law for want of more points (`sampling_noise`).
    moves : tuple of float
        How far each round moved the law: squared, in its standard errors, a mean over its numbers; infinite where it
        was stopped.
    """

    law: Normal
    anchor: Anchor
    points: Points
    information: Array
    path: tuple[float, ...]
    decrement: float
    noise: float
    moves: tuple[float, ...]

    @property
    def effective(self) -> Array:
        """The effective number of points of each person, (P,): how many equally weighted ones would say as much."""
        share = shares(self.points, self.law)[1]
        return np.asarray(1 / (share**2).sum(-1))


def fit_population(own: OwnLikelihoods, start: Normal, *, anchor: Anchor, seed: int, near: bool = False) -> Population:
    """Fit a normal law to people's straight coordinates by maximum marginal likelihood.

    The integral of each person's likelihood over the law is a sum over points around the person's most likely
    coordinates under the law (Laplace's approximation of their posterior), weighted by what that misses. The law that
    maximises the sums moves the points, until they stay.

    Parameters
    ----------
    own : OwnLikelihoods
    start : Normal
    anchor : Anchor
    seed : int
    near : bool
        The start is that of some of these people: no few points are drawn first.

    Raises
    ------
    NotConverged
        If a climb does not come to a maximum, or the law keeps moving the points.
    """
    law, moves, noise, calm = start, [], 0.05 if near else 1.0, near
    most = MANY if own.choices.people <= CROWD else MANY // 2
    at = np.tile(law.mean, (own.choices.people, 1))
    for number in range(_ROUNDS):
        many = calm or number >= _MOST_ROUGH
        uniform = even_points(own.choices.people, len(law.mean), most if many else FEW, seed)
        at = climb_each(own, at, own.all, mean=law.mean, precision=law.precision, tolerance=1e-8).coordinates
        points = points_around(own, at, law, uniform)
        before, (law, path, decrement) = law, climb_law(points, law, anchor)
        way = packed(before, law)
        if not decrement <= DECREMENT:
            moves.append(float("inf"))
            continue
        information = curvature(points, law, anchor)[1]
        moves.append(float(way @ information @ way / len(way)))
        expected, noise = noise, sampling_noise(points, law, information)
        calm = moves[-1] < 4 * (expected + noise)
        if many and calm:
            return Population(law, anchor, points, information, path, decrement, noise, tuple(moves))
    number = len(law.mean)
    mean, spread = np.abs(way[:number]).max(), np.abs(way[number:]).max()
    what = f"the mean of {own.names[int(np.abs(way[:number]).argmax())]}" if mean > spread else "the spreads of people"
    raise NotConverged(
        f"the law of {own.choices.people} people did not settle in {_ROUNDS} rounds of new points: {what} still moves; "
        f"these choices say too little of it: fix or equate parameters, or give more choices"
    )


def sampling_noise(points: Points, law: Normal, information: Array) -> float:
    """Return the variance of a law for want of more points, in its squared standard errors: a mean over its numbers.

    As if points were independent: those that are evenly spread do better.
    """
    share = shares(points, law)[1]
    off = scores_of(points, law)
    off = off - np.einsum("ps,psm->pm", share, off)[:, None]
    spread = np.einsum("ps,psm,psn->mn", share**2, off, off, optimize=True)
    return float(np.trace(np.linalg.solve(information, spread)) / len(information))


def climb_law(points: Points, law: Normal, anchor: Anchor) -> tuple[Normal, tuple[float, ...], float]:
    """Return the law that maximises the objective at some points, the objective on the way, and the decrement there.

    Steps are Newton's where these lead up, else of expectation and maximisation, which always do. The climb ends, with
    a decrement of nan, where a law is far from the first: the points, drawn for that, say little of it.

    Raises
    ------
    NotConverged
        If the gradient does not vanish, or the objective fell.
    """
    path, first = [objective(points, law, anchor)], law
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
        if np.abs(packed(law, first)).max() > _REACH:
            return law, tuple(path), float("nan")
    raise NotConverged("the likelihood of the people's law has no maximum that 2000 steps came to")


def even_points(people: int, number: int, size: int, seed: int) -> Array:
    """Return evenly spread points of a cube, (people, size, number + 1), shifted at random for each person.

    So what a sum over them misses differs between people, and averages out.
    """
    from scipy.stats import qmc

    rng = np.random.default_rng(seed)
    even = qmc.Sobol(number + 1, seed=rng).random(size)
    return np.asarray(np.clip((even + rng.random((people, 1, number + 1))) % 1.0, 1e-12, 1 - 1e-12))


def points_around(own: OwnLikelihoods, mode: Array, law: Normal, uniform: Array) -> Points:
    """Return points of each person, weighted: of Laplace's posterior with wider tails, and some of the law itself.

    Parameters
    ----------
    own : OwnLikelihoods
    mode : (P, K) array
        Of each person's posterior.
    law : Normal
    uniform : (P, S, K + 1) array
        Where in the cube the points are drawn from.
    """
    from scipy.special import gammainccinv, gammaln, logsumexp, ndtri

    number = mode.shape[1]
    laplace = np.linalg.inv(own.derivatives(mode)[2] + law.precision)
    roots = np.linalg.cholesky(np.stack([laplace, np.broadcast_to(law.covariance, laplace.shape)]) * _WIDER)
    means = np.stack([mode, np.broadcast_to(law.mean, mode.shape)])
    first = np.arange(uniform.shape[1]) % _EACH != 0
    spread = np.sqrt(_FREEDOM / (2 * gammainccinv(_FREEDOM / 2, uniform[..., -1])))
    steps = ndtri(uniform[..., :-1]) * spread[..., None]
    drawn = means[:, :, None] + steps @ np.swapaxes(roots, -1, -2)
    at = np.where(first[:, None], drawn[0], drawn[1])
    logs = []
    for mean, root, part in zip(means, roots, (1 - 1 / _EACH, 1 / _EACH), strict=True):
        white = np.linalg.solve(root, np.swapaxes(at - mean[:, None], -1, -2))
        size = np.log(np.einsum("pii->pi", root)).sum(-1)[:, None]
        logs.append(np.log(part) - size - (_FREEDOM + number) / 2 * np.log1p((white**2).sum(1) / _FREEDOM))
    constant = gammaln((_FREEDOM + number) / 2) - gammaln(_FREEDOM / 2) - number / 2 * np.log(np.pi * _FREEDOM)
    value = np.stack([own.value(at[:, each]) for each in range(at.shape[1])], axis=1)
    return Points(at, value - constant - logsumexp(logs, axis=0) - np.log(at.shape[1]))
