"""The floor that sampling noise sets: unbiased where it says so, and from below where it says that."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import comb

from humanline.fit import Choices
from humanline.fit.noise import sampling_floor

SURE = ([[1.0]], [[1.0]]), ([[2.0]], [[1.0]])


def one_problem(response, trials, kind="counts"):
    """Return answers to a single problem."""
    return Choices.between(*SURE, response, kind=kind, trials=trials, problem=np.zeros(len(response), int))


def expected(number, p, what):
    """Return the expectation over how often of `number` the second is chosen, summed over all of them."""
    total = 0.0
    for k in range(number + 1):
        total += comb(number, k) * p**k * (1 - p) ** (number - k) * what(k)
    return total


@pytest.mark.parametrize("p", [0.02, 0.3, 0.5, 0.9])
@pytest.mark.parametrize("number", [2, 5, 40])
def test_the_squared_error_of_one_count_is_unbiased(number, p):
    """Over all counts, the floor of n choices in a problem has the expectation p (1 - p)/n, per choice and share."""
    found = expected(number, p, lambda k: sampling_floor(one_problem([k], number)).squared_error)
    assert found == pytest.approx(p * (1 - p) / number, rel=1e-10)


@pytest.mark.parametrize("p", [0.2, 0.5])
def test_the_squared_error_of_several_answers_is_unbiased_though_people_differ(p):
    """Two people with chances of their own: the expectation is the variance of one answer around the common mean."""
    chances = (p / 2, 3 * p / 2)
    total = 0.0
    for first in (0, 1, 2):
        for second in (0, 1, 2):
            mass = np.mean(
                [
                    np.prod(
                        [comb(2, k) * q**k * (1 - q) ** (2 - k) for k, q in zip((first, second), pair, strict=True)]
                    )
                    for pair in [(a, b) for a in chances for b in chances]
                ]
            )
            total += mass * sampling_floor(one_problem([first, second], 2)).squared_error
    within = np.mean([q * (1 - q) / 2 for q in chances])
    between = np.var(chances)
    assert total == pytest.approx(within + between, rel=1e-10)


@pytest.mark.parametrize("p", [0.05, 0.4])
@pytest.mark.parametrize("number", [2, 8, 30])
def test_the_entropy_is_from_below_by_a_known_term(number, p):
    """Its expectation is the sum to N - 1 of the series that is the entropy: q (1 - q)^v / v over both options."""
    found = expected(number, p, lambda k: sampling_floor(one_problem([k], number)).log_loss)
    series = sum(q * (1 - q) ** v / v for q in (p, 1 - p) for v in range(1, number))
    entropy = -p * math.log(p) - (1 - p) * math.log(1 - p)
    assert found == pytest.approx(series, rel=1e-10) and found < entropy


def test_problems_that_tell_nothing_are_left_out_and_said():
    """A problem with a single choice says nothing of noise; the share of choices in the others is said."""
    first, second = ([[1.0], [3.0]], [[1.0], [1.0]]), ([[2.0], [4.0]], [[1.0], [1.0]])
    data = Choices.between(first, second, [1, 0, 1], problem=[0, 0, 1])
    found = sampling_floor(data)
    assert found.covered == pytest.approx(2 / 3) and "67%" in found.why
    assert found.squared_error == pytest.approx(0.5)
    alone = sampling_floor(Choices.between(first, second, [1, 0]))
    assert alone.squared_error is None and alone.log_loss is None and "answered more than once" in alone.why


def test_bare_rates_say_nothing_but_with_their_variances():
    """A rate of nobody knows how many choices has no floor; with variances it is their mean."""
    first, second = ([[1.0], [3.0]], [[1.0], [1.0]]), ([[2.0], [4.0]], [[1.0], [1.0]])
    data = Choices.between(first, second, [0.2, 0.6], kind="rates")
    assert sampling_floor(data).why == "unknown: nobody says of how many choices each rate is"
    assert sampling_floor(data, [0.01, 0.03]).squared_error == pytest.approx(0.02)
    with pytest.raises(ValueError, match="noise"):
        sampling_floor(data, [0.01, -0.03])
    with pytest.raises(ValueError, match="noise"):
        sampling_floor(data, [0.01])
