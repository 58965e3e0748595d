"""Shares: intervals that hold near 0 and 1, clustered samples, McNemar's test."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats

from humanline.stats import Proportion, clustered_share, mcnemar, wilson_interval

RATES = np.arange(1, 10) / 10
STUDIES = 1500


def test_wilson_is_scipys():
    for successes, trials in ((0, 1), (1, 1), (0, 30), (3, 10), (499, 500), (500, 500)):
        for confidence in (0.5, 0.95, 0.999):
            found = wilson_interval(successes, trials, confidence=confidence)
            theirs = scipy.stats.binomtest(successes, trials).proportion_ci(confidence, method="wilson")
            assert (found.low, found.high) == pytest.approx((theirs.low, theirs.high), abs=1e-12)
            assert found.low <= found.share == successes / trials <= found.high


def test_mcnemar_is_the_binomial_test():
    for first in range(12):
        for second in range(12):
            expected = scipy.stats.binomtest(first, first + second).pvalue if first + second else 1.0
            assert mcnemar(first, second) == pytest.approx(expected, rel=1e-12)


def clustered_studies(rate: float, samples: int, items: int, seed: int) -> np.ndarray:
    """Shares of items, (studies, items), whose own success rates are spread as Beta(rate, 1 - rate)."""
    rng = np.random.default_rng(seed)
    return rng.binomial(samples, rng.beta(rate, 1 - rate, (STUDIES, items))) / samples


def covers(found: Proportion, rate: float) -> bool:
    return found.low <= rate <= found.high


@pytest.mark.parametrize("samples", [1, 4, 16])
@pytest.mark.parametrize("items", [50, pytest.param(500, marks=pytest.mark.slow)])
def test_coverage(samples, items):
    """At each rate .91 to .98, on average .94 to .96; STUDIES studies a rate put .6 % of noise on each, .2 % on all."""
    each = []
    for seed, rate in enumerate(RATES):
        studies = clustered_studies(rate, samples, items, seed)
        if samples == 1:
            each.append(np.mean([covers(wilson_interval(int(s.sum()), items), rate) for s in studies]))
        else:
            each.append(np.mean([covers(clustered_share(s.tolist()), rate) for s in studies]))
    assert 0.94 <= np.mean(each) <= 0.96
    assert min(each) >= 0.91 and max(each) <= 0.98


def test_to_take_samples_for_independent_covers_too_little():
    """With 16 samples of each of 50 problems Wilson's interval for 800 trials covers less than .6."""
    studies = clustered_studies(0.5, 16, 50, 0)
    covered = [covers(wilson_interval(round(16 * study.sum()), 800), 0.5) for study in studies]
    assert np.mean(covered) < 0.6


@pytest.mark.parametrize("confidence", [0.8, 0.95])
@pytest.mark.parametrize("shares", [[0.0, 0.25, 1.0, 0.5, 0.5], [0.25] * 20])
def test_clustered_shares_solve_wilsons_equation(shares, confidence):
    """At both ends the distance from the mean is t standard errors of as many trials as the items are worth."""
    found, count = clustered_share(shares, confidence=confidence), len(shares)
    mean, variance = np.mean(shares), np.var(shares, ddof=1) / count
    trials = mean * (1 - mean) / variance if variance else count
    quantile = scipy.stats.t.ppf((1 + confidence) / 2, count - 1)
    for end in (found.low, found.high):
        assert abs(end - mean) == pytest.approx(quantile * math.sqrt(end * (1 - end) / trials), rel=1e-9)


def test_shares_that_are_all_equal():
    """Nothing is known of how items differ: as many trials as items."""
    for share in (0.0, 0.25, 1.0):
        found = clustered_share([share] * 20)
        assert found.share == share and found.high - found.low > 0.1
    assert clustered_share([0.3]) == Proportion(0.3, 0.0, 1.0)


@pytest.mark.parametrize("scale", [1e-150, 1e-200, 1e-300])
def test_shares_that_are_next_to_nothing(scale):
    """The square of their error is 0 as a float: the interval is no wider for it, and nothing is divided by it."""
    shares = [scale, 2 * scale, 6 * scale]
    quantile, one = scipy.stats.t.ppf(0.975, 2), 3 * scale
    trials = one / np.std(np.array(shares) / scale, ddof=1) ** 2 * 3 / scale / scale
    found = clustered_share(shares)
    assert found.share == pytest.approx(one, rel=1e-12)
    # Wilson's upper end where n is beyond all bounds and n m is 1 / (coefficient of variation squared).
    half = quantile**2 / 2 / trials
    assert found.high == pytest.approx(one + half + math.sqrt(half) * math.sqrt(2 * one + half), rel=1e-6)


def test_more_samples_of_an_item_add_nothing_where_they_are_all_alike():
    assert clustered_share([1.0, 0.0, 1.0, 1.0]) == clustered_share([1.0, 0.0, 1.0, 1.0])
    alike = clustered_share([1.0, 0.0] * 50)
    assert alike.high - alike.low == pytest.approx(2 * 1.984 * math.sqrt(0.25 / 99), rel=0.03)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: wilson_interval(1, 0), "trials must be an integer >= 1; got 0"),
        (lambda: wilson_interval(3, 2), r"successes must be an integer in 0 \.\. 2; got 3"),
        (lambda: wilson_interval(-1, 2), "successes must be an integer in"),
        (lambda: wilson_interval(1, 2, confidence=1.0), r"confidence must be in \(0, 1\)"),
        (lambda: clustered_share([]), "shares must hold at least one number"),
        (lambda: clustered_share([0.5, 1.1]), r"shares must be in \[0, 1\]; got 1.1"),
        (lambda: clustered_share([0.5, math.nan]), "shares must be finite"),
        (lambda: mcnemar(-1, 2), "only_first must be an integer >= 0; got -1"),
        (lambda: mcnemar(1, 2.5), "only_second must be an integer >= 0; got 2.5"),
    ],
)
def test_what_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
