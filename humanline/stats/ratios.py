"""Ratios of sums over clusters, such as a mean over the tokens of answers to independent prompts."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from humanline import _checks
from humanline.stats.intervals import Estimate

Sums = tuple[ArrayLike, ArrayLike, Sequence[Hashable]] | tuple[ArrayLike, ArrayLike, Sequence[Hashable], ArrayLike]


def ratio_estimate(
    numerators: ArrayLike, denominators: ArrayLike, clusters: Sequence[Hashable], shifts: ArrayLike = 0.0
) -> Estimate:
    """Compute the ratio of two sums over rows, and its standard error where rows of one cluster go together.

    ``r = sum x / sum y`` with error ``sqrt(G / (G - 1) sum_g (x_g - r y_g)^2) / sum y``, x_g and y_g the sums of
    cluster g of G.

    Parameters
    ----------
    numerators, denominators : (R,) arrays of finite numbers, R >= 1
        Of each row, such as a sum of log-probabilities and a count of tokens; denominators >= 0, with a sum above 0.
    clusters : sequence of R hashable values
        Rows with equal ones may depend on each other in any way.
    shifts : (R,) array or 0, optional
        What a row adds to ``x - r y`` besides, of rows that were chosen by a value (`slice_sums`).

    Returns
    -------
    Estimate
        With G - 1 degrees of freedom; the error of a single cluster is inf.

    Raises
    ------
    ValueError
        If lengths differ, there is no row, a number or a sum is not finite, or denominators are below 0 or all 0.

    Notes
    -----
    Source: Cochran, Sampling techniques (1977), section 6.4, without a correction for finite populations.

    Examples
    --------
    >>> ratio_estimate([1.0, 2.0, 3.0], [1, 1, 1], ["a", "b", "c"]).interval().mean
    2.0
    """
    ratio, influence = _influence(numerators, denominators, clusters, shifts)
    count = len(influence)
    return Estimate(ratio, math.hypot(*influence.values()) if count > 1 else math.inf, count - 1)


def ratio_difference(first: Sums, second: Sums) -> Estimate:
    """Compute the difference of two ratios of sums, whose rows may share clusters.

    The error is the root of the summed squares, over clusters, of what each moves the first ratio by less what it moves
    the second by: where no cluster is shared, the root of the sum of both squared errors.

    Parameters
    ----------
    first, second : (numerators, denominators, clusters), or these and shifts
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


def slice_sums(
    numerators: ArrayLike,
    denominators: ArrayLike,
    clusters: Sequence[Hashable],
    values: ArrayLike,
    inside: NDArray[np.bool_],
) -> tuple[NDArray[np.float64], NDArray[np.float64], Sequence[Hashable], NDArray[np.float64]]:
    """Return what `ratio_estimate` takes for the rows of one slice of all, between two of their quantiles.

    Other rows from the same source would put the edges elsewhere. A row below the slice moves its ratio by what rows at
    the lower edge would bring in, ``e_a``, and one above by what rows at the upper edge would, ``e_b``: the mean of
    ``x - r y`` over the eighth of all rows that lies around that edge. Each is held against the mean over all rows.

    Parameters
    ----------
    numerators, denominators, clusters
        Of all R rows, as in `ratio_estimate`.
    values : (R,) array of finite floats
        What the rows were ordered and cut by.
    inside : (R,) bool array
        The rows of the slice; all others have values that lie on one side of theirs.

    Returns
    -------
    numerators, denominators, clusters, shifts
        Both arrays are 0 outside of the slice.

    Raises
    ------
    ValueError
        If there is no row inside.

    Notes
    -----
    Source: Stigler, The asymptotic distribution of the trimmed mean, Annals of Statistics 1 (1973), for means between
    quantiles; a slice taken for fixed covers .57 to .83 where .95 is wanted (the tests).
    """
    if not inside.any():
        raise _checks.fail("inside", "mark at least one row", inside)
    x, y, order = (np.asarray(one, dtype=float) for one in (numerators, denominators, values))
    ratio = math.fsum(x[inside]) / math.fsum(y[inside])
    off = x - ratio * y
    ranked = off[np.argsort(order, kind="stable")]
    around = max(1, len(x) // 16)
    below, above = order < order[inside].min(), order > order[inside].max()
    shifts = np.where(inside, off, 0.0)
    for side, edge in ((below, int(below.sum())), (above, len(x) - int(above.sum()))):
        if side.any():
            shifts[side] = ranked[max(0, edge - around) : edge + around].mean()
    shifts -= shifts.mean() + np.where(inside, off, 0.0)  # which the ratio itself brings in
    return np.where(inside, x, 0.0), np.where(inside, y, 0.0), clusters, shifts


def _influence(
    numerators: ArrayLike, denominators: ArrayLike, clusters: Sequence[Hashable], shifts: ArrayLike = 0.0
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
        _checks.summable(name, values.tolist())
    if (y < 0).any() or not y.any():
        raise _checks.fail("denominators", "be >= 0, and not all 0", float(y.min()))
    places: dict[Hashable, int] = {}
    at = np.array([places.setdefault(one, len(places)) for one in clusters])
    total = math.fsum(y)
    ratio = math.fsum(x) / total
    count = len(places)
    off = np.bincount(at, weights=x - ratio * y + np.asarray(shifts, dtype=float), minlength=count)
    factor = math.sqrt(count / (count - 1)) / total if count > 1 else 0.0
    return ratio, dict(zip(places, (factor * off).tolist(), strict=True))
