"""The Beta distribution: moments, fast draws and the distribution function."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mpf

from humanline.theory import (
    BetaShape,
)
from humanline.theory.beta import log_cdf
from tests import oracles

SETTINGS = settings(derandomize=True, deadline=None, max_examples=60)
SHAPES = st.sampled_from([0.2, 0.61, 1.0, 1.7, 6.0])
DELTA = 1e-9  # chance that a sampling test fails by luck, for each of them


def test_moments_of_a_shape():
    """Mean and variance are those of the Beta distribution, from its raw moments."""
    shape = BetaShape(2.5, 0.7)
    first, second = (oracles.mpmath.beta(2.5 + n, 0.7) / oracles.mpmath.beta(2.5, 0.7) for n in (1, 2))
    assert shape.mean == pytest.approx(float(first), rel=1e-14)
    assert shape.variance == pytest.approx(float(second - first**2), rel=1e-13)


@pytest.mark.parametrize("shape", [(0.61, 1), (3.0, 1), (1, 0.2), (1, 5.0), (1, 1), (0.7, 2.5)])
def test_draws_follow_the_distribution_function(shape):
    """The empirical distribution of 100 000 draws is within DKW's band of the exact one, on every path."""
    count = 100_000
    draws = np.sort(BetaShape(*shape).sample(np.random.default_rng(1), count))
    exact = np.array([float(oracles.beta_cdf(x, *shape)) for x in draws[:: count // 200]])
    ranks = np.arange(0, count, count // 200) / count
    assert np.abs(exact - ranks).max() <= math.sqrt(math.log(2 / DELTA) / (2 * count)) + 1 / count
    assert 0 <= draws[0] <= draws[-1] <= 1


def test_shape_and_state_of_the_draws():
    """Any size, a scalar by default; the same generator state gives the same draws; numpy's own for general shapes."""
    for shape in ((0.61, 1), (1, 2), (2, 3)):
        one, two = (BetaShape(*shape).sample(np.random.default_rng(4), (3, 20_000)) for _ in range(2))
        np.testing.assert_array_equal(one, two)
        assert one.shape == (3, 20_000)
        assert np.ndim(BetaShape(*shape).sample(np.random.default_rng(4))) == 0
        assert BetaShape(*shape).sample(np.random.default_rng(4), 0).shape == (0,)
    np.testing.assert_array_equal(
        BetaShape(2, 3).sample(np.random.default_rng(4), 7), np.random.default_rng(4).beta(2, 3, 7)
    )


@SETTINGS
@given(x=st.floats(0, 1, allow_subnormal=False), a=SHAPES | st.just(1), b=SHAPES | st.just(1))
def test_distribution_function(x, a, b):
    """The distribution function is the incomplete beta integral to 1e-12 on the fast paths and on the general one."""
    assert BetaShape(a, b).cdf(x) == pytest.approx(float(oracles.beta_cdf(x, a, b)), rel=1e-12, abs=1e-300)


@pytest.mark.parametrize("shape", [(0.61, 1), (1, 0.61), (2, 3)])
def test_distribution_function_outside_its_domain(shape):
    """Below 0 it is 0, above 1 it is 1, nan stays nan, and shapes are kept."""
    ours = BetaShape(*shape).cdf(np.array([[-1.0, -0.0, 1.0], [2.0, np.inf, np.nan]]))
    np.testing.assert_array_equal(ours, [[0, 0, 1], [1, 1, np.nan]])
    assert BetaShape(*shape).cdf([]).shape == (0,)


@pytest.mark.parametrize(
    ("a", "b", "log_x"),
    [(1e7, 3, -1e-4), (5e4, 3, -0.05), (1e8, 1e-5, -1e-5), (2, 1e-300, math.log1p(-1e-3)), (1e9, 2.5, -1e-6)],
)
def test_a_tail_next_to_1_takes_no_longer_than_another(a, b, log_x):
    """Where its series would take up to 40 / (1 - x) terms, each over all of an array: minutes, or no end."""
    with mpmath.workdps(60):
        exact = mpmath.log(mpmath.betainc(mpf(a), mpf(b), 0, mpmath.exp(mpf(log_x)), regularized=True))
    near = math.log(0.1)  # beside it an element whose series is short
    found = log_cdf(np.array([a, 3e3]), np.array([b, 2.0]), np.array([log_x, near]))
    assert found[0] == pytest.approx(float(exact), rel=1e-12)
    assert found[1] == log_cdf(3e3, 2.0, near)


@pytest.mark.parametrize(("total", "deviations"), [(1e6, 60), (1e9, 300), (1e12, 2e3), (1e15, 2e4)])
def test_tails_of_large_shapes_keep_their_digits(total, deviations):
    """The log of the Beta function of both shapes cancels against the powers: at 1e15 the tail was off by 3 nats."""
    a, b = 0.04 * total, 0.96 * total
    log_x = math.log(0.04 - deviations * math.sqrt(0.04 * 0.96 / total))
    with mpmath.workdps(50):
        x, term, series, n = mpmath.exp(mpf(log_x)), mpf(1), mpf(1), 0
        while term > series * mpf(10) ** -20:
            term *= x * (a + b + n) / (a + 1 + n)
            series, n = series + term, n + 1
        log_beta = mpmath.loggamma(mpf(a)) + mpmath.loggamma(mpf(b)) - mpmath.loggamma(mpf(a) + mpf(b))
        exact = a * mpf(log_x) + b * mpmath.log(1 - x) - mpmath.log(a) - log_beta + mpmath.log(series)
        assert exact < math.log(1e-290)
        assert abs(float(log_cdf(a, b, log_x)) - exact) < 3e-12 * abs(exact)


def test_a_tail_that_comes_to_no_end_is_an_error(monkeypatch):
    """A sum that was cut off would look like any other number."""
    monkeypatch.setattr("humanline.theory.beta._FRACTIONS", 10)
    with pytest.raises(ArithmeticError, match="no end after 10 terms: 1 - x is too small"):
        log_cdf(2, 1e-300, math.log1p(-1e-5))
