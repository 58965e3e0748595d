"""Utilities and certainty equivalents of the literature."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from humanline.theory import (
    Identity,
    PowerValue,
    TverskyKahneman,
    certainty_equivalent,
    subjective_utility,
)
from tests import oracles
from tests.helpers import strategies

SETTINGS = settings(derandomize=True, deadline=None, max_examples=60)
CAPACITIES = {"gain": TverskyKahneman(0.61), "loss": TverskyKahneman(0.69)}
HUMAN = {"value": PowerValue(), **CAPACITIES}


def wakker(p):
    """The capacity p**2 of several exercises in Wakker (2010)."""
    return np.square(p)


def log_odds(p):
    """Linear in log odds with slope .61 and elevation .724, the other set in Birnbaum's calculators."""
    p = np.asarray(p)
    return 0.724 * p**0.61 / (0.724 * p**0.61 + (1 - p) ** 0.61)


ROOT_VALUE = PowerValue(0.5, None, 2.0)
LINEAR_VALUE = PowerValue(1.0, None, 2.25)
BOTH_61 = {"gain": TverskyKahneman(0.61), "loss": TverskyKahneman(0.61)}


def printed_as(text):
    """A number as printed, within half a unit of its last digit."""
    digits = len(text.split(".")[1]) if "." in text else 0
    return pytest.approx(float(text), abs=0.5000001 * 10.0**-digits)


# Read in the test suite of the R package pt by G. Au (github.com/gary-au/pt), except where a line says otherwise. It
# quotes the papers' numbers with their pages; for the exercises of Wakker (2010) they are the package's own results.
PUBLISHED_UTILITIES = [
    # Wakker (2003), Management Science 49, p. 980, Table 1: the prospects of Levy and Levy (2002), at the medians
    ([-3000, 4500], [0.5, 0.5], HUMAN, "-483"),
    ([-6000, 3000], [0.25, 0.75], HUMAN, "-743"),
    ([-1600, -200, 1200, 1600], [0.25] * 4, HUMAN, "-216"),
    ([-1000, -800, 800, 2000], [0.25] * 4, HUMAN, "-138"),
    ([-1500, 4500], [0.5, 0.5], HUMAN, "53"),
    ([-3000, 3000], [0.25, 0.75], HUMAN, "-106"),
    # Wakker (2010), Prospect Theory, exercise 9.3.4: w+ = p**2, w- = p, square roots, loss aversion 2
    ([9, 4, -4, -9], [0.1, 0.4, 0.4, 0.1], {"value": ROOT_VALUE, "gain": wakker, "loss": Identity()}, "-1.69"),
    ([36, 25, -9, -16], [0.1, 0.2, 0.3, 0.4], {"value": ROOT_VALUE, "gain": wakker, "loss": Identity()}, "-4.54"),
    # Wakker (2010), assignment 9.3.5 a and exercise 9.3.7 a, at the medians
    ([12, 7, -2, -5], [0.15, 0.35, 0.3, 0.2], HUMAN, "-0.1047"),
    ([80, 60, 30, -30], [0.01, 0.35, 0.35, 0.29], HUMAN, "2.823"),
    # Wakker (2010), example 9.3.3: linear values with loss aversion 2.25 and gamma .61 for both signs
    ([80, -20], [0.5, 0.5], {"value": LINEAR_VALUE, **BOTH_61}, "14.72"),
    # Wakker (2010), example 5.6.1 and exercise 5.6.2: rank-dependent utility with p**2 and linear values
    ([80, 50, 10], [0.2, 0.3, 0.5], {"value": LINEAR_VALUE, "gain": wakker, "loss": wakker}, "21.2"),
    ([80, 30, 20], [1 / 6, 1 / 2, 1 / 3], {"value": LINEAR_VALUE, "gain": wakker, "loss": wakker}, "25.83"),
    # Birnbaum's online calculator of CPT, as read in the tests of UtilityModels.jl: exponents of both signs differ
    (
        [10, 3, -2, -1],
        [0.3, 0.2, 0.3, 0.2],
        {"value": PowerValue(0.8, 0.9, 2.25), "gain": TverskyKahneman(0.6), "loss": TverskyKahneman(0.7)},
        "0.5672",
    ),
    (
        [1, 3, -5, -2],
        [0.1, 0.2, 0.5, 0.2],
        {"value": PowerValue(1.2, 1.5, 1.5), "gain": TverskyKahneman(0.8), "loss": TverskyKahneman(0.9)},
        "-8.1017",
    ),
    # 57.2307 is the utility of (200, .71; 0) at the medians, not its certainty equivalent, which is 99.3815
    ([200, 0], [0.71, 0.29], HUMAN, "57.2307"),
]
LOG_ODDS_HUMAN = {"value": PowerValue(), "gain": log_odds, "loss": log_odds}
PUBLISHED_EQUIVALENTS = [
    # Birnbaum (2008), Psychological Review 115, p. 474, Table 1, problems 1.1 to 3.2, at the medians
    ([100, 50, 50], [0.85, 0.1, 0.05], HUMAN, "82.2"),
    ([100, 7], [0.95, 0.05], HUMAN, "79.0"),
    ([96, 14, 12], [0.9, 0.05, 0.05], HUMAN, "70.3"),
    ([96, 90, 12], [0.85, 0.05, 0.1], HUMAN, "69.7"),
    # the same table, problems 3.3, 4, 5.1, 5.2, 6.1 and 6.2: linear in log odds
    ([97, 15, 13], [0.9, 0.05, 0.05], LOG_ODDS_HUMAN, "73.3"),
    ([90, 80, 10], [0.85, 0.05, 0.1], LOG_ODDS_HUMAN, "66.6"),
    ([96, 14, 12], [0.9, 0.05, 0.05], LOG_ODDS_HUMAN, "72.3"),
    ([96, 90, 12], [0.25, 0.05, 0.7], LOG_ODDS_HUMAN, "35.0"),
    ([92, 68, 0], [0.43, 0.07, 0.5], LOG_ODDS_HUMAN, "33.4"),
    ([97, 92, 0], [0.43, 0.05, 0.52], LOG_ODDS_HUMAN, "34.9"),
    ([110, 44, 40], [0.8, 0.1, 0.1], LOG_ODDS_HUMAN, "83.5"),
    ([96, 10], [0.9, 0.1], LOG_ODDS_HUMAN, "71.4"),
    # Birnbaum and Navarrete (1998), Journal of Risk and Uncertainty 17, p. 58 and 59, at the medians
    ([12, 14, 96], [0.05, 0.05, 0.9], HUMAN, "70.27"),
    ([12, 90, 96], [0.1, 0.05, 0.85], HUMAN, "69.73"),
    ([40, 98], [0.2, 0.8], HUMAN, "74.52"),
    ([10, 98], [0.1, 0.9], HUMAN, "70.72"),
    # Birnbaum (2004), Journal of Mathematical Psychology 48, p. 95, Table 2, at the medians
    ([98, 2], [0.1, 0.9], HUMAN, "16.9"),
    ([40, 2], [0.2, 0.8], HUMAN, "10.7"),
    # Birnbaum and Bahra (2007), Management Science 53, p. 1017 and 1021, at the medians
    ([1600, 1200, 0], [0.25, 0.25, 0.5], HUMAN, "551"),
    ([0, -800, -1000], [0.5, 0.25, 0.25], HUMAN, "-379"),
    ([0, -200, -1600], [0.5, 0.25, 0.25], HUMAN, "-437"),
    ([2000, 800, -800, -1000], [0.25] * 4, HUMAN, "-107.2"),
    ([1600, 1200, -200, -1600], [0.25] * 4, HUMAN, "-178.6"),
    ([100, 0, 0], [0.25, 0.25, 0.5], HUMAN, "24.6"),
    ([0, 0, -100], [0.5, 0.25, 0.25], HUMAN, "-24.8"),
    ([100, 0, -50], [0.25, 0.25, 0.5], HUMAN, "-8.8"),
    ([50, 50, 0, -100], [0.25] * 4, HUMAN, "-15.3"),
    # Birnbaum's online calculator (psych.fullerton.edu/mbirnbaum/calculators/cwtcalculator.htm, read there), "CPT"
    ([2, 40, 44], [0.5, 0.25, 0.25], HUMAN, "17.68"),
    ([2, 10, 98], [0.5, 0.25, 0.25], HUMAN, "27.52"),
    ([40, 44, 108], [0.25, 0.25, 0.5], HUMAN, "68.26"),
    ([10, 98, 108], [0.25, 0.25, 0.5], HUMAN, "61.51"),
    # Wakker (2010), exercise 9.3.7 a
    ([80, 60, 30, -30], [0.01, 0.35, 0.35, 0.29], HUMAN, "3.253"),
]


@pytest.mark.parametrize(("outcomes", "probs", "human", "number"), PUBLISHED_UTILITIES)
def test_utilities_of_the_literature(outcomes, probs, human, number):
    """Each utility of the literature comes out to its last digit."""
    assert subjective_utility(outcomes, probs, **human) == printed_as(number)


@pytest.mark.parametrize(("outcomes", "probs", "human", "number"), PUBLISHED_EQUIVALENTS)
def test_certainty_equivalents_of_the_literature(outcomes, probs, human, number):
    """Each certainty equivalent of the literature comes out to its last digit."""
    assert certainty_equivalent(outcomes, probs, **human) == printed_as(number)


@pytest.mark.parametrize(
    ("outcomes", "probs", "utility"),
    [
        ([36, 25, -9, -16], ["0.7", "0.1", "0.1", "0.1"], 8.008447),
        ([-3000, 4500], ["0.5", "0.5"], -482.625),
        ([1600, 1200, -200, -1600], ["0.25"] * 4, -215.698),
    ],
)
def test_published_utilities(outcomes, probs, utility):
    """Utilities of mixed prospects at the medians, in the literature and in the oracle."""
    ours = subjective_utility(outcomes, [float(p) for p in probs], **HUMAN)
    assert ours == pytest.approx(float(oracles.utility(outcomes, probs, *oracles.medians())), rel=1e-13)
    assert ours == pytest.approx(utility, abs=10.0 ** -len(str(utility).split(".")[1]) / 2)


@pytest.mark.parametrize(
    ("outcomes", "probs", "sure"),
    [
        ([36, 25, -9, -16], ["0.7", "0.1", "0.1", "0.1"], 10.63554),
        ([100, 50], ["0.85", "0.15"], 82.2346),
        ([100, 0], ["0.05", "0.95"], 9.9828),
        ([100, 0], ["0.25", "0.75"], 24.567),
        ([100, 0], ["0.5", "0.5"], 37.3788),
        ([100, 0], ["0.75", "0.25"], 52.6118),
        ([100, 0], ["0.95", "0.05"], 76.8528),
    ],
)
def test_published_certainty_equivalents(outcomes, probs, sure):
    """Certainty equivalents at the medians, as published and by bisection in the oracle."""
    ours = certainty_equivalent(outcomes, [float(p) for p in probs], **HUMAN)
    assert ours == pytest.approx(float(oracles.certainty_equivalent(outcomes, probs)), rel=1e-12)
    assert ours == pytest.approx(sure, abs=10.0 ** -len(str(sure).split(".")[1]) * 0.51)


def test_equivalents_scale_with_the_outcomes():
    """With one exponent, twice the outcomes are worth twice as much: (200, .71; 0) is 99.3815, twice (100, .71; 0)."""
    sure = certainty_equivalent([[100, 0], [200, 0]], [0.71, 0.29], **HUMAN)
    assert sure[1] == pytest.approx(2 * sure[0], rel=1e-14)
    assert sure[1] == pytest.approx(99.3815, abs=5e-5)
    assert sure[1] == pytest.approx(float(oracles.certainty_equivalent([200, 0], ["0.71", "0.29"])), rel=1e-13)


@SETTINGS
@given(prospect=strategies.prospects(), gain=strategies.monotone_gammas, loss=strategies.monotone_gammas)
def test_utility_agrees_with_the_definition(prospect, gain, loss):
    """The utility is the sum over distinct outcomes of Def. 3.3."""
    z, p = prospect
    ours = subjective_utility(z, p, value=PowerValue(), gain=TverskyKahneman(gain), loss=TverskyKahneman(loss))
    expected = oracles.utility(
        z,
        p,
        lambda x: oracles.tversky_kahneman(x, gain),
        lambda x: oracles.tversky_kahneman(x, loss),
        lambda x: oracles.power_value(x, 0.88, 0.88, 2.25),
    )
    assert ours == pytest.approx(float(expected), rel=1e-13, abs=1e-12)


@SETTINGS
@given(z=st.floats(-50, 50), z0=st.floats(-5, 5))
def test_a_sure_outcome_is_its_own_equivalent(z, z0):
    """The certainty equivalent of a sure thing is that thing, whatever the reference point."""
    sure = certainty_equivalent([z], [1.0], value=PowerValue(reference_point=z0), **CAPACITIES)
    assert sure == pytest.approx(z, rel=1e-12, abs=1e-11)


def test_the_reference_point_is_that_of_the_value_function():
    """Shifting outcomes and reference point together changes nothing; shifting one does."""
    z, p = np.array([3.0, -1.0, 0.5]), [0.2, 0.5, 0.3]
    shifted = subjective_utility(z + 2, p, value=PowerValue(reference_point=2.0), **CAPACITIES)
    assert shifted == pytest.approx(subjective_utility(z, p, **HUMAN), rel=1e-14)
    assert abs(subjective_utility(z, p, value=PowerValue(reference_point=2.0), **CAPACITIES) - shifted) > 1


def test_without_distortion_utility_is_expected_value():
    """Identity capacities and a linear value function give the mean."""
    plain = {"value": PowerValue(1.0, None, 1.0), "gain": Identity(), "loss": Identity()}
    assert subjective_utility([3, -1], [0.25, 0.75], **plain) == pytest.approx(0, abs=1e-15)
    assert certainty_equivalent([3, -1], [0.5, 0.5], **plain) == pytest.approx(1, rel=1e-14)


def test_utilities_of_batches():
    """Each row of a batch has its own utility; shared outcomes are broadcast."""
    p = np.random.default_rng(0).dirichlet(np.ones(3), (2, 4))
    batch = subjective_utility([1, 2, -3], p, **HUMAN)
    assert batch.shape == (2, 4)
    np.testing.assert_allclose(batch[1, 2], subjective_utility([1, 2, -3], p[1, 2], **HUMAN), rtol=1e-14)
    assert certainty_equivalent([1, 2, -3], p, **HUMAN).shape == (2, 4)


def test_allow_negative_is_passed_on():
    """Capacities below the threshold are refused unless asked for."""
    with pytest.warns(UserWarning, match="below"):
        below = TverskyKahneman(0.2)
    with pytest.raises(ValueError, match="allow_negative"):
        subjective_utility([1, 2], [0.5, 0.5], value=PowerValue(), gain=below, loss=below)
    assert np.isfinite(
        subjective_utility([1, 2], [0.5, 0.5], value=PowerValue(), gain=below, loss=below, allow_negative=True)
    )
