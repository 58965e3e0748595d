"""Ratios of sums over clusters, such as a mean over the tokens of answers to independent prompts."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import ArrayLike

from humanline import _checks
from humanline.stats.intervals import Estimate


def ratio_estimate(numerators: ArrayLike, denominators: ArrayLike, clusters: Sequence[Hashable]) -> Estimate:
    """Compute the ratio of two sums over rows, and its standard error where rows of one cluster go together.

    ``r = sum x / sum y`` with error ``sqrt(G / (G - 1) sum_g (x_g - r y_g)^2) / sum y``, x_g and y_g the sums of
    cluster g of G.

    Parameters
    ----------
    numerators, denominators : (R,) arrays of finite numbers, R >= 1
        Of each row, such as a sum of log-probabilities and a count of tokens; denominators >= 0, with a sum above 0.
    clusters : sequence of R hashable values
        Rows with equal ones may depend on each other in any way.

    Returns
    -------
    Estimate
        With G - 1 degrees of freedom; the error of a single cluster is inf.

    Raises
    ------
    ValueError
        If lengths differ, there is no row, a number is not finite, or denominators are below 0 or all 0.

    Notes
    -----
    Source: Cochran, Sampling techniques (1977), section 6.4, without a correction for finite populations.

    Examples
    --------
    >>> ratio_estimate([1.0, 2.0, 3.0], [1, 1, 1], ["a", "b", "c"]).interval().mean
    2.0
    """
    ratio, influence = _influence(numerators, denominators, clusters)
    count = len(influence)
    return Estimate(ratio, math.hypot(*influence.values()) if count > 1 else math.inf, count - 1)


def ratio_difference(
    first: tuple[ArrayLike, ArrayLike, Sequence[Hashable]], second: tuple[ArrayLike, ArrayLike, Sequence[Hashable]]
) -> Estimate:
    """Compute the difference of two ratios of sums, whose rows may share clusters.

    The error is the root of the summed squares, over clusters, of what each moves the first ratio by less what it moves
    the second by: where no cluster is shared, the root of the sum of both squared errors.

    Parameters
    ----------
    first, second : (numerators, denominators, clusters)
        As in `ratio_estimate`.

    Returns
    -------
    Estimate
        With the degrees of freedom of the side that has fewer clusters; the error of a single cluster is inf.

    Raises
    ------
    ValueError
        As `ratio_estimate` does.

    Notes
    -----
    Source: Cochran, Sampling techniques (1977), section 6.9.
    """
    (ratio, ours), (other, theirs) = _influence(*first), _influence(*second)
    degrees = min(len(ours), len(theirs)) - 1
    moved = [ours.get(one, 0.0) - theirs.get(one, 0.0) for one in {*ours, *theirs}]
    return Estimate(ratio - other, math.hypot(*moved) if degrees else math.inf, degrees)


def _influence(
    numerators: ArrayLike, denominators: ArrayLike, clusters: Sequence[Hashable]
) -> tuple[float, dict[Hashable, float]]:
    """Return a ratio of sums, and by how much each cluster moves it: their squares sum to its squared error."""
    x, y = np.asarray(numerators, dtype=float), np.asarray(denominators, dtype=float)
    _checks.same_shape("denominators", y.shape, "numerators", x.shape)
    _checks.same_shape("clusters", (len(clusters),), "numerators", x.shape)
    if not len(x):
        raise _checks.fail("numerators", "hold at least one number", numerators)
    for name, values in (("numerators", x), ("denominators", y)):
        if not np.isfinite(values).all():
            raise _checks.fail(name, "be finite", float(values[~np.isfinite(values)][0]))
    if (y < 0).any() or not y.any():
        raise _checks.fail("denominators", "be >= 0, and not all 0", float(y.min()))
    places: dict[Hashable, int] = {}
    at = np.array([places.setdefault(one, len(places)) for one in clusters])
    total = math.fsum(y)
    ratio = math.fsum(x) / total
    count = len(places)
    off = np.bincount(at, weights=x - ratio * y, minlength=count)
    factor = math.sqrt(count / (count - 1)) / total if count > 1 else 0.0
    return ratio, dict(zip(places, (factor * off).tolist(), strict=True))
