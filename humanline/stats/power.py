"""What data of a size can show: the smallest difference, and the number of pairs that a difference needs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from humanline import _checks
from humanline.stats.crossed import mean_squares, of_mean_squares, power_of_two
from humanline.stats.intervals import Estimate, t_quantile

_FAR = 1e4  # noncentrality: from about ten times of it scipy's noncentral t is wrong
_MOST = 2**40  # pairs: a difference that needs more is not distinguishable from none


def detectable_difference(estimate: Estimate, *, power: float = 0.8, level: float = 0.05, sides: int = 2) -> float:
    """Compute the smallest true difference that a t-test with this error would have shown.

    The d > 0 with ``P(T > t_{1 - level/sides, nu}) = power``, T noncentral t with nu degrees of freedom and
    noncentrality ``d / error``: a difference is shown where it is found, with its sign.

    Parameters
    ----------
    estimate : Estimate
        Its mean is not read: what was found says nothing of what could be.
    power, level : float in (0, 1), level < power
    sides : 1 or 2

    Returns
    -------
    float >= 0
        In the unit of the mean; inf where there are no degrees of freedom.

    Raises
    ------
    ValueError
        If a number is outside its range.

    Notes
    -----
    Source: Cohen, Statistical power analysis for the behavioral sciences (1988); exact under normal differences.

    Examples
    --------
    >>> round(detectable_difference(Estimate(mean=0.0, error=0.1, degrees=19)), 4)
    0.2954
    """
    _ranges(power, level, sides)
    if not estimate.degrees or math.isinf(estimate.error):
        return math.inf
    return estimate.error * _noncentrality(estimate.degrees, power, level, sides)


def needed_pairs(
    deviation: float, difference: float, *, power: float = 0.8, level: float = 0.05, sides: int = 2
) -> int:
    """Compute how many independent pairs show a true difference with a given probability.

    The smallest n >= 2 whose `detectable_difference`, with error ``deviation / sqrt(n)`` and n - 1 degrees of freedom,
    is at most `difference`.

    Parameters
    ----------
    deviation : float >= 0
        Standard deviation of the pairs' differences.
    difference : float > 0
        In the same unit.
    power, level, sides
        As in `detectable_difference`.

    Returns
    -------
    int >= 2

    Raises
    ------
    ValueError
        If a number is outside its range, or more than 2^40 pairs were needed.

    Examples
    --------
    >>> needed_pairs(1.0, 0.5)
    34
    """
    _ranges(power, level, sides)
    deviation, difference = _checks.non_negative("deviation", deviation), _checks.positive("difference", difference)

    def shows(n: int) -> bool:
        return deviation / math.sqrt(n) * _noncentrality(n - 1, power, level, sides) <= difference

    found = _fewest(shows, _MOST)
    if found is None:
        raise _checks.fail("difference", f"be large enough for {_MOST} pairs to show it", difference)
    return found


def needed_crossed(
    differences: ArrayLike,
    difference: float,
    *,
    more: Literal["items", "seeds"],
    power: float = 0.8,
    level: float = 0.05,
    sides: int = 2,
) -> int | None:
    """Compute how many items, or seeds, of a table of both show a true difference, the others staying as many.

    The variances of items, seeds and rest are estimated from the table's mean squares, as `crossed_estimate` does, with
    its error and degrees of freedom for tables of other sizes.

    Parameters
    ----------
    differences : (I, S) array of finite floats, I, S >= 2
    difference : float > 0
        In their unit.
    more : "items" or "seeds"
        Which there may be more, or fewer, of.
    power, level, sides
        As in `detectable_difference`.

    Returns
    -------
    int or None
        At least 2; None where 2^20 are not enough, since the others vary too much.

    Raises
    ------
    ValueError
        If the table has fewer than two of either, or a number is outside its range.
    """
    _ranges(power, level, sides)
    difference = _checks.positive("difference", difference)
    _checks.one_of("more", more, ("items", "seeds"))
    unit = power_of_two(differences)
    table, wanted = np.ldexp(np.asarray(differences, dtype=np.float64), -unit), float(np.ldexp(difference, -unit))
    of_items, of_seeds, rest = mean_squares(table)
    items, seeds = table.shape
    by_item, by_seed = max(0.0, of_items - rest) / seeds, max(0.0, of_seeds - rest) / items

    def shows(n: int) -> bool:
        i, s = (n, seeds) if more == "items" else (items, n)
        estimate = of_mean_squares(0.0, (s * by_item + rest, i * by_seed + rest, rest), i, s)
        return detectable_difference(estimate, power=power, level=level, sides=sides) <= wanted

    return _fewest(shows, 2**20)


def _fewest(shows: Callable[[int], bool], most: int) -> int | None:
    """Return the smallest number from 2 that is enough, None where `most` is not."""
    high = 2
    while not shows(high):
        high *= 2
        if high > most:
            return None
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if shows(middle) else (middle, high)
    return high


def _noncentrality(degrees: float, power: float, level: float, sides: int) -> float:
    """Return by how many standard errors a mean must differ from 0 for a power."""
    from scipy.special import gammaincc, nctdtr, ndtr

    bound = -t_quantile(degrees, level / sides)

    def missed(shift: float) -> float:
        if degrees > 1e5:  # t is as good as normal, and the noncentral one slow
            return float(ndtr(bound - shift))
        if shift < _FAR:
            return float(nctdtr(degrees, shift, bound))
        # The chance that the standard deviation is above (z + shift) / bound, averaged over z by Gauss and Hermite: it
        # hardly varies with z, whose own spread is 1.
        ratio = (np.array([-math.sqrt(3), 0.0, math.sqrt(3)]) + shift) / bound
        return float(gammaincc(degrees / 2, degrees / 2 * ratio**2) @ [1 / 6, 2 / 3, 1 / 6])

    low, high = 0.0, bound + 1.0
    while missed(high) > 1 - power:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if missed(middle) > 1 - power else (low, middle)
    return high


def _ranges(power: float, level: float, sides: int) -> None:
    for name, value in (("power", power), ("level", level)):
        if not 0 < _checks.finite(name, value) < 1:
            raise _checks.fail(name, "be in (0, 1)", value)
    if level >= power:
        raise _checks.fail("power", f"be above level, {level:g}", power)
    if sides not in (1, 2):
        raise _checks.fail("sides", "be 1 or 2", sides)
