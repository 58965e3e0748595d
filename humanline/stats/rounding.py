"""What may be rounding alone, of numbers that are sums of floats."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

__all__ = ["rounding_of"]


def rounding_of(one: ArrayLike, other: ArrayLike) -> Any:
    """Return how far apart two scores may be by rounding alone, which as sums of floats they are: .1 + .2 is not .3.

    What counts as rounding is what `group_advantages` takes for it, 8 machine epsilons of the larger magnitude.

    Parameters
    ----------
    one, other : float or array_like
        In any unit, of shapes that go together.

    Returns
    -------
    float or array
    """
    return 8 * np.finfo(np.float64).eps * np.maximum(np.abs(one), np.abs(other))
