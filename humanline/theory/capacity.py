"""Capacity functions: from a cumulative probability to the one a human perceives (Definition 3.2)."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any, Protocol

from humanline import _checks
from humanline.theory._arrays import floats, plain

#: The smallest gamma at which `TverskyKahneman` is non-decreasing: the root of (2g-1) ln g + (2-g) ln(1-g) = 0.
MONOTONE_GAMMA = 0.279204247014938541855


class Capacity(Protocol):
    """Map cumulative probabilities to perceived ones, 0 to 0 and 1 to 1.

    Any such function of arrays will do. The families of this module also have ``log(log_prob)``, which keeps its
    precision next to 1 and far below the smallest float, and ``is_monotone``.

    Notes
    -----
    Source: arXiv 2509.24207, Def. 3.2.
    """

    def __call__(self, prob: Any, /) -> Any:
        """Return the perceived cumulative probability."""


@dataclass(frozen=True)
class TverskyKahneman:
    """Overweight small and underweight large cumulative probabilities, by one parameter.

    ``Omega(p) = p**gamma / (p**gamma + (1 - p)**gamma)**(1/gamma)``

    Parameters
    ----------
    gamma : float > 0
        1 leaves probabilities alone; the 1992 medians are .61 for gains and .69 for losses.

    Raises
    ------
    ValueError
        If gamma is not > 0 or not finite.

    Warns
    -----
    UserWarning
        If gamma < 0.27920424701...: below it the function decreases somewhere, so that Eq. 4 gives negative weights.

    Notes
    -----
    Source: arXiv 2509.24207, Eq. 3. The paper allows every gamma in R+ and does not mention the threshold.

    nan stays nan. With torch, the slope at 0 and at 1 is infinite for gamma < 1; the gradient returned there is 0.
    The check that probabilities lie in [0, 1] needs their values: it is skipped inside torch.func.vmap and on the
    meta device.

    Examples
    --------
    >>> TverskyKahneman(0.61)([0.0, 0.01, 0.5, 0.99, 1.0]).round(6).tolist()
    [0.0, 0.055266, 0.420639, 0.911584, 1.0]
    """

    gamma: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "gamma", _checks.positive("gamma", self.gamma))
        if not self.is_monotone:
            warnings.warn(
                f"gamma={self.gamma:g} is below {MONOTONE_GAMMA:.6f}: the capacity is not monotone and decision "
                "weights can be negative",
                stacklevel=3,
            )

    @property
    def is_monotone(self) -> bool:
        """Whether the function never decreases."""
        return self.gamma >= MONOTONE_GAMMA

    def __call__(self, prob: Any) -> Any:
        """Return the perceived cumulative probability.

        Parameters
        ----------
        prob : array or scalar in [0, 1], any shape

        Returns
        -------
        array of the same shape and kind, in [0, 1]

        Raises
        ------
        ValueError
            If a probability lies outside [0, 1].
        """
        xp, (given,) = floats(prob=prob)
        _checks.no_element("prob", "lie in [0, 1]", (given < 0) | (given > 1), given)
        p = self._open(xp, given, 0.0, 1.0, 0.5)
        q = 1 - p
        upper = p >= q
        larger, smaller = xp.where(upper, p, q), xp.where(upper, q, p)
        # Dividing both sums by the larger term keeps every intermediate within [0, 2], for any gamma.
        shrink = xp.exp(-xp.log1p((smaller / larger) ** self.gamma) / self.gamma)
        return plain(self._close(xp, given, 0.0, 1.0, p**self.gamma / larger * shrink))

    def log(self, log_prob: Any) -> Any:
        """Return the log of the perceived cumulative probability, from the log of the probability.

        ``ln Omega = gamma lp - ln(p**gamma + q**gamma)/gamma`` with ``lp = ln p`` and ``q = 1 - p``.

        Parameters
        ----------
        log_prob : array or scalar <= 0, any shape
            Nats; a sequence's log-probability of -1e5 is fine, and so is -1e-300.

        Returns
        -------
        array of the same shape and kind
            Nats, <= 0.

        Raises
        ------
        ValueError
            If a log-probability is above 0.

        Examples
        --------
        >>> float(TverskyKahneman(0.61).log(-1e5).round(6))
        -61000.0
        """
        xp, (given,) = floats(log_prob=log_prob)
        _checks.no_element("log_prob", "be <= 0", given > 0, given)
        g, middle = self.gamma, -math.log(2)
        lp = self._open(xp, given, -math.inf, 0.0, middle)
        upper = lp > middle
        high = xp.where(upper, lp, middle)  # above 1/2, where (1 - p)/p = exp(-lp) - 1 exactly
        low = xp.where(upper, middle, lp)
        log_q = xp.log1p(-xp.exp(low))
        log_larger = xp.where(upper, lp, log_q)
        ratio = xp.where(upper, xp.expm1(-high) ** g, xp.exp(g * (low - log_q)))
        return plain(self._close(xp, given, -math.inf, 0.0, g * lp - log_larger - xp.log1p(ratio) / g))

    def _open(self, xp: Any, given: Any, low: float, high: float, inner: float) -> Any:
        """Replace the ends by an inner point if the slope there is infinite, so that no gradient is 0 * inf."""
        return xp.where((given <= low) | (given >= high), inner, given) if self.gamma < 1 else given

    def _close(self, xp: Any, given: Any, low: float, high: float, out: Any) -> Any:
        """Put back the ends, which are their own images, as constants."""
        return xp.where(given <= low, low, xp.where(given >= high, high, out)) if self.gamma < 1 else out


@dataclass(frozen=True)
class Identity:
    """Perceive probabilities as they are: ``Omega(p) = p``.

    Notes
    -----
    Source: arXiv 2509.24207, Eq. 3 at gamma = 1.

    Examples
    --------
    >>> Identity()([0.0, 0.3, 1.0]).tolist()
    [0.0, 0.3, 1.0]
    """

    @property
    def is_monotone(self) -> bool:
        """Whether the function never decreases: True."""
        return True

    def __call__(self, prob: Any) -> Any:
        """Return the probabilities (any shape); raise ValueError if one lies outside [0, 1]."""
        _, (p,) = floats(prob=prob)
        _checks.no_element("prob", "lie in [0, 1]", (p < 0) | (p > 1), p)
        return plain(p)

    def log(self, log_prob: Any) -> Any:
        """Return the log-probabilities (nats, any shape); raise ValueError if one is above 0."""
        _, (lp,) = floats(log_prob=log_prob)
        _checks.no_element("log_prob", "be <= 0", lp > 0, lp)
        return plain(lp)
