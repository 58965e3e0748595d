"""Value functions: from an outcome to what it is worth to a human (Definition 3.1)."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np

from humanline import _checks
from humanline.theory._arrays import floats, plain
from humanline.theory._excess import exp_excess_of, log_excess_of

F = TypeVar("F", bound="_TwoSided")


#: What books and papers call the parameters, and what they are called here.
_OTHER_NAMES = {
    "alpha": "curvature",
    "beta": "loss_curvature",
    "lambda": "loss_aversion",
    "lambda_": "loss_aversion",
    "lam": "loss_aversion",
    "lamb": "loss_aversion",
    "z0": "reference_point",
    "z_0": "reference_point",
}


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
        """Return the value of each outcome, of the kind of `outcome`."""

    def inverse(self, value: Any) -> Any:
        """Return the outcome of each value, of the kind of `value`."""


class _TwoSided:
    """What the families share: one increasing function of the distance to the reference point for each side.

    A family gives ``_size`` (the value of a gain, from its size >= 0 and a curvature), ``_size_inverse``,
    ``_largest_size`` (the supremum of the former) and the derivatives of ``_size``: ``_size_slope``, and
    ``_size_by_curvature`` or, where it shares work with the size, ``_size_with_partial`` (both). Its fields are the
    curvature of gains, that of losses (None: the same), the loss aversion and the reference point. The first three may
    be arrays that broadcast against the outcomes, one entry for each person say.
    """

    curvature: float
    loss_curvature: float | None
    loss_aversion: float
    reference_point: float
    _other_names: ClassVar[Mapping[str, str]] = _OTHER_NAMES

    def __post_init__(self) -> None:
        for name in ("curvature", "loss_curvature", "loss_aversion"):
            if (given := getattr(self, name)) is not None:
                object.__setattr__(self, name, _checks.parameter(name, given, _checks.positive))
        object.__setattr__(self, "reference_point", _checks.finite("reference_point", self.reference_point))

    @property
    def range(self) -> tuple[float, float]:
        """The infimum and the supremum of the values, both infinite if the function is unbounded."""
        return -self.loss_aversion * self._largest_size(self._curvature_of_losses), self._largest_size(self.curvature)

    def __call__(self, outcome: Any) -> Any:
        """Return the value of each outcome.

        Parameters
        ----------
        outcome : array or scalar, any shape
            In the unit of the reference point; nan stays nan.

        Returns
        -------
        numpy array, numpy scalar for a number, or torch tensor for a tensor
            Of the same shape, floating dtype and device.
        """
        xp, (z,) = floats(outcome=outcome)
        excess = z - self.reference_point
        loss = excess < 0
        (gained,), (lost,) = self._of_sides(xp, lambda *given: (self._size(*given),), excess, loss)
        return plain(xp.where(loss, -self.loss_aversion * lost, gained))

    def derivative(self, outcome: Any) -> Any:
        """Return the slope of the function.

        Parameters
        ----------
        outcome : array or scalar, any shape
            In the unit of the reference point; nan stays nan.

        Returns
        -------
        numpy array, numpy scalar for a number, or torch tensor for a tensor
            Of the same shape, floating dtype and device. At the reference point the limit from the gains, infinite
            where that is.
        """
        xp, (z,) = floats(outcome=outcome)
        excess = z - self.reference_point
        loss = excess < 0
        with np.errstate(divide="ignore"):
            gained = self._size_slope(xp, xp.where(loss, 1.0, excess), self.curvature)
        lost = self._size_slope(xp, xp.where(loss, -excess, 1.0), self._curvature_of_losses)
        return plain(xp.where(loss, self.loss_aversion * lost, gained))

    def partials(self, outcome: Any) -> tuple[Any, dict[str, Any]]:
        """Return the value of each outcome and its derivatives in the parameters.

        Parameters
        ----------
        outcome : array or scalar, any shape
            In the unit of the reference point; nan stays nan.

        Returns
        -------
        value : numpy array, numpy scalar for a number, or torch tensor for a tensor
            Of the same shape, floating dtype and device.
        partials : dict from name to the like
            ``dv/d curvature``, ``dv/d loss_curvature`` (missing if that is None: the former then is that of both
            sides) and ``dv/d loss_aversion``. The reference point has none: as it moves, gains become losses.
        """
        xp, (z,) = floats(outcome=outcome)
        excess = z - self.reference_point
        loss = excess < 0
        (gained, by_gains), (lost, by_losses) = self._of_sides(xp, self._size_with_partial, excess, loss)
        by_losses = -self.loss_aversion * by_losses
        if self.loss_curvature is None:
            found = {"curvature": xp.where(loss, by_losses, by_gains)}
        else:
            found = {"curvature": xp.where(loss, 0.0, by_gains), "loss_curvature": xp.where(loss, by_losses, 0.0)}
        found["loss_aversion"] = xp.where(loss, -lost, 0.0)
        value = plain(xp.where(loss, -self.loss_aversion * lost, gained))
        return value, {name: plain(partial) for name, partial in found.items()}

    def inverse(self, value: Any) -> Any:
        """Return the outcome of each value.

        Parameters
        ----------
        value : array or scalar within `range`, any shape
            nan stays nan. An end of the range belongs to an infinite outcome.

        Returns
        -------
        numpy array, numpy scalar for a number, or torch tensor for a tensor
            Of the same shape, floating dtype and device; in the unit of the reference point.

        Raises
        ------
        ValueError
            If a value lies outside `range`.
        """
        xp, (v,) = floats(value=value)
        low, high = self.range
        several = _checks.has_axes(low) or _checks.has_axes(high)
        ends = "lie in" if several else f"lie in [{low:g}, {high:g}],"
        _checks.no_element("value", f"{ends} the range of the function", (v < low) | (v > high), v)
        lowest, highest, loss = v <= low, v >= high, v < 0
        gain_size = xp.where(loss | highest, 0.0, v)
        loss_size = xp.where(loss & ~lowest, -v / self.loss_aversion, 0.0)
        with np.errstate(divide="ignore"):
            gained = self._size_inverse(xp, gain_size, self.curvature)
            lost = self._size_inverse(xp, loss_size, self._curvature_of_losses)
        inner = self.reference_point + xp.where(loss, -lost, gained)
        return plain(xp.where(lowest, -math.inf, xp.where(highest, math.inf, inner)))

    def max_abs(self, low: float, high: float) -> float:
        """Return the largest absolute value of any outcome in an interval.

        ``max(|v(low)|, |v(high)|)``, since v increases: what Prop. 3.4 calls the norm of v, given the outcomes.

        Parameters
        ----------
        low, high : float, low <= high
            In the unit of the reference point; either may be infinite.

        Returns
        -------
        float
            Infinite where the function is unbounded on the interval.

        Raises
        ------
        ValueError
            If an end is nan or low is above high.
        """
        if not low <= high:
            raise _checks.fail("low", f"be <= high {high!r}", low)
        for name in ("curvature", "loss_curvature", "loss_aversion"):
            if _checks.has_axes(getattr(self, name)):
                raise _checks.wrong_kind(name, "be one number here", getattr(self, name))
        return float(np.abs(self(np.array([low, high], dtype=np.float64))).max())

    @property
    def _curvature_of_losses(self) -> float:
        return self.curvature if self.loss_curvature is None else self.loss_curvature

    def _of_sides(self, xp: Any, function: Any, excess: Any, loss: Any) -> tuple[Any, Any]:
        """Return what `function` gives, a tuple, for sizes and curvature of gains, and the same of losses."""
        own, of_losses = self.curvature, self._curvature_of_losses
        plain_numbers = isinstance(excess, np.ndarray) and excess.dtype == np.float64
        if plain_numbers and all(np.shape(each) in ((), excess.shape) for each in (own, of_losses)):
            # Of a side that is empty nothing is worked out.
            if not loss.any():
                gained = function(xp, excess, own)
                return gained, (np.zeros_like(excess),) * len(gained)
            if loss.all():
                lost = function(xp, -excess, of_losses)
                return (np.zeros_like(excess),) * len(lost), lost
        # Each side sees 0 in place of the other's outcomes: autograd multiplies the untaken branch's slope by 0.
        gained = function(xp, xp.where(loss, 0.0, excess), own)
        return gained, function(xp, xp.where(loss, -excess, 0.0), of_losses)

    def _size_with_partial(self, xp: Any, size: Any, curvature: float) -> tuple[Any, Any]:
        return self._size(xp, size, curvature), self._size_by_curvature(xp, size, curvature)

    def _size(self, xp: Any, size: Any, curvature: float) -> Any:
        raise NotImplementedError

    def _size_inverse(self, xp: Any, size: Any, curvature: float) -> Any:
        raise NotImplementedError

    def _largest_size(self, curvature: float) -> float:
        return math.inf

    def _size_by_curvature(self, xp: Any, size: Any, curvature: float) -> Any:
        raise NotImplementedError

    def _size_slope(self, xp: Any, size: Any, curvature: float) -> Any:
        raise NotImplementedError


def _says_our_names(family: type[F]) -> type[F]:
    """Make a family say what a parameter is called here, where it is given another name of it."""
    made = family.__init__

    @functools.wraps(made)
    def __init__(self: F, *args: Any, **named: Any) -> None:
        for name, value in named.items():
            ours = family._other_names.get(name)
            if ours is not None:
                raise TypeError(f"{family.__name__} has no {name!r}: it is called {ours} here; write {ours}={value!r}")
        made(self, *args, **named)

    family.__init__ = __init__  # type: ignore[assignment]
    return family


@_says_our_names
@dataclass(frozen=True)
class PowerValue(_TwoSided):
    """Score outcomes by a power of their distance to the reference point, losses more steeply than gains.

    ``v(z) = (z - z0)**curvature`` if ``z >= z0``, else ``-loss_aversion * (z0 - z)**loss_curvature``.

    Parameters
    ----------
    curvature : float > 0, or array
        Exponent of gains (alpha); below 1 is risk aversion.
    loss_curvature : float > 0, or array, optional
        Exponent of losses; None, the default, uses `curvature`.
    loss_aversion : float > 0, or array
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

    The function is unbounded, although Prop. 3.4 asks for a bounded one: bound the set of outcomes, and use `max_abs`.

    With torch, the gradient at the reference point is that of the gain side. Where that slope is infinite (curvature
    below 1) the gradient returned is 0, so that a padded log-ratio of 0 cannot turn a batch into nan; an optimiser
    that starts exactly there gets no push from this function.

    Examples
    --------
    >>> PowerValue()([4.0, 0.0, -4.0]).round(4).tolist()
    [3.387, 0.0, -7.6207]
    >>> v = PowerValue(reference_point=1.0)
    >>> float(v.inverse(v(-3.0)).round(12))
    -3.0
    >>> round(PowerValue().max_abs(-4.0, 8.0), 4)
    7.6207
    """

    curvature: float = 0.88
    loss_curvature: float | None = None
    loss_aversion: float = 2.25
    reference_point: float = 0.0

    def _size(self, xp: Any, size: Any, curvature: float) -> Any:
        return _power(xp, size, curvature)

    def _size_inverse(self, xp: Any, size: Any, curvature: float) -> Any:
        return _power(xp, size, 1 / curvature)

    def _size_with_partial(self, xp: Any, size: Any, curvature: float) -> tuple[Any, Any]:
        zero = size == 0
        log = xp.log(xp.where(zero, 1.0, size))  # at 0 the derivative is 0, and so is the logarithm of 1
        power = xp.exp(curvature * log)  # a third of the time of numpy's power
        return xp.where(zero, 0.0, power), power * log

    def _size_slope(self, xp: Any, size: Any, curvature: float) -> Any:
        return curvature * size ** (curvature - 1)


@_says_our_names
@dataclass(frozen=True)
class ExponentialValue(_TwoSided):
    """Score outcomes by an exponential that levels off: a value function that is bounded.

    ``v(z) = (1 - exp(-curvature (z - z0))) / curvature`` if ``z >= z0``,
    else ``-loss_aversion (1 - exp(-loss_curvature (z0 - z))) / loss_curvature``.

    Parameters
    ----------
    curvature : float > 0, or array
        Absolute risk aversion for gains, per unit of the outcomes; towards 0 the function becomes linear.
    loss_curvature : float > 0, or array, optional
        The same for losses; None, the default, uses `curvature`.
    loss_aversion : float > 0, or array
        Slope of losses over slope of gains at the reference point; 1, the default, is no loss aversion.
    reference_point : float
        Zero of gain and loss (z0), in the unit of the outcomes (nats for a log-ratio).

    Raises
    ------
    ValueError
        If a curvature or the loss aversion is not > 0 or not finite, or the reference point is not finite.

    Notes
    -----
    Source: Scholten and Read (2014), Journal of Risk and Uncertainty 48, Eq. 1, the normalised exponential. Wakker
    (2010), Eq. 3.5.4, has the same gains without the division, and losses that are concave, where these are convex.
    It is a value function in the sense of arXiv 2509.24207, Def. 3.1.

    Values lie strictly between ``-loss_aversion/loss_curvature`` and ``1/curvature``, as Prop. 3.4 of that paper asks;
    far from the reference point they round to these ends, whose inverse is infinite.

    Examples
    --------
    >>> v = ExponentialValue(0.5, loss_aversion=2.0)
    >>> v([4.0, 0.0, -4.0]).round(4).tolist()
    [1.7293, 0.0, -3.4587]
    >>> v.range
    (-4.0, 2.0)
    """

    curvature: float
    loss_curvature: float | None = None
    loss_aversion: float = 1.0
    reference_point: float = 0.0

    def _size(self, xp: Any, size: Any, curvature: float) -> Any:
        return -xp.expm1(-curvature * size) / curvature

    def _size_inverse(self, xp: Any, size: Any, curvature: float) -> Any:
        return -xp.log1p(-_below(xp, curvature * size)) / curvature

    def _largest_size(self, curvature: float) -> float:
        return 1 / curvature

    def _size_by_curvature(self, xp: Any, size: Any, curvature: float) -> Any:
        return -exp_excess_of(xp, size, -curvature)

    def _size_slope(self, xp: Any, size: Any, curvature: float) -> Any:
        return xp.exp(-curvature * size)


@_says_our_names
@dataclass(frozen=True)
class LogarithmicValue(_TwoSided):
    """Score outcomes by a logarithm: sensitivity that falls with distance, at first slowly.

    ``v(z) = ln(1 + curvature (z - z0)) / curvature`` if ``z >= z0``,
    else ``-loss_aversion ln(1 + loss_curvature (z0 - z)) / loss_curvature``.

    Parameters
    ----------
    curvature : float > 0, or array
        Decrease of sensitivity for gains, per unit of the outcomes; towards 0 the function becomes linear.
    loss_curvature : float > 0, or array, optional
        The same for losses; None, the default, uses `curvature`.
    loss_aversion : float > 0, or array
        Slope of losses over slope of gains at the reference point; 1, the default, is no loss aversion.
    reference_point : float
        Zero of gain and loss (z0), in the unit of the outcomes (nats for a log-ratio).

    Raises
    ------
    ValueError
        If a curvature or the loss aversion is not > 0 or not finite, or the reference point is not finite.

    Notes
    -----
    Source: Scholten and Read (2014), Journal of Risk and Uncertainty 48, Eq. 2, the normalised logarithm. It is a value
    function in the sense of arXiv 2509.24207, Def. 3.1, and unbounded: see `max_abs`.

    Examples
    --------
    >>> LogarithmicValue(0.5, loss_aversion=2.0)([4.0, 0.0, -4.0]).round(4).tolist()
    [2.1972, 0.0, -4.3944]
    """

    curvature: float
    loss_curvature: float | None = None
    loss_aversion: float = 1.0
    reference_point: float = 0.0

    def _size(self, xp: Any, size: Any, curvature: float) -> Any:
        return xp.log1p(curvature * size) / curvature

    def _size_inverse(self, xp: Any, size: Any, curvature: float) -> Any:
        with np.errstate(over="ignore"):
            return xp.expm1(curvature * size) / curvature

    def _size_by_curvature(self, xp: Any, size: Any, curvature: float) -> Any:
        return -log_excess_of(xp, size, curvature)

    def _size_slope(self, xp: Any, size: Any, curvature: float) -> Any:
        return 1 / (1 + curvature * size)


@_says_our_names
@dataclass(frozen=True)
class LogisticValue(_TwoSided):
    """Score outcomes by the logistic function, shifted so that the reference point is worth 0: KTO's value function.

    ``v(z) = sigmoid(curvature (z - z0)) - 1/2`` if ``z >= z0``,
    else ``loss_aversion (sigmoid(loss_curvature (z - z0)) - 1/2)``.

    Parameters
    ----------
    curvature : float > 0, or array
        KTO's beta, per unit of the outcomes; a larger one saturates sooner.
    loss_curvature : float > 0, or array, optional
        The same for losses; None, the default, uses `curvature`.
    loss_aversion : float > 0, or array
        Weight of losses; 1, the default and KTO's form, is no loss aversion.
    reference_point : float
        Zero of gain and loss (z0), in the unit of the outcomes (nats for a log-ratio).

    Raises
    ------
    ValueError
        If a curvature or the loss aversion is not > 0 or not finite, or the reference point is not finite.

    Notes
    -----
    Source: Ethayarajh et al. (2024), arXiv 2402.01306, which replaces the powers of arXiv 2509.24207, Eq. 2, by the
    logistic function.

    There, a desirable output is worth ``lambda_D sigmoid(beta (z - z0))`` and an undesirable one
    ``lambda_U sigmoid(beta (z0 - z))``. In terms of this function with loss aversion 1 these are
    ``lambda_D (1/2 + v(z))`` and ``lambda_U (1/2 - v(z))``. So the constant 1/2 is left out, which makes the reference
    point worth 0 as Def. 3.1 has it and changes no gradient; and lambda_D and lambda_U weigh labels, not gains and
    losses, so that neither of them is the `loss_aversion` here.

    Values lie strictly between ``-loss_aversion/2`` and 1/2, as Prop. 3.4 asks; far from the reference point they round
    to these ends, whose inverse is infinite.

    Examples
    --------
    >>> v = LogisticValue(0.1, reference_point=2.0)
    >>> v([12.0, 2.0, -8.0]).round(4).tolist()
    [0.2311, 0.0, -0.2311]
    >>> round(0.5 + float(v(12.0)), 4)  # KTO's sigmoid(0.1 (12 - 2))
    0.7311
    """

    curvature: float
    loss_curvature: float | None = None
    loss_aversion: float = 1.0
    reference_point: float = 0.0

    _other_names: ClassVar[Mapping[str, str]] = {**_OTHER_NAMES, "beta": "curvature"}  # KTO's

    def _size(self, xp: Any, size: Any, curvature: float) -> Any:
        return xp.tanh(curvature / 2 * size) / 2

    def _size_inverse(self, xp: Any, size: Any, curvature: float) -> Any:
        return xp.atanh(_below(xp, 2 * size)) * 2 / curvature

    def _largest_size(self, curvature: float) -> float:
        return 0.5

    def _size_by_curvature(self, xp: Any, size: Any, curvature: float) -> Any:
        slope = self._size_slope(xp, size, curvature)
        return xp.where(slope == 0, 0.0, size) / curvature * slope  # far out the size may be infinite

    def _size_slope(self, xp: Any, size: Any, curvature: float) -> Any:
        tail = xp.exp(-curvature * size)
        return curvature * tail / (1 + tail) ** 2


def _below(xp: Any, share: Any) -> Any:
    """Return shares of the largest size with those that rounding has put above 1 set to 1."""
    return xp.where(share > 1, 1.0, share)


def _power(xp: Any, size: Any, exponent: float) -> Any:
    """Return size**exponent for size >= 0, with a 0 without gradient at 0 if the slope there is infinite."""
    if not _checks.has_axes(exponent) and exponent >= 1:
        return size**exponent
    zero = (size == 0) & (exponent < 1)
    # The argument is replaced too: autograd multiplies the untaken branch's slope by 0, and 0 * inf is nan.
    return xp.where(zero, 0.0, xp.where(zero, 1.0, size) ** exponent)
