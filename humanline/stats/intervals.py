"""Means and differences with Student's intervals."""

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


@dataclass(frozen=True, slots=True)
class Estimate:
    """An estimated mean, its standard error, and how well that error is known.

    Attributes
    ----------
    mean : float
    error : float >= 0
        Standard error of the mean; inf where it cannot be known (a single value).
    degrees : float >= 0
        Degrees of freedom of the error, for Student's t.
    """

    mean: float
    error: float
    degrees: float

    def interval(self, confidence: float = 0.95) -> Interval:
        """Return ``mean ± t_{(1 + c)/2, degrees} error``; inf wide without degrees of freedom."""
        check_confidence(confidence)
        if not self.degrees or math.isinf(self.error):
            return Interval(self.mean, math.inf)
        # the lower tail, for (1 + confidence) / 2 may round to 1
        return Interval(self.mean, -t_quantile(self.degrees, (1 - confidence) / 2) * self.error)

    def lower(self, confidence: float = 0.95) -> float:
        """Return the one-sided lower confidence bound of the mean; -inf without degrees of freedom."""
        check_confidence(confidence)
        if not self.degrees or math.isinf(self.error):
            return -math.inf
        return self.mean - (t_quantile(self.degrees, confidence) * self.error if self.error else 0.0)

    def above(self, value: float) -> float:
        """Return the p-value that the mean is at most a value, against one above it; nan without degrees of freedom."""
        return t_tail(self.degrees, self.mean - value, self.error)

    def __neg__(self) -> Estimate:
        return Estimate(-self.mean, self.error, self.degrees)


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

    Notes
    -----
    Source: Student, The probable error of a mean, Biometrika 6 (1908). Exact for normal values. Values that are all
    equal give a half-width of 0, a single value one of inf.

    Examples
    --------
    >>> print(mean_interval([1, 2, 3, 4]))
    2.500 ± 2.054
    """
    return mean_estimate(values).interval(confidence)


def mean_estimate(values: Sequence[float], *, name: str = "values") -> Estimate:
    """Compute the mean of independent values, its standard error ``s / sqrt(n)`` and its n - 1 degrees of freedom.

    Parameters
    ----------
    values : sequence of n >= 1 finite floats
    name : str
        What messages call them.

    Returns
    -------
    Estimate
        Its error is exactly 0 where all values are equal.

    Raises
    ------
    ValueError
        If there is no value, one is not finite, or their sum is not.

    Notes
    -----
    Source: Student (1908), as for `mean_interval`.

    Examples
    --------
    >>> mean_estimate([1, 1, 1])
    Estimate(mean=1.0, error=0.0, degrees=2)
    """
    numbers = _numbers(name, values)
    _checks.summable(name, numbers)
    return Estimate(*_mean_and_error(numbers), len(numbers) - 1)


def paired_interval(first: Sequence[float], second: Sequence[float], *, confidence: float = 0.95) -> Interval:
    """Compute the mean of ``first - second`` over pairs and its Student-t interval.

    ``mean(d) ± t_{(1 + c)/2, n - 1} s_d / sqrt(n)`` with ``d_i = first_i - second_i``.

    Parameters
    ----------
    first, second : sequences of n >= 1 finite floats
        Entry i of both comes from pair i: the same seed, start model or question.
    confidence : float in (0, 1)

    Returns
    -------
    Interval
        Positive where `first` is larger.

    Raises
    ------
    ValueError
        If there is no pair, the lengths differ, a number or a difference is not finite, or confidence is outside
        (0, 1).

    Notes
    -----
    Source: Student, The probable error of a mean, Biometrika 6 (1908), whose example is such a pair of treatments.

    Examples
    --------
    >>> print(paired_interval([0.71, 0.64, 0.80], [0.70, 0.61, 0.78]))
    0.020 ± 0.025
    """
    ours, theirs = _numbers("first", first), _numbers("second", second)
    _checks.same_shape("second", (len(theirs),), "first", (len(ours),))
    differences = [x - y for x, y in zip(ours, theirs, strict=True)]
    return mean_estimate(differences, name="first - second").interval(confidence)


def _numbers(name: str, values: Sequence[float]) -> list[float]:
    numbers = [_checks.finite(name, value) for value in values]
    if not numbers:
        raise _checks.fail(name, "hold at least one number", values)
    return numbers


def check_confidence(confidence: float) -> None:
    """Raise ValueError unless a confidence is in (0, 1)."""
    if not 0 < _checks.finite("confidence", confidence) < 1:
        raise _checks.fail("confidence", "be in (0, 1)", confidence)


def _mean_and_error(numbers: list[float]) -> tuple[float, float]:
    """Return the mean and its standard error, which is exactly 0 where all numbers are equal, and inf for one."""
    count = len(numbers)
    if count == 1:
        return numbers[0], math.inf
    if min(numbers) == max(numbers):  # their rounded sum may miss count times the number
        return numbers[0], 0.0
    mean = math.fsum(numbers) / count
    return mean, math.hypot(*(x - mean for x in numbers)) / math.sqrt(count - 1) / math.sqrt(count)


def t_quantile(degrees: float, probability: float) -> float:
    """Return Student's quantile; it is infinite for some probabilities next to 0."""
    from scipy.special import stdtrit

    return float(stdtrit(degrees, probability))


def t_tail(degrees: float, excess: float, error: float) -> float:
    """Return the probability that Student's t is at least excess / error; without error, whether it is not positive."""
    from scipy.special import stdtr

    if error == 0:
        return 0.0 if excess > 0 else 1.0
    return float(stdtr(degrees, -excess / error))
