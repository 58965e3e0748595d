"""Symmetric matrices of information, taken apart in coordinates in which their diagonal is 1."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Scaled:
    """A symmetric matrix as ``S V diag(eigen) V' S``, S diagonal; `scaled` makes it.

    Parameters
    ----------
    scale : (K,) array
        S: the roots of the sizes of the diagonal; 1 where that is 0.
    eigen : (K,) array
        Eigenvalues of the matrix in that scale, rising: those of a positive definite one add up to K.
    vectors : (K, K) array
        V: their vectors, one a column.
    """

    scale: Array
    eigen: Array
    vectors: Array

    @property
    def condition(self) -> float:
        """The largest eigenvalue over the smallest; infinite if that is not positive, 1 of an empty matrix."""
        if not len(self.eigen):
            return 1.0
        return float(self.eigen[-1] / self.eigen[0]) if self.eigen[0] > 0 else math.inf

    def inverse(self, kept: NDArray[np.bool_] | None = None) -> Array:
        """Return the inverse of the matrix, (K, K), within the span of the vectors that are kept (all by default)."""
        keep = np.ones(len(self.eigen), dtype=bool) if kept is None else kept
        vectors = self.vectors[:, keep]
        return np.asarray((vectors / self.eigen[keep]) @ vectors.T / np.outer(self.scale, self.scale))


def scaled(matrix: Array) -> Scaled:
    """Take a symmetric matrix (K, K) of finite numbers apart, in the scale that makes its diagonal 1 (or -1, or 0)."""
    size = np.abs(np.diag(matrix))
    scale = np.where(size > 0, np.sqrt(size), 1.0)
    eigen, vectors = np.linalg.eigh(matrix / np.outer(scale, scale))
    return Scaled(scale, eigen, vectors)
