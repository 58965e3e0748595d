"""Coordinates in which the ridges of a likelihood run straight, and climbs in them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from humanline.fit.likelihood import Likelihood
from humanline.fit.optimum import Optimum, climb

Array = NDArray[np.float64]


class Straight:
    """A likelihood in the coordinates it would have if outcomes were counted in their typical size.

    With a power as value function, more curvature makes all utilities larger, and a lower sensitivity makes up for it:
    the likelihood has a ridge, which is curved because the typical outcome is not 1. Here sensitivity and loss aversion
    are those at the typical outcome c: ``ln sensitivity + curvature ln c`` and
    ``ln loss_aversion + (loss_curvature - curvature) ln c``. All else stays as it is.

    Parameters
    ----------
    likelihood : Likelihood
        Of everyone, or by person: then coordinates, and what follows from them, have people as their first axis.
    held : mapping from place to coordinate
        Coordinates (of the likelihood's own) that do not move; those of this have no entry for them.
    """

    def __init__(self, likelihood: Likelihood, held: Mapping[int, float] | None = None):
        self.likelihood, self._held = likelihood, dict(held or {})
        self._names = likelihood.names
        power = likelihood.model.value == "power"
        self._log_size = math.log(likelihood.choices.typical_size(likelihood.reference_point)) if power else 0.0
        self.moving = np.array([k for k in range(len(self._names)) if k not in self._held], dtype=np.int64)
        self._moves = np.isin(np.arange(len(self._names)), self.moving)

    def there(self, coordinates: Array) -> Array:
        """Return the straight coordinates of the likelihood's own."""
        return np.asarray((coordinates + self._shift(coordinates)[0])[..., self.moving])

    def back(self, straight: Array) -> Array:
        """Return the likelihood's own coordinates."""
        found = np.zeros((*np.shape(straight)[:-1], len(self._names)))
        found[..., self.moving] = straight
        for place, value in self._held.items():
            found[..., place] = value
        # Curvatures are the same in both, so the shift is known.
        return np.asarray(found - np.where(self._moves, self._shift(found)[0], 0.0))

    def value(self, straight: Array) -> Any:
        """Return the log-likelihood."""
        return self.likelihood.value(self.back(straight))

    def derivatives(self, straight: Array) -> tuple[Any, Array, Array]:
        """Return the log-likelihood, its gradient and information in straight coordinates."""
        at = self.back(straight)
        value, gradient, information = self.likelihood.derivatives(at)
        turned = (np.eye(len(self._names)) - self._shift(at)[1] * self._moves[:, None])[..., self.moving]
        back = np.swapaxes(turned, -1, -2)
        return value, (back @ gradient[..., None])[..., 0], back @ information @ turned

    def _shift(self, coordinates: Array) -> tuple[Array, Array]:
        """Return what is added to the coordinates, (..., K), and its derivatives in them, (..., K, K)."""
        shift = np.zeros(np.shape(coordinates))
        slope = np.zeros((*shift.shape, len(self._names)))
        if not self._log_size:
            return shift, slope
        likelihood = self.likelihood
        values = likelihood.natural(coordinates)
        moves: dict[str, dict[str, float]] = {"loss_aversion": {"loss_curvature": 1.0, "curvature": -1.0}}
        if not likelihood.model.contextual:
            moves["sensitivity"] = {"curvature": 1.0}
        for name, parts in moves.items():
            if name in self._names:
                place = self._names.index(name)
                for other, sign in parts.items():
                    source = likelihood.model.source(other)
                    shift[..., place] += sign * self._log_size * values[other]
                    if source in self._names:
                        slope[..., place, self._names.index(source)] += sign * self._log_size * values[other]
        return shift, slope


def climb_straight(
    likelihood: Likelihood, start: Array, low: Array, high: Array, *, held: Mapping[int, float] | None = None
) -> Optimum:
    """Climb from coordinates of a likelihood to a maximum within bounds, which are those of straight coordinates.

    Parameters
    ----------
    likelihood : Likelihood
    start : (K,) array
        The likelihood's own coordinates, as are those of the result.
    low, high : (K,) arrays
        Bounds of the straight coordinates.
    held : mapping from place to coordinate, optional
        Coordinates that do not move.
    """
    straight = Straight(likelihood, held)
    own = np.array(start, dtype=np.float64)
    for place, value in (held or {}).items():
        own[place] = value
    # Far from the optimum values may be too large for a float: such steps are not taken.
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        found = climb(straight, straight.there(own), low[straight.moving], high[straight.moving])
    return Optimum(straight.back(found.coordinates), found.value, found.steps, found.converged)
