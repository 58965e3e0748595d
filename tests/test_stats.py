"""Intervals over seeds."""

from __future__ import annotations

import math
import random

import pytest

from humanline.stats import mean_interval


def test_a_worked_example():
    """The interval of 1, 2, 3, 4 is 2.5 ± 3.182446 * 1.290994 / 2, with the tabulated t quantile of 3 degrees."""
    interval = mean_interval([1, 2, 3, 4])
    assert interval.mean == 2.5
    assert interval.half_width == pytest.approx(3.182446305284263 * math.sqrt(5 / 3) / 2, rel=1e-12)
    assert interval.excludes_zero and str(interval) == "2.500 ± 2.054"


def test_one_value_has_no_width():
    """A single value gives an infinite half-width and prints without one."""
    assert mean_interval([2.0]).half_width == math.inf and str(mean_interval([2.0])) == "2.000"
    assert not mean_interval([2.0]).excludes_zero


def test_coverage():
    """Of 4000 intervals from 5 normal values 95 % cover the mean, within the Hoeffding bound at 1e-9."""
    rng, trials = random.Random(0), 4000
    covered = sum(not mean_interval([rng.gauss(0, 1) for _ in range(5)]).excludes_zero for _ in range(trials))
    assert abs(covered / trials - 0.95) < math.sqrt(math.log(2 / 1e-9) / (2 * trials))


@pytest.mark.parametrize(
    "values,options,message",
    [
        ([], {}, "values must hold at least one number"),
        ([1.0, math.nan], {}, "values must be finite; got nan"),
        ([1.0, 2.0], {"confidence": 1.0}, r"confidence must be in \(0, 1\); got 1.0"),
    ],
)
def test_bad_arguments_are_named(values, options, message):
    """Every refused argument is named with its rule and its value."""
    with pytest.raises(ValueError, match=message):
        mean_interval(values, **options)
