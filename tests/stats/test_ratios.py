"""Ratios of sums over rows that were chosen by a value: the level of a quartile."""

from __future__ import annotations

import numpy as np
import pytest

from humanline.stats import ratio_difference, ratio_estimate, slice_sums

DRAWS, ROWS = 400, 80


def quarters(values: np.ndarray) -> list[np.ndarray]:
    """Marks of the rows of each quartile."""
    ranks = np.argsort(np.argsort(values))
    return [ranks * 4 // len(values) == number for number in range(4)]


def drawn(rng: np.random.Generator, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Levels, and counts of tokens that do not depend on them."""
    return rng.normal(-1.0, 0.4, rows), rng.integers(4, 40, rows)


def covered(number: int, *, known: bool) -> float:
    """Share of draws whose interval holds the mean of a quarter of the normal distribution."""
    rng = np.random.default_rng(number)
    true = -1.0 + 0.4 * (-1.2711, -0.3247, 0.3247, 1.2711)[number]  # of a quarter of a standard normal
    found = 0
    for _ in range(DRAWS):
        levels, tokens = drawn(rng, ROWS)
        inside = quarters(levels)[number]
        rows = levels * tokens, tokens, range(ROWS)
        estimate = ratio_estimate(*slice_sums(*rows, levels, inside))
        if not known:
            estimate = ratio_estimate((levels * tokens)[inside], tokens[inside], range(int(inside.sum())))
        found += abs(estimate.mean - true) <= estimate.interval().half_width
    return found / DRAWS


@pytest.mark.parametrize("number", range(4))
def test_intervals_of_quartiles_cover(number):
    """At least .91 of 400 draws; with edges taken for fixed, .57 to .83."""
    assert 0.91 <= covered(number, known=True) <= 0.985
    assert covered(number, known=False) < 0.85


def test_the_error_is_that_of_rows_drawn_anew():
    """Within a tenth of the spread over 2000 bootstrap samples of prompts, with two dependent rows each."""
    rng = np.random.default_rng(0)
    prompts = 150
    levels, tokens = drawn(rng, 2 * prompts)
    levels = levels + np.repeat(rng.normal(0, 0.3, prompts), 2)
    clusters = np.repeat(np.arange(prompts), 2)
    rows = levels * tokens, tokens, clusters.tolist()
    again = rng.integers(0, prompts, (2000, prompts))
    picked = (2 * again[:, :, None] + np.arange(2)).reshape(2000, -1)
    order = np.take_along_axis(picked, np.argsort(levels[picked], axis=1), axis=1)
    for number in range(4):
        estimate = ratio_estimate(*slice_sums(*rows, levels, quarters(levels)[number]))
        own = order[:, number * prompts // 2 : (number + 1) * prompts // 2]
        spread = np.std((levels * tokens)[own].sum(1) / tokens[own].sum(1))
        assert estimate.error == pytest.approx(spread, rel=0.12)
        assert estimate.degrees == prompts - 1


def test_all_rows_are_a_slice_without_edges():
    levels, tokens = drawn(np.random.default_rng(1), 30)
    rows = levels * tokens, tokens, [n // 3 for n in range(30)]
    whole = slice_sums(*rows, levels, np.ones(30, dtype=bool))
    assert ratio_estimate(*whole) == ratio_estimate(*rows)
    assert ratio_difference(whole, rows).error == 0
    with pytest.raises(ValueError, match="at least one row"):
        slice_sums(*rows, levels, np.zeros(30, dtype=bool))


def test_sums_beyond_all_floats_are_refused():
    with pytest.raises(ValueError, match="numerators must be small enough for their sum to be finite"):
        ratio_estimate([1e308, 1e308, 1.0], [1, 1, 1], "abc")
    with pytest.raises(ValueError, match="denominators must be small enough for their sum to be finite"):
        ratio_estimate([1, 1, 1], [1e308, 1e308, 1], "abc")
