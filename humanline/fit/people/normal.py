"""A normal law of people's coordinates, fitted to weighted points of each person: exact steps uphill, and its error."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Points:
    """Points of each person with logarithms of their weights: a person's likelihood, as a sum over points.

    ``L_i(law) = sum_s exp(log_weight_is) law(at_is)`` estimates the integral of a person's likelihood over the law,
    without bias, where the points are drawn from q_i and ``log_weight = log-likelihood - ln q_i - ln S``.

    Parameters
    ----------
    at : (P, S, K) array
    log_weight : (P, S) array
    """

    at: Array
    log_weight: Array


@dataclass(frozen=True, eq=False)
class Normal:
    """A normal law of coordinates.

    Parameters
    ----------
    mean : (K,) array
    covariance : (K, K) array
    """

    mean: Array
    covariance: Array

    @property
    def root(self) -> Array:
        """The lower Cholesky factor of the covariance."""
        return np.asarray(np.linalg.cholesky(self.covariance))

    @property
    def precision(self) -> Array:
        """The inverse of the covariance."""
        return np.asarray(np.linalg.inv(self.covariance))

    def whitened(self, at: Array) -> Array:
        """Return points (..., K) as multiples of the law's own spread, ``root^-1 (at - mean)``."""
        return np.asarray((at - self.mean) @ np.linalg.inv(self.root).T)

    def log_density(self, at: Array) -> Array:
        """Return the log-density of points, (...)."""
        white = self.whitened(at)
        constant = math.log(2 * math.pi) * len(self.mean) / 2 + np.log(np.diag(self.root)).sum()
        return np.asarray(-(white**2).sum(-1) / 2 - constant)

    def moved(self, shift: Array, stretch: Array) -> Normal:
        """Return the law with mean ``mean + root shift`` and covariance ``root exp(stretch) root'``."""
        size, axes = np.linalg.eigh(stretch)
        covariance = self.root @ (axes * np.exp(size)) @ axes.T @ self.root.T
        return Normal(self.mean + self.root @ shift, (covariance + covariance.T) / 2)


@dataclass(frozen=True)
class Anchor:
    """What is added to people so that few of them do not make a covariance singular: `people` more, of `spread`.

    Their squared distances from the mean are ``spread**2`` in each coordinate, whatever the mean is.

    Parameters
    ----------
    people : float
    spread : float
        In nats, of coordinates.
    """

    people: float = 6.0
    spread: float = 0.3

    def log_density(self, law: Normal) -> float:
        """Return what it adds to the log-likelihood of a law."""
        trace = np.trace(law.precision) * self.spread**2
        return float(-self.people / 2 * (trace + 2 * np.log(np.diag(law.root)).sum()))


def shares(points: Points, law: Normal) -> tuple[Array, Array]:
    """Return each person's marginal log-likelihood, (P,), and the posterior shares of their points, (P, S)."""
    log = points.log_weight + law.log_density(points.at)
    most = log.max(-1, keepdims=True)
    share = np.exp(log - most)
    total = share.sum(-1, keepdims=True)
    return (most + np.log(total))[:, 0], share / total


def objective(points: Points, law: Normal, anchor: Anchor) -> float:
    """Return what `climb_law` climbs: the marginal log-likelihood of everyone, and the anchor's."""
    return float(shares(points, law)[0].sum() + anchor.log_density(law))


def moments(points: Points, share: Array) -> tuple[Array, Array]:
    """Return each person's posterior mean, (P, K), and covariance, (P, K, K)."""
    mean = np.einsum("ps,psk->pk", share, points.at)
    off = points.at - mean[:, None]
    return mean, np.einsum("ps,psi,psj->pij", share, off, off, optimize=True)


def em_step(points: Points, law: Normal, anchor: Anchor) -> tuple[float, Normal]:
    """Return the objective at a law, and the law after a step of expectation and maximisation: never less likely."""
    logs, share = shares(points, law)
    mean, covariance = moments(points, share)
    centre = mean.mean(0)
    off = mean - centre
    total = covariance.sum(0) + off.T @ off + anchor.people * anchor.spread**2 * np.eye(len(centre))
    new = Normal(centre, total / (len(mean) + anchor.people))
    return float(logs.sum() + anchor.log_density(law)), new


def scores_of(points: Points, law: Normal) -> Array:
    """Return the derivatives of a law's log-density at points in its numbers, ordered as in `curvature`: (P, S, H)."""
    white = law.whitened(points.at)
    rows, columns = np.tril_indices(len(law.mean))
    # ln density = -tr(A)/2 - (y - a)' exp(-A) (y - a) / 2, of a shift a and a stretch A.
    squares = white[:, :, rows] * white[:, :, columns] * np.where(rows == columns, 0.5, 1.0)
    return np.concatenate([white, squares - 0.5 * (rows == columns)], axis=-1)


def curvature(points: Points, law: Normal, anchor: Anchor) -> tuple[Array, Array]:
    """Return the gradient of the objective and minus its second derivatives, in the (shift, stretch) of `moved` at 0.

    The stretch counts by its entries on and below the diagonal. By the identity of Louis (1982): the information of
    people whose coordinates are known, less the variance of their scores where they are not.
    """
    _, share = shares(points, law)
    white, scores = law.whitened(points.at), scores_of(points, law)
    number = len(law.mean)
    rows, columns = np.tril_indices(number)
    basis = np.zeros((len(rows), number, number))
    basis[np.arange(len(rows)), rows, columns] = basis[np.arange(len(rows)), columns, rows] = 1.0
    own = np.einsum("ps,psm->pm", share, scores)
    off = scores - own[:, None]
    missing = np.einsum("ps,psm,psn->mn", share, off, off, optimize=True)
    first = np.einsum("ps,psk->k", share, white)
    second = np.einsum("ps,psi,psj->ij", share, white, white, optimize=True)
    whitener = np.linalg.inv(law.root)
    anchored = anchor.people * anchor.spread**2 * whitener @ whitener.T
    complete = np.zeros_like(missing)
    complete[:number, :number] = len(share) * np.eye(number)
    complete[:number, number:] = np.einsum("mij,j->im", basis, first)
    complete[number:, :number] = complete[:number, number:].T
    products = basis[:, None] @ basis[None]
    products = (products + np.swapaxes(products, -1, -2)) / 4
    complete[number:, number:] = np.einsum("mnij,ij->mn", products, second + anchored)
    gradient = own.sum(0)
    gradient[number:] += np.einsum("mij,ij->m", basis, anchored) / 2 - anchor.people / 2 * (rows == columns)
    return gradient, complete - missing


def unpacked(vector: Array, number: int) -> tuple[Array, Array]:
    """Return the shift and the symmetric stretch of a vector as in `curvature`."""
    rows, columns = np.tril_indices(number)
    stretch = np.zeros((number, number))
    stretch[rows, columns] = stretch[columns, rows] = vector[number:]
    return vector[:number], stretch


def packed(law: Normal, seen: Normal) -> Array:
    """Return the shift and the stretch, in one vector, by which `Normal.moved` makes `law` of `seen`."""
    whitener = np.linalg.inv(seen.root)
    size, axes = np.linalg.eigh(whitener @ law.covariance @ whitener.T)
    stretch = (axes * np.log(size)) @ axes.T
    return np.concatenate([whitener @ (law.mean - seen.mean), stretch[np.tril_indices(len(law.mean))]])
