"""The curve of score in log distance that offline cells draw, one for each start model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Curves:
    """A polynomial in log KL for each of M start models, fitted to C cells by least squares, every cell weighing alike.

    Attributes
    ----------
    degree : int
    centres : (M,) array
        Subtracted from log KL before powers are taken.
    coefficients : (M, degree + 1) array
        Highest power first.
    low, high : (M,) arrays
        Range of the cells' log KL.
    weights : (M, degree + 1, C) array
        What coefficients are of the cells' scores.
    residuals : (C, M) array
        Score of a cell minus curve.
    spare : float
        Cells to spare for the error that a cell has in all starts alike: ``tr(R R')`` with R the mean of the starts'
        residual makers; ``C - degree - 1`` where a cell is equally far from all starts.
    """

    degree: int
    centres: Array
    coefficients: Array
    low: Array
    high: Array
    weights: Array
    residuals: Array
    spare: float

    def powers(self, log_kl: Array) -> Array:
        """Return powers of centred log KL, (..., M, R) -> (..., M, R, degree + 1)."""
        powers: Array = (log_kl - self.centres[:, None])[..., None] ** np.arange(self.degree, -1, -1)
        return powers

    def at(self, log_kl: Array) -> Array:
        """Return the curves at log KL, (..., M, R) -> (..., M, R), also beyond their range."""
        return np.asarray(np.einsum("...mrp,mp->...mr", self.powers(log_kl), self.coefficients))

    def within(self, log_kl: Array) -> Array:
        """Return log KL moved to the nearest end of the range where it lies beyond."""
        return np.clip(log_kl, self.low[:, None], self.high[:, None])

    def peaks(self) -> tuple[Array, Array]:
        """Return the largest value of each curve in its range, and its log KL, two (M,) arrays."""
        grid = np.linspace(self.low, self.high, 401, axis=1)
        values = self.at(grid)
        best = values.argmax(1)
        rows = np.arange(len(best))
        return values[rows, best], grid[rows, best]

    def mean_points(self, count: int) -> list[tuple[float, float]]:
        """Return points (KL, score) along the mean of the curves, where all of them have cells; none if nowhere."""
        low, high = float(self.low.max()), float(self.high.min())
        if low >= high:
            return []
        log_kl = np.linspace(low, high, count)
        scores = self.at(np.broadcast_to(log_kl, (len(self.low), count))).mean(0)
        return [(float(np.exp(x)), float(y)) for x, y in zip(log_kl, scores, strict=True)]


def fit_curves(log_kl: Array, scores: Array, degree: int) -> Curves:
    """Fit a polynomial for each start model, (C, M) arrays of cells by start models."""
    centres = log_kl.mean(0)
    powers = np.moveaxis((log_kl - centres)[..., None] ** np.arange(degree, -1, -1), 1, 0)
    weights = np.linalg.pinv(powers)
    coefficients = np.einsum("mpc,cm->mp", weights, scores)
    residuals = scores - np.einsum("mcp,mp->cm", powers, coefficients)
    makers = np.eye(len(log_kl)) - powers @ weights
    spare = float(np.square(makers.mean(0)).sum())
    return Curves(degree, centres, coefficients, log_kl.min(0), log_kl.max(0), weights, residuals, spare)


def choose_degree(log_kl: Array, scores: Array, degrees: Sequence[int], spare_cells: int) -> int | None:
    """Choose the degree whose curves predict cells left out best; None where none is allowed.

    A cell is left out from all start models at once, for what it differs by it may share among them: the criterion is
    the sum over cells of the squared mean over starts of ``residual / (1 - leverage)``. The lower degree where two are
    equal. A degree is allowed with at least `spare_cells` more cells than coefficients.
    """
    best: tuple[float, int] | None = None
    for degree in sorted(degrees):
        if len(log_kl) - degree - 1 < spare_cells:
            continue
        powers = np.moveaxis((log_kl - log_kl.mean(0))[..., None] ** np.arange(degree, -1, -1), 1, 0)
        makers = np.eye(len(log_kl)) - powers @ np.linalg.pinv(powers)
        left = np.maximum(np.einsum("mcc->mc", makers), 1e-9)
        error = float(np.square((np.einsum("mcd,dm->mc", makers, scores) / left).mean(0)).sum())
        if best is None or error < best[0]:
            best = (error, degree)
    return best and best[1]
