"""Levels, quartiles and shares of rows whose log-probabilities are known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from humanline.evaluate.levels import bins_of, histogram_lines, longer_rejected, preferred_of
from humanline.stats import ratio_estimate
from humanline.train.data.levels import RowScores, level_of, quartiles_of


def scores(levels: list[float], tokens: list[int] | None = None, prompts: list[int] | None = None) -> RowScores:
    """Return rows of one answer with these levels."""
    count = np.array(tokens or [4] * len(levels))[:, None]
    return RowScores(
        ("answer",), np.array(prompts or range(len(levels))), np.array(levels)[:, None] * count, count, count * 2
    )


@pytest.mark.parametrize("count", [4, 5, 6, 7, 8, 41])
def test_quartiles_of_different_values_hold_equal_numbers_of_them(count):
    values = np.random.default_rng(count).permutation(np.linspace(-3.0, -0.5, count))
    found = quartiles_of(values)
    sizes = np.bincount(found.numbers, minlength=5)[1:]
    assert sizes.sum() == count and sizes.max() - sizes.min() <= 1
    for number in (1, 2, 3):  # every value of a quartile lies below every value of the next one
        assert values[found.numbers == number].max() < values[found.numbers == number + 1].min()
        assert values[found.numbers == number].max() == found.edges[number - 1]


@pytest.mark.parametrize(
    ("count", "numbers"), [(5, [1, 1, 2, 3, 4]), (6, [1, 1, 2, 3, 3, 4]), (7, [1, 1, 2, 2, 3, 3, 4])]
)
def test_an_edge_is_the_value_at_the_upper_place(count, numbers):
    """At ceil(k n / 4) of the values in order: of seven at the second, the fourth and the sixth."""
    assert quartiles_of(np.arange(float(count))).numbers.tolist() == numbers


def test_equal_values_share_a_quartile():
    """Two values on an edge go into the same quartile, though sizes then differ."""
    values = np.array([-4.0, -3.0, -3.0, -2.5, -2.0, -1.5, -1.0, -0.5])
    assert quartiles_of(values).numbers.tolist() == [1, 1, 1, 2, 3, 3, 4, 4]


@pytest.mark.parametrize(
    "values",
    [
        [-1.0] * 9,
        [-1.0],
        [-1.0, -2.0, -3.0],
        [-5.0] * 6 + [-1.0, -2.0],
        [-4.0, -3.0, -3.0, -3.0, -2.0, -1.5, -1.0, -0.5],
        [],
    ],
)
def test_there_are_no_quartiles_where_one_would_be_empty(values):
    assert quartiles_of(np.array(values)) is None


def test_rounding_parts_no_equal_values():
    """Values that differ by what passes of other rows round stay together; those that differ by more do not."""
    values = np.array([-4.0, -3.0, -3.0 + 4e-7, -2.5, -2.0, -2.0 + 9e-7, -1.0, -0.5])
    assert quartiles_of(values).numbers.tolist() == [1, 1, 1, 2, 3, 3, 4, 4]
    assert quartiles_of(values[::-1].copy()).numbers.tolist() == [4, 4, 3, 3, 2, 1, 1, 1]
    chain = -1.0 + 0.9e-5 * np.arange(40)  # each is near the next, and the first is not near the last
    assert np.bincount(quartiles_of(chain).numbers)[1:].tolist() == [10, 10, 10, 10]


def test_the_level_is_the_mean_over_all_tokens():
    """Rows count by their tokens, and bits by the bytes of their texts."""
    found = level_of(scores([-1.0, -3.0], tokens=[1, 3]))
    assert found.nats.mean == pytest.approx(-10 / 4, abs=1e-15)
    assert found.bits_per_byte.mean == pytest.approx(10 / math.log(2) / 8, abs=1e-15)
    assert (found.rows, found.tokens) == (2, 4)


def test_the_error_of_a_ratio_is_that_of_its_clusters():
    """Against plain loops; and rows that are doubled within their prompt tell nothing more."""
    draw = np.random.default_rng(0)
    x, y, groups = draw.normal(size=60), draw.integers(1, 9, size=60), draw.integers(0, 12, size=60).tolist()
    found = ratio_estimate(x, y, groups)
    ratio = sum(x) / sum(y)
    squares = 0.0
    for group in set(groups):
        squares += sum(a - ratio * b for a, b, one in zip(x, y, groups, strict=True) if one == group) ** 2
    count = len(set(groups))
    assert found.mean == pytest.approx(ratio, rel=1e-12) and found.degrees == count - 1
    assert found.error == pytest.approx(math.sqrt(count / (count - 1) * squares) / sum(y), rel=1e-12)
    twice = ratio_estimate([*x, *x], [*y, *y], groups * 2)
    assert twice.error == pytest.approx(found.error, rel=1e-12)


def test_a_ratio_of_ones_is_a_mean_with_its_standard_error():
    values = [0.5, 2.0, 3.5, 7.0]
    found = ratio_estimate(values, [1] * 4, range(4))
    assert found.error == pytest.approx(np.std(values, ddof=1) / 2, rel=1e-12)
    assert ratio_estimate([1.0], [2.0], ["only"]).error == math.inf


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        ([], [], "at least one"),
        ([1.0], [0.0], "not all 0"),
        ([math.nan], [1.0], "finite"),
        ([1.0, 2.0], [1.0], "shape"),
    ],
)
def test_a_ratio_of_nothing_is_refused(x, y, message):
    with pytest.raises(ValueError, match=message):
        ratio_estimate(x, y, list(range(len(x))))


def test_chosen_answers_are_held_against_rejected_ones():
    """As whole answers and per token, a tie counting one half, and lengths as chosen minus rejected."""
    pairs = RowScores(
        ("chosen", "rejected"),
        np.arange(4),
        np.array([[-2.0, -4.0], [-3.0, -3.0], [-6.0, -1.0], [-1.0, -2.0]]),
        np.array([[2, 8], [3, 3], [12, 1], [1, 2]]),
        np.ones((4, 2), dtype=np.int64),
    )
    found = preferred_of(pairs)
    assert found.whole.share == pytest.approx((1 + 0.5 + 0 + 1) / 4)
    assert found.per_token.share == pytest.approx((0 + 0.5 + 1 + 0.5) / 4)
    assert longer_rejected(pairs).mean == pytest.approx((6 + 0 - 11 + 1) / 4)
    assert pairs.levels.tolist() == pytest.approx([-0.6, -1.0, -7 / 13, -1.0])


@pytest.mark.parametrize("values", [[-1.0], [-1.0, -1.0], [-0.3, -2.7, -1.1], [-1e-9, -40.0], [-0.5, -0.4, -0.3, -0.2]])
def test_a_histogram_holds_every_value_once(values):
    counts, edges = bins_of(np.array(values))
    assert counts.sum() == len(values) and len(edges) == len(counts) + 1
    assert edges[0] <= min(values) and max(values) <= edges[-1] + 1e-12
    assert len(histogram_lines(np.array(values))) == len(counts) <= 22
