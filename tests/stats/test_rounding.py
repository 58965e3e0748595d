"""What counts as rounding alone."""

from __future__ import annotations

import itertools
import math

import numpy as np

from humanline.stats import rounding_of

SHARES = (0.1, 0.2, 0.3, 0.7, 1 / 3)


def test_sums_in_another_order_differ_by_rounding_alone():
    """An order's rounding of n positive terms is below (n - 1) / 2 machine epsilons of the sum (Higham 2002, 4.2)."""
    sums = [sum(order) for order in itertools.permutations(SHARES)]
    apart = max(sums) - min(sums)
    assert 0 < apart <= rounding_of(max(sums), min(sums)) < 1e-14


def test_it_follows_the_larger_magnitude_and_is_of_each_number_alike():
    one, other = np.array([0.0, -4.0, 1e300, 0.0]), np.array([2.0, 1.0, 1.0, 0.0])
    expected = [8 * math.ulp(1.0) * size for size in (2.0, 4.0, 1e300, 0.0)]
    assert rounding_of(one, other).tolist() == expected == rounding_of(other, one).tolist()
    assert [rounding_of(*both) for both in zip(one, other, strict=True)] == expected
