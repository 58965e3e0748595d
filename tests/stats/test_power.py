"""Power against an integral over the standard deviation, published numbers and draws."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.integrate
import scipy.stats

from humanline.stats import Estimate, detectable_difference, mean_estimate, needed_crossed, needed_pairs


def power_of(difference: float, deviation: float, pairs: int, level: float, sides: int) -> float:
    """Power of the t-test with the right sign: the normal tail, integrated over the chi of the standard deviation."""
    shift, degrees = difference / deviation * math.sqrt(pairs), pairs - 1
    bound = scipy.stats.t.ppf(1 - level / sides, degrees)
    spread = scipy.stats.chi(degrees, scale=1 / math.sqrt(degrees))
    low, high = spread.ppf(1e-12), spread.isf(1e-12)
    found = scipy.integrate.quad(
        lambda s: scipy.stats.norm.sf(bound * s - shift) * spread.pdf(s), low, high, epsabs=1e-10, limit=500
    )
    return float(found[0])


@pytest.mark.parametrize("sides", [1, 2])
@pytest.mark.parametrize("pairs", [2, 3, 5, 20, 500])
@pytest.mark.parametrize(("power", "level"), [(0.8, 0.05), (0.5, 0.01), (0.99, 0.2)])
def test_the_power_at_the_smallest_difference(pairs, sides, power, level):
    estimate = Estimate(3.0, 0.7 / math.sqrt(pairs), pairs - 1)
    found = detectable_difference(estimate, power=power, level=level, sides=sides)
    assert power_of(found, 0.7, pairs, level, sides) == pytest.approx(power, abs=1e-6)


@pytest.mark.parametrize("difference", [0.05, 0.3, 1.0, 4.0])
def test_the_smallest_number_of_pairs(difference):
    pairs = needed_pairs(1.0, difference)
    assert power_of(difference, 1.0, pairs, 0.05, 2) >= 0.8
    assert pairs == 2 or power_of(difference, 1.0, pairs - 1, 0.05, 2) < 0.8


def test_published_numbers():
    """Cohen (1988), table 2.4.1 halves: 34 pairs for .5, 199 for .2, 15 for .8 standard deviations at .80 and .05."""
    assert [needed_pairs(1.0, d) for d in (0.2, 0.5, 0.8)] == [199, 34, 15]


def test_draws_are_found_as_often():
    """Of 4000 studies at the smallest difference .8 reject, within Hoeffding's bound at 1e-9."""
    pairs, studies = 12, 4000
    true = detectable_difference(Estimate(0.0, 1 / math.sqrt(pairs), pairs - 1))
    drawn = np.random.default_rng(0).normal(true, 1.0, size=(studies, pairs))
    found = np.mean([mean_estimate(one.tolist()).interval().excludes_zero for one in drawn])
    assert abs(found - 0.8) < math.sqrt(math.log(2e9) / (2 * studies))


def test_many_pairs_need_no_noncentral_t():
    """About the seam between t and normal nothing jumps."""
    low, high = (detectable_difference(Estimate(0.0, 1.0, degrees)) for degrees in (1e5, 1e5 + 1))
    assert low == pytest.approx(high, rel=1e-4) == 2.8016
    assert needed_pairs(1.0, 1e-4) == pytest.approx(2.8016e4**2, rel=1e-4)


def test_the_ends():
    assert detectable_difference(Estimate(0.0, math.inf, 0)) == math.inf
    assert detectable_difference(Estimate(1.0, 0.0, 9)) == 0.0
    assert needed_pairs(0.0, 0.1) == 2
    with pytest.raises(ValueError, match="difference must be large enough"):
        needed_pairs(1.0, 1e-9)
    for options in ({"power": 1.0}, {"level": 0.0}, {"sides": 3}, {"power": 0.04}):
        with pytest.raises(ValueError, match=r"must be"):
            detectable_difference(Estimate(0.0, 1.0, 5), **options)


def test_more_items_or_more_seeds():
    """More of the way that varies help; more of the other one do not."""
    rng = np.random.default_rng(0)
    of_seeds = 0.3 * rng.normal(size=(1, 6)) + 0.01 * rng.normal(size=(200, 6))
    assert needed_crossed(of_seeds, 0.05, more="items") is None
    seeds = needed_crossed(of_seeds, 0.05, more="seeds")
    deviation = float(of_seeds.mean(0).std(ddof=1))
    assert seeds == pytest.approx(needed_pairs(deviation, 0.05), abs=1)
    of_items = rng.normal(size=(200, 1)) + 0.01 * rng.normal(size=(200, 6))
    assert needed_crossed(of_items, 0.05, more="seeds") is None
    items = needed_crossed(of_items, 0.05, more="items")
    assert items == pytest.approx(needed_pairs(float(of_items.mean(1).std(ddof=1)), 0.05), rel=0.01)
