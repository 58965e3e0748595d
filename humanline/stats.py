"""Small statistics of reports: intervals over seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from humanline import _checks


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean and the half-width of its confidence interval (inf for a single value)."""

    mean: float
    half_width: float

    def __str__(self) -> str:
        return f"{self.mean:.3f} ± {self.half_width:.3f}" if math.isfinite(self.half_width) else f"{self.mean:.3f}"

    @property
    def excludes_zero(self) -> bool:
        """Return whether 0 lies outside the interval."""
        return abs(self.mean) > self.half_width


def mean_interval(values: Sequence[float], *, confidence: float = 0.95) -> Interval:
    """Compute the mean of independent values and its Student-t interval.

    ``mean ± t_{(1 + c)/2, n - 1} s / sqrt(n)`` with s the unbiased standard deviation. For a paired comparison give the
    differences.

    Parameters
    ----------
    values : sequence of finite floats, at least one
    confidence : float in (0, 1)

    Returns
    -------
    Interval

    Raises
    ------
    ValueError
        If there is no value, one is not finite, or confidence is outside (0, 1).
    """
    numbers = [_checks.finite("values", value) for value in values]
    if not numbers:
        raise _checks.fail("values", "hold at least one number", values)
    if not 0 < _checks.finite("confidence", confidence) < 1:
        raise _checks.fail("confidence", "be in (0, 1)", confidence)
    count = len(numbers)
    mean = math.fsum(numbers) / count
    if count == 1:
        return Interval(mean, math.inf)
    from scipy.special import stdtrit

    deviation = math.sqrt(math.fsum((x - mean) ** 2 for x in numbers) / (count - 1))
    return Interval(mean, float(stdtrit(count - 1, (1 + confidence) / 2)) * deviation / math.sqrt(count))
