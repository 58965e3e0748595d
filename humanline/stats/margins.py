"""Differences held against a margin: non-inferiority and equivalence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from humanline import _checks
from humanline.stats.intervals import Estimate, Interval, mean_estimate


@dataclass(frozen=True, slots=True)
class NonInferiority:
    """A mean difference held against the margin that it may fall short by.

    Attributes
    ----------
    interval : Interval
        Of the mean difference, two-sided.
    lower : float
        One-sided lower confidence bound of the mean difference, at the same confidence.
    margin : float >= 0
        In the unit of the differences.
    p : float in [0, 1]
        Of the hypothesis that the mean is at most -margin.
    """

    interval: Interval
    lower: float
    margin: float
    p: float

    def __str__(self) -> str:
        sign = ">" if self.holds else "<="
        return f"{self.interval}, lower bound {self.lower:.3f} {sign} {-self.margin:.3f}, p = {self.p:.2g}"

    @property
    def holds(self) -> bool:
        """Return whether the lower bound lies above -margin; then ``p < 1 - confidence``."""
        return self.lower > -self.margin


@dataclass(frozen=True, slots=True)
class Equivalence:
    """A mean difference held against a margin on both sides of 0.

    Attributes
    ----------
    interval : Interval
        Of the mean difference, two-sided.
    lower, upper : float
        One-sided confidence bounds of the mean difference, each at the same confidence.
    margin : float > 0
        In the unit of the differences.
    p : float in [0, 1]
        Of the hypothesis that the mean is at most -margin or at least margin.
    """

    interval: Interval
    lower: float
    upper: float
    margin: float
    p: float

    def __str__(self) -> str:
        sign = "inside" if self.holds else "not inside"
        return (
            f"{self.interval}, bounds ({self.lower:.3f}, {self.upper:.3f}) {sign} ±{self.margin:.3f}, p = {self.p:.2g}"
        )

    @property
    def holds(self) -> bool:
        """Return whether both bounds lie inside ±margin; then ``p < 1 - confidence``."""
        return -self.margin < self.lower and self.upper < self.margin


def non_inferiority(
    differences: Sequence[float] | Estimate, margin: float, *, confidence: float = 0.95
) -> NonInferiority:
    """Test that the mean of paired differences falls short of 0 by less than a margin.

    ``p = P(t_{n - 1} >= (mean + margin) / (s / sqrt(n)))`` and ``lower = mean - t_{c, n - 1} s / sqrt(n)``; it holds
    where ``lower > -margin``.

    Parameters
    ----------
    differences : sequence of n >= 2 finite floats, or Estimate
        New minus established, over independent pairs; larger is better. An estimate is one of their mean, where pairs
        are not independent (`clustered_estimate`, `crossed_estimate`).
    margin : float >= 0
        The largest loss that is acceptable, in the unit of the differences; 0 tests superiority.
    confidence : float in (0, 1)
        One minus the level of the test.

    Returns
    -------
    NonInferiority

    Raises
    ------
    ValueError
        If there are fewer than two differences, or no degree of freedom; if one is not finite, `margin` is negative or
        not finite, or confidence is outside (0, 1).

    Notes
    -----
    Source: Student (1908), the one-sided t-test of the mean at -margin. Choose the margin before seeing the data. The
    interval is two-sided, so that its lower end lies below `lower`. Differences that are all equal give a p-value of 0
    or, at or below -margin, 1.

    Examples
    --------
    >>> result = non_inferiority([0.01, -0.02, 0.00, 0.01, -0.01], margin=0.02)
    >>> result.holds, round(result.p, 4)
    (True, 0.0183)
    >>> print(result)
    -0.002 ± 0.016, lower bound -0.014 > -0.020, p = 0.018
    """
    estimate = _estimate(differences)
    margin = _checks.non_negative("margin", margin)
    interval = estimate.interval(confidence)
    return NonInferiority(interval, estimate.lower(confidence), margin, estimate.above(-margin))


def equivalence(differences: Sequence[float] | Estimate, margin: float, *, confidence: float = 0.95) -> Equivalence:
    """Test that the mean of paired differences lies within a margin of 0, by two one-sided tests.

    ``p = max(P(t_{n - 1} >= (margin + mean) / e), P(t_{n - 1} >= (margin - mean) / e))`` with ``e = s / sqrt(n)``; it
    holds where ``-margin < lower`` and ``upper < margin``, with ``lower, upper = mean ∓ t_{c, n - 1} e``.

    Parameters
    ----------
    differences : sequence of n >= 2 finite floats, or Estimate
        Over independent pairs, or an estimate of their mean.
    margin : float > 0
        The smallest mean difference that would matter, in the unit of the differences.
    confidence : float in (0, 1)
        One minus the level of the test.

    Returns
    -------
    Equivalence

    Raises
    ------
    ValueError
        If there are fewer than two differences, or no degree of freedom; if one is not finite, `margin` is not finite
        and > 0, or confidence is outside (0, 1).

    Notes
    -----
    Source: Schuirmann, A comparison of the two one-sided tests procedure and the power approach for assessing the
    equivalence of average bioavailability, Journal of Pharmacokinetics and Biopharmaceutics 15 (1987). Neither test is
    corrected for the other: both must reject. Choose the margin before seeing the data.

    Examples
    --------
    >>> result = equivalence([0.01, -0.02, 0.00, 0.01, -0.01], margin=0.02)
    >>> result.holds, round(result.p, 4)
    (True, 0.0183)
    """
    margin = _checks.positive("margin", margin)
    estimate = _estimate(differences)
    not_below, not_above = (non_inferiority(one, margin, confidence=confidence) for one in (estimate, -estimate))
    p = max(not_below.p, not_above.p)
    return Equivalence(not_below.interval, not_below.lower, -not_above.lower, margin, p)


def _estimate(differences: Sequence[float] | Estimate) -> Estimate:
    """Return the estimate of a mean difference, which must have degrees of freedom."""
    estimate = differences if isinstance(differences, Estimate) else mean_estimate(differences, name="differences")
    if not estimate.degrees:
        raise _checks.fail("differences", "hold at least two numbers", differences)
    return estimate
