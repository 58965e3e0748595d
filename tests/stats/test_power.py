"""Power against an integral over the standard deviation, published numbers and draws."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.integrate
import scipy.special
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
@pytest.mark.parametrize(("power", "level", "sides"), [(0.8, 0.05, 2), (0.8, 0.05, 1), (0.6, 0.2, 1)])
def test_the_smallest_number_of_pairs(difference, power, level, sides):
    pairs = needed_pairs(1.0, difference, power=power, level=level, sides=sides)
    assert power_of(difference, 1.0, pairs, level, sides) >= power
    assert pairs == 2 or power_of(difference, 1.0, pairs - 1, level, sides) < power


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


@pytest.mark.parametrize("power", [0.01, 0.5, 0.8, 0.999])
@pytest.mark.parametrize("level", [1e-5, 1e-6, 1e-8, 1e-20, 1e-100])
@pytest.mark.parametrize("degrees", [1, 1.5, 2, 3])
def test_a_level_that_few_degrees_hardly_reach(degrees, level, power):
    """Far out the mean's own spread is small beside the bound: power is the chance of a standard deviation below it.

    Left out are terms of the order of the degrees over the squares of bound and difference.
    """
    bound = -scipy.special.stdtrit(degrees, level / 2)
    expected = bound * math.sqrt(scipy.stats.chi2.ppf(power, degrees) / degrees)
    found = detectable_difference(Estimate(0.0, 1.0, degrees), power=power, level=level)
    assert found == pytest.approx(expected, rel=1e-9 + degrees * (1 / bound**2 + 1 / expected**2))


def test_about_the_seam_of_the_far_out_nothing_jumps():
    """On both sides of it noncentral t and mean over z agree with the closed form of two degrees."""
    powers = np.linspace(0.08, 0.11, 13)
    bound = -scipy.special.stdtrit(2, 1e-9 / 2)
    found = [detectable_difference(Estimate(0.0, 1.0, 2), power=power, level=1e-9) for power in powers]
    assert min(found) < 1e4 < max(found)
    np.testing.assert_allclose(found, bound * np.sqrt(-np.log1p(-powers)), rtol=1e-7)


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


@pytest.mark.parametrize("more", ["items", "seeds"])
def test_how_many_are_needed_does_not_hang_on_the_unit(more):
    """Squares of small numbers are 0, and of large ones infinite; 2, None, or a division by 0 had come of that."""
    table = np.random.default_rng(0).normal(size=(40, 3))
    plain = needed_crossed(table, 0.9, more=more)
    assert plain is not None and plain > 2
    for power in (-700, -333, 520, 700):
        assert needed_crossed(np.ldexp(table, power), math.ldexp(0.9, power), more=more) == plain


def crossed_power(table: np.ndarray, difference: float, items: int, seeds: int, level: float, sides: int) -> float:
    """Power with so many items and seeds, of effects with the variances that the table shows."""
    i, s = table.shape
    rows, columns, mean = table.mean(1, keepdims=True), table.mean(0, keepdims=True), table.mean()
    rest = ((table - rows - columns + mean) ** 2).sum() / ((i - 1) * (s - 1))
    of_items, of_seeds = max(rows.var(ddof=1) - rest / s, 0.0), max(columns.var(ddof=1) - rest / i, 0.0)
    squares = {items - 1: seeds * of_items + rest, seeds - 1: items * of_seeds + rest}
    both, noise = sum(squares.values()) - rest, (items - 1) * (seeds - 1)
    degrees = both**2 / (sum(one**2 / df for df, one in squares.items()) + rest**2 / noise)
    if both <= max(squares.values()):  # as the larger way alone
        degrees, both = max((one, df) for df, one in squares.items())[1], max(squares.values())
    shift = difference / math.sqrt(both / (items * seeds))
    return float(scipy.stats.nct.sf(scipy.stats.t.ppf(1 - level / sides, degrees), degrees, shift))


@pytest.mark.parametrize("more", ["items", "seeds"])
@pytest.mark.parametrize(("level", "sides"), [(0.05, 2), (0.1, 1)])
@pytest.mark.parametrize("what", ["both", "rest"])
def test_the_smallest_number_of_either(more, level, sides, what):
    """Against the noncentral t with the variances of another table; and where one way varies less than the rest."""
    rng = np.random.default_rng(3)
    noise = rng.normal(size=(30, 6))
    if what == "rest":
        table = noise - 0.9 * noise.mean(0) - 0.9 * noise.mean(1, keepdims=True)
        difference = 0.2
    else:
        table, difference = noise + rng.normal(size=(30, 1)) + 0.4 * rng.normal(size=(1, 6)), 0.62
    found = needed_crossed(table, difference, more=more, level=level, sides=sides)
    at = [crossed_power(table, difference, *((n, 6) if more == "items" else (30, n)), level, sides) for n in (found, 2)]
    assert at[0] >= 0.8 and (found == 2 or at[1] < 0.8)
    if found > 2:
        fewer = (found - 1, 6) if more == "items" else (30, found - 1)
        assert crossed_power(table, difference, *fewer, level, sides) < 0.8
