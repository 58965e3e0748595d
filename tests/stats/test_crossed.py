"""Items crossed with seeds: the size of tests at the edge of a margin."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats

from humanline.stats import Estimate, crossed_estimate, equivalence, mean_estimate, mean_squares, non_inferiority

SIZES = {"neither": (0.0, 0.0), "items": (1.0, 0.0), "seeds": (0.0, 1.0), "both": (1.0, 1.0), "little": (0.3, 0.1)}


def tables(count: int, items: int, seeds: int, of_items: float, of_seeds: float, mean: float) -> np.ndarray:
    """Tables of a mean, effects of items, of seeds and of both together, (count, items, seeds)."""
    rng = np.random.default_rng([items, seeds, count])
    effects = of_items * rng.normal(size=(count, items, 1)) + of_seeds * rng.normal(size=(count, 1, seeds))
    return mean + effects + rng.normal(size=(count, items, seeds))


def test_mean_squares_are_those_of_two_one_way_tables():
    table = np.random.default_rng(0).normal(size=(6, 4))
    of_items, of_seeds, rest = mean_squares(table)
    assert of_items == pytest.approx(4 * table.mean(1).var(ddof=1), rel=1e-12)
    assert of_seeds == pytest.approx(6 * table.mean(0).var(ddof=1), rel=1e-12)
    whole = table.var(ddof=0) * table.size
    assert of_items * 5 + of_seeds * 3 + rest * 15 == pytest.approx(whole, rel=1e-12)


@pytest.mark.parametrize("value", [0.1, 0.7, -0.35, 1e9 + 0.1])
def test_equal_differences_have_an_error_of_exactly_zero(value):
    """As means of equal numbers do: what rounding leaves is no error that is known."""
    for items, seeds in ((2, 3), (7, 3), (11, 11)):
        found = crossed_estimate(np.full((items, seeds), value))
        assert (found.mean, found.error) == (value, 0.0)


def test_the_error_is_that_of_the_way_that_counts():
    """Without rest, and with equal seeds, the error is that over items."""
    of_items = np.array([0.3, -0.1, 0.5, 0.2])
    found = crossed_estimate(np.repeat(of_items[:, None], 3, 1))
    over_items = mean_estimate(of_items.tolist())
    assert (found.mean, found.error) == pytest.approx((over_items.mean, over_items.error), rel=1e-9)
    assert found.degrees == pytest.approx(3, rel=1e-9)
    assert crossed_estimate(of_items[:, None]) == over_items
    assert crossed_estimate(of_items[None]) == over_items


@pytest.mark.parametrize(("of_items", "of_seeds"), [(1.0, 1.0), (0.5, 2.0), (2.0, 0.8)])
def test_error_and_degrees_are_satterthwaite_s(of_items, of_seeds):
    """Variances of both ways less that of the rest, which both hold, from plain loops over the table."""
    (table,) = tables(1, 7, 4, of_items, of_seeds, mean=0.3)
    found = crossed_estimate(table)
    rows, columns, mean = table.mean(1), table.mean(0), table.mean()
    rest = sum((table[i, s] - rows[i] - columns[s] + mean) ** 2 for i in range(7) for s in range(4)) / (6 * 3)
    squares = {6: 4 * np.var(rows, ddof=1), 3: 7 * np.var(columns, ddof=1), 18: -rest}
    both = sum(squares.values())
    assert both > max(squares.values())
    assert found.error == pytest.approx(np.sqrt(both / 28), rel=1e-12)
    assert found.degrees == pytest.approx(both**2 / sum(one**2 / df for df, one in squares.items()), rel=1e-12)


@pytest.mark.parametrize("turned", [False, True])
def test_the_error_is_never_below_that_of_one_way(turned):
    """Where seeds vary less than the rest does, that over items stands, with its degrees of freedom; and turned."""
    items = np.array([2.0, -1.0, 0.5, 3.0, -2.0])[:, None]
    rest = 0.6 * np.array([[1, -1, 0], [-1, 0, 1], [0, 1, -1], [1, 0, -1], [-1, 0, 1]])
    table = items + rest
    of_items, of_seeds, left = mean_squares(table)
    assert of_seeds < left < of_items
    found = crossed_estimate(table.T if turned else table)
    over_items = mean_estimate(table.mean(1).tolist())
    assert (found.error, found.degrees) == (pytest.approx(over_items.error, rel=1e-12), 4)


@pytest.mark.parametrize(
    "what", ["both", *(pytest.param(one, marks=pytest.mark.slow) for one in SIZES if one != "both")]
)
def test_size_with_five_seeds(what):
    """A true loss of exactly the margin passes for no loss in at most .07 of 10 000 tables."""
    margin, count = 0.5, 10_000
    drawn = tables(count, 40, 5, *SIZES[what], mean=-margin)
    passed = sum(non_inferiority(crossed_estimate(table), margin).holds for table in drawn)
    assert passed / count <= 0.07
    either = sum(equivalence(crossed_estimate(table), margin).holds for table in drawn[:2000])
    assert either / 2000 <= 0.07


@pytest.mark.parametrize("test", [non_inferiority, equivalence])
def test_size_of_the_simple_tests(test):
    """At most .06 of 10 000, of 20 pairs."""
    drawn = np.random.default_rng(1).normal(-0.5, 1.0, size=(10_000, 20))
    assert np.mean([test(one.tolist(), 0.5).holds for one in drawn]) <= 0.06


def test_an_estimate_stands_for_its_numbers():
    numbers = [0.1, -0.2, 0.4, 0.05]
    assert non_inferiority(numbers, 0.1) == non_inferiority(mean_estimate(numbers), 0.1)
    assert equivalence(numbers, 0.1) == equivalence(mean_estimate(numbers), 0.1)
    theirs = scipy.stats.ttest_1samp(numbers, -0.1, alternative="greater").pvalue
    assert non_inferiority(numbers, 0.1).p == pytest.approx(theirs, rel=1e-10)


@pytest.mark.parametrize("power", [-1060, -700, -500, 400, 700, 1015])
def test_the_unit_of_a_table_does_not_matter(power):
    """Squares of small numbers are 0, and of large ones infinite; the error is neither."""
    table = np.array([[1.0, 3.0], [2.0, 5.0], [0.0, 2.0]])
    plain, scaled = crossed_estimate(table), crossed_estimate(np.ldexp(table, power))
    assert scaled.degrees == plain.degrees
    assert scaled.error == np.ldexp(plain.error, power) > 0
    assert scaled.mean == pytest.approx(np.ldexp(plain.mean, power), rel=1e-3)  # few digits are left near 0


def test_what_is_refused():
    with pytest.raises(ValueError, match="differences must be small enough for their sum to be finite; got 1e"):
        crossed_estimate([[1e308, 1e308], [1.0, 2.0]])
    for large in ([1e308, 1e308, 1.0], [1.7e308, -1.7e308, -1.7e308]):
        with pytest.raises(ValueError, match="values must be small enough for their sum to be finite"):
            mean_estimate(large)
    with pytest.raises(ValueError, match="table of items by seeds"):
        crossed_estimate([1.0, 2.0])
    with pytest.raises(ValueError, match="finite"):
        crossed_estimate([[1.0, float("nan")], [1.0, 2.0]])
    with pytest.raises(ValueError, match="two items and two seeds"):
        mean_squares([[1.0, 2.0]])
    with pytest.raises(ValueError, match="at least two"):
        non_inferiority(Estimate(0.0, float("inf"), 0), 0.1)
