"""What data cannot determine is said before a fit, with what to do."""

from __future__ import annotations

import numpy as np
import pytest

from humanline.fit import Choices, Likelihood, Model, NotIdentified, expected_value, fit_prospect
from tests.helpers.choices import answered, problems

GAINS = Model(fixed={"loss_aversion": 1.0, "loss.gamma": 0.7})


TRUTH = {"curvature": 0.9, "gain.gamma": 0.6, "sensitivity": 0.2}


def gains(number=200, seed=0, probs=None):
    """Choices among gains of two outcomes, as a model would make them."""
    rng = np.random.default_rng(seed)
    z = rng.integers(1, 100, (2, number, 2)).astype(float)
    p = rng.choice([0.1, 0.3, 0.6] if probs is None else probs, (2, number))
    p = np.stack([p, 1 - p], -1)
    return made(rng, (z[0], p[0]), (z[1], p[1]))


def made(rng, first, second):
    likelihood = Likelihood(Choices.between(first, second, np.zeros(len(first[0]))), GAINS)
    share = likelihood.predicted(likelihood.coordinates(TRUTH))
    return Choices.between(first, second, rng.random(len(share)) < share)


def faults_of(data, model, **more):
    with pytest.raises(NotIdentified) as caught:
        fit_prospect(data, model, **more)
    return [fault.column for fault in caught.value.faults], str(caught.value)


def test_without_losses_their_parameters_cannot_be_free():
    """Loss aversion and the capacity of losses are named at once, each with what to fix."""
    columns, said = faults_of(gains(), Model())
    assert sorted(columns) == ["loss.gamma", "loss_aversion"]
    assert "no outcome is a loss: fixed={'loss_aversion': ...}" in said
    assert fit_prospect(gains(), GAINS, starts=1).names == ("curvature", "gain.gamma", "sensitivity")
    shared = Model(fixed={"loss_aversion": 1.0}, equal={"loss_curvature": "curvature", "loss.gamma": "gain.gamma"})
    assert "gain.gamma" in fit_prospect(gains(), shared, starts=1).names


def test_without_gains_neither():
    """The same of a capacity of gains, and of a curvature that losses do not share."""
    data = gains()
    losses = Choices.between(
        *((-data.outcomes.reshape(2, -1, 2)[k], data.probs.reshape(2, -1, 2)[k]) for k in (0, 1)), data.response
    )
    columns, _ = faults_of(losses, Model(equal={}))
    assert sorted(columns) == ["curvature", "gain.gamma"]


def test_one_probability_makes_no_capacity():
    """With a single probability gamma cannot be told; and so it is with sure outcomes alone."""
    columns, said = faults_of(gains(probs=[0.5]), GAINS)
    assert columns == ["gain.gamma"] and "1 different probabilities strictly between 0 and 1" in said
    z = np.arange(1.0, 41)[:, None]
    sure = Choices.between((z, np.ones_like(z)), (z[::-1], np.ones_like(z)), np.arange(40) % 2)
    assert faults_of(sure, GAINS)[0] == ["gain.gamma"]


def test_identical_options_say_nothing():
    """Problems whose options are one prospect, in another order or split, are no problems."""
    z, p = np.array([[5.0, 1.0]] * 9), np.array([[0.5, 0.5]] * 9)
    data = Choices.between((z, p), (z[:, ::-1], p), np.arange(9) % 2)
    assert faults_of(data, expected_value())[0] == ["options"]


@pytest.mark.parametrize("factor", [1e80, 1e-80])
def test_outcomes_whose_powers_are_no_floats(factor):
    """Outcomes of another world's unit are refused with what to do."""
    first, second = problems(np.random.default_rng(0), 40)
    sides = [(z * factor, p) for z, p in (first, second)]
    columns, said = faults_of(Choices.between(*sides, np.arange(40) % 2), Model())
    assert columns == ["outcomes"] and "count them in another unit" in said


def test_choices_of_one_side_alone():
    """Always the same option has no most likely sensitivity."""
    first, second = problems(np.random.default_rng(0), 40)
    for answer in (0.0, 1.0):
        columns, said = faults_of(Choices.between(first, second, np.full(40, answer)), expected_value())
        assert columns == ["choices"] and f"always the {'second' if answer else 'first'}" in said


def test_more_parameters_than_problems():
    """Five parameters need five problems that differ, however often they are answered."""
    columns, said = faults_of(answered(0, 4, 100), Model())
    assert "problems" in columns and "must be 5 or more, one for each free parameter" in said


def test_combinations_without_information():
    """Where one size of outcome is all there is, curvature and sensitivity are one number: both are named."""
    rng = np.random.default_rng(1)
    p = rng.uniform(0.05, 0.95, (2, 200))
    z = np.tile([50.0, 0.0], (200, 1))
    data = made(rng, (z, np.stack([p[0], 1 - p[0]], 1)), (z, np.stack([p[1], 1 - p[1]], 1)))
    columns, said = faults_of(data, GAINS)
    assert columns == ["curvature and sensitivity"] and "fix one of them" in said
    fixed = Model(fixed={**GAINS.fixed, "curvature": 0.88})
    assert fit_prospect(data, fixed, starts=1).at_bound == {}


def test_the_check_can_be_left_out():
    """With check=False the fit is tried, and the condition of its information tells."""
    data = answered(0, 4, 100)
    assert fit_prospect(data, Model(), starts=2, check=False).condition > 1e3
