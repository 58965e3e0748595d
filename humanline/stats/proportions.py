"""Shares of successes: intervals that hold near 0 and 1, clustered samples, and the exact test of paired outcomes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from humanline import _checks
from humanline.stats.intervals import check_confidence, mean_estimate, t_quantile


@dataclass(frozen=True, slots=True)
class Proportion:
    """A share and its confidence interval, which is not symmetric.

    Attributes
    ----------
    share, low, high : float in [0, 1]
    """

    share: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.share:.3f} ({self.low:.3f} to {self.high:.3f})"


def wilson_interval(successes: int, trials: int, *, confidence: float = 0.95) -> Proportion:
    """Compute a share of independent trials and its Wilson interval.

    The interval holds every p with ``|successes/n - p| <= z sqrt(p (1 - p) / n)``, z the normal quantile of
    (1 + c)/2.

    Parameters
    ----------
    successes, trials : int
        0 <= successes <= trials, trials >= 1.
    confidence : float in (0, 1)

    Returns
    -------
    Proportion

    Raises
    ------
    ValueError
        If a number is no such integer, or confidence is outside (0, 1).

    Notes
    -----
    Source: Wilson, Probable inference, the law of succession, and statistical inference, JASA 22 (1927).

    Examples
    --------
    >>> print(wilson_interval(8, 10))
    0.800 (0.490 to 0.943)
    """
    n = _checks.finite("trials", trials)
    k = _checks.finite("successes", successes)
    if n < 1 or n != int(n):
        raise _checks.fail("trials", "be an integer >= 1", trials)
    if not 0 <= k <= n or k != int(k):
        raise _checks.fail("successes", f"be an integer in 0 .. {int(n)}", successes)
    check_confidence(confidence)
    return _wilson(k / n, n, -t_quantile(math.inf, (1 - confidence) / 2))


def clustered_share(shares: Sequence[float], *, confidence: float = 0.95) -> Proportion:
    """Compute the mean of the shares of independent items, each estimated from samples of its own, and its interval.

    The Wilson interval for ``n = m (1 - m) / e^2`` trials, with m the mean and e its standard error over items, and
    Student's quantile of I - 1 degrees of freedom in the place of the normal one. Samples of one item may depend on
    each other in any way: only items count. Where all shares are 0, or all are 1, n is I.

    Parameters
    ----------
    shares : sequence of I >= 1 floats in [0, 1]
        Of each item, pass@1 or pass@k, say.
    confidence : float in (0, 1)

    Returns
    -------
    Proportion
        From 0 to 1 for a single item.

    Raises
    ------
    ValueError
        If there is no share, one is outside [0, 1], or confidence is outside (0, 1).

    Notes
    -----
    Source: Korn and Graubard, Confidence intervals for proportions with small expected number of positive counts
    estimated from survey data, Survey Methodology 24 (1998), for trials that are worth as much as the clustered ones.
    Of 50 items with one sample each Student's interval around the same mean covers .87 to .96, this one .93 to .98.

    Examples
    --------
    >>> print(clustered_share([1.0, 0.5, 0.75, 0.25, 1.0, 0.0]))
    0.583 (0.222 to 0.873)
    """
    check_confidence(confidence)
    estimate = mean_estimate(shares, name="shares")
    if not all(0 <= share <= 1 for share in shares):
        raise _checks.fail("shares", "be in [0, 1]", next(share for share in shares if not 0 <= share <= 1))
    if not estimate.degrees:
        return Proportion(estimate.mean, 0.0, 1.0)
    mean = min(1.0, estimate.mean)
    # In two divisions: the square of an error below 1e-160 is 0.
    trials = mean / estimate.error * ((1 - mean) / estimate.error) if estimate.error and 0 < mean < 1 else math.inf
    # Equal shares inside (0, 1) tell nothing of how items differ: as many trials as items, as at the ends.
    trials = trials if math.isfinite(trials) else len(shares)
    return _wilson(mean, trials, -t_quantile(estimate.degrees, (1 - confidence) / 2))


def mcnemar(only_first: int, only_second: int) -> float:
    """Compute the exact p-value that two outcomes, each yes or no, of the same items are yes equally often.

    ``p = min(1, 2 P(X <= min(b, c)))`` with X binomial of b + c trials and probability 1/2, b and c the numbers of
    items on which only one of both is a yes. Items on which both agree do not count.

    Parameters
    ----------
    only_first, only_second : int >= 0

    Returns
    -------
    float in (0, 1]

    Raises
    ------
    ValueError
        If a number is no integer >= 0.

    Notes
    -----
    Source: McNemar, Note on the sampling error of the difference between correlated proportions, Psychometrika 12
    (1947), in its exact form.

    Examples
    --------
    >>> round(mcnemar(2, 10), 6)
    0.038574
    >>> mcnemar(0, 0)
    1.0
    """
    from scipy.special import bdtr

    for name, count in (("only_first", only_first), ("only_second", only_second)):
        if _checks.finite(name, count) < 0 or int(count) != count:
            raise _checks.fail(name, "be an integer >= 0", count)
    return min(1.0, 2 * float(bdtr(min(only_first, only_second), int(only_first + only_second), 0.5)))


def _wilson(share: float, trials: float, z: float) -> Proportion:
    middle = (share + z * z / (2 * trials)) / (1 + z * z / trials)
    half = z / (1 + z * z / trials) * math.sqrt(share * (1 - share) / trials + (z / trials) ** 2 / 4)
    # At the ends rounding may leave the share a little outside.
    return Proportion(share, max(0.0, min(share, middle - half)), min(1.0, max(share, middle + half)))
