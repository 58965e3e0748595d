"""Humanline clipping: keep a log-ratio within a range (section 5.1; the limit of Theorem 4.3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from humanline import _checks
from humanline.theory._arrays import floats, plain


@dataclass(frozen=True)
class ClipRange:
    """Hold the range of log-ratios that humanline clipping leaves alone.

    ``[low, high] = [log eps_P, log eps_R]``

    Parameters
    ----------
    low, high : float, low <= 0 <= high
        Nats; either may be infinite.

    Raises
    ------
    ValueError
        If low > 0, high < 0 or one is nan.

    Notes
    -----
    Source: arXiv 2509.24207, section 5.1 and Thm 4.3. The paper sets no sign; both signs are fixed here so that a
    log-ratio of 0, as padding has, is never moved.

    Examples
    --------
    >>> ClipRange(-1.5, 1.5).clip([-4, 0, 1, 4]).tolist()
    [-1.5, 0.0, 1.0, 1.5]
    """

    low: float
    high: float

    def __post_init__(self) -> None:
        low, high = _checks.clip_bounds(self.low, self.high)
        object.__setattr__(self, "low", low)
        object.__setattr__(self, "high", high)

    def clip(self, log_ratio: Any) -> Any:
        """Replace log-ratios beyond a bound by the bound.

        ``min(max(log_ratio, low), high)``

        Parameters
        ----------
        log_ratio : array or scalar, any shape
            Nats; integers become floats and nan stays nan.

        Returns
        -------
        numpy array, numpy scalar for a number, or torch tensor for a tensor
            Of the same shape, floating dtype and device; nats.
            The gradient is 1 from `low` to `high`, both bounds included, and 0 beyond.

        Notes
        -----
        Source: arXiv 2509.24207, section 5.1. On a bound itself the paper says nothing, and libraries and their
        versions differ; 1 is the choice that agrees with Thm 4.3, whose accepted set is closed.
        """
        xp, (x,) = floats(log_ratio=log_ratio)
        return plain(xp.where(x < self.low, self.low, xp.where(x > self.high, self.high, x)))

    def contains(self, log_ratio: Any) -> Any:
        """Return whether each log-ratio (nats, any shape) lies in [low, high]; False for nan.

        A numpy bool array, a numpy bool for a number, or a torch bool tensor for a tensor, on its device.

        Examples
        --------
        >>> ClipRange(-1.5, 1.5).contains([-1.5, 1.6]).tolist()
        [True, False]
        """
        _, (x,) = floats(log_ratio=log_ratio)
        return plain((x >= self.low) & (x <= self.high))
