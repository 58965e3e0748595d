"""Value functions: from an outcome to what it is worth to a human (Definition 3.1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from humanline import _checks
from humanline.theory._arrays import floats, plain


class ValueFunction(Protocol):
    """Score outcomes against a reference point.

    Notes
    -----
    Source: arXiv 2509.24207, Def. 3.1.
    """

    @property
    def reference_point(self) -> float:
        """The outcome that is worth 0, the least of the gains."""

    def __call__(self, outcome: Any) -> Any:
        """Return the value of each outcome."""

    def inverse(self, value: Any) -> Any:
        """Return the outcome of each value."""


@dataclass(frozen=True)
class PowerValue:
    """Score outcomes by a power of their distance to the reference point, losses more steeply than gains.

    ``v(z) = (z - z0)**curvature`` if ``z >= z0``, else ``-loss_aversion * (z0 - z)**loss_curvature``.

    Parameters
    ----------
    curvature : float > 0
        Exponent of gains (alpha); below 1 is risk aversion.
    loss_curvature : float > 0, optional
        Exponent of losses; None, the default, uses `curvature`.
    loss_aversion : float > 0
        Weight of losses (lambda).
    reference_point : float
        Zero of gain and loss (z0), in the unit of the outcomes (nats for a log-ratio).

    Raises
    ------
    ValueError
        If a curvature or the loss aversion is not > 0 or not finite, or the reference point is not finite.

    Notes
    -----
    Source: arXiv 2509.24207, Eq. 2. The paper has one exponent; a second one for losses is the common generalisation.
    The defaults are the medians of Tversky and Kahneman (1992). An outcome exactly at the reference point is a gain.

    The function is unbounded, although Prop. 3.4 asks for a bounded one: bound the set of outcomes.

    With torch, the gradient at the reference point is that of the gain side. Where that slope is infinite (curvature
    below 1) the gradient returned is 0, so that a padded log-ratio of 0 cannot turn a batch into nan; an optimiser
    that starts exactly there gets no push from this function.

    Examples
    --------
    >>> PowerValue()([4.0, 0.0, -4.0]).round(4).tolist()
    [3.387, 0.0, -7.6207]
    """

    curvature: float = 0.88
    loss_curvature: float | None = None
    loss_aversion: float = 2.25
    reference_point: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "curvature", _checks.positive("curvature", self.curvature))
        if self.loss_curvature is not None:
            object.__setattr__(self, "loss_curvature", _checks.positive("loss_curvature", self.loss_curvature))
        object.__setattr__(self, "loss_aversion", _checks.positive("loss_aversion", self.loss_aversion))
        object.__setattr__(self, "reference_point", _checks.finite("reference_point", self.reference_point))

    def __call__(self, outcome: Any) -> Any:
        """Return the value of each outcome.

        Parameters
        ----------
        outcome : array or scalar, any shape
            In the unit of the reference point; nan stays nan.

        Returns
        -------
        array of the same shape and kind
        """
        xp, (z,) = floats(outcome=outcome)
        excess = z - self.reference_point
        gain, loss = _power(xp, excess, self.curvature), _power(xp, -excess, self._loss_exponent)
        return plain(xp.where(excess < 0, -self.loss_aversion * loss, gain))

    def inverse(self, value: Any) -> Any:
        """Return the outcome of each value.

        ``z = z0 + v**(1/curvature)`` if ``v >= 0``, else ``z0 - (-v/loss_aversion)**(1/loss_curvature)``.

        Parameters
        ----------
        value : array or scalar, any shape
            nan stays nan.

        Returns
        -------
        array of the same shape and kind, in the unit of the reference point

        Examples
        --------
        >>> v = PowerValue(reference_point=1.0)
        >>> float(v.inverse(v(-3.0)).round(12))
        -3.0
        """
        xp, (v,) = floats(value=value)
        gain = _power(xp, v, 1 / self.curvature)
        loss = _power(xp, -v / self.loss_aversion, 1 / self._loss_exponent)
        return plain(self.reference_point + xp.where(v < 0, -loss, gain))

    @property
    def _loss_exponent(self) -> float:
        return self.curvature if self.loss_curvature is None else self.loss_curvature


def _power(xp: Any, size: Any, exponent: float) -> Any:
    """Return size**exponent where size >= 0 and a 0 without gradient elsewhere (and at 0 if the slope is infinite)."""
    outside = size <= 0 if exponent < 1 else size < 0
    # The argument is replaced too: autograd multiplies the untaken branch's slope by 0, and 0 * inf is nan.
    return xp.where(outside, 0.0, xp.where(outside, 1.0, size) ** exponent)
