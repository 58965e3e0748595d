"""Many people climbed at once: the same summits as one by one."""

from __future__ import annotations

import numpy as np
import pytest

from humanline.fit import Likelihood, Model
from humanline.fit.people.own import OwnLikelihoods, climb_each, people_of
from humanline.fit.straight import Straight, climb_straight
from tests.helpers.people import MEAN, crowd


@pytest.fixture(scope="module")
def own():
    """Eight people with sixty choices each."""
    return OwnLikelihoods(crowd(1, 8, 60)[0], Model())


def test_people_climbed_together_arrive_where_each_alone_does(own):
    """Summits equal those of the one-person climb to 1e-9 in the log-likelihood, from the same start and bounds."""
    start = Straight(own.everyone).there(MEAN)
    together = climb_each(own, np.tile(start, (8, 1)), own.all)
    for person in range(8):
        likelihood = Likelihood(people_of(own.choices, np.array([person])), own.model)
        alone = climb_straight(likelihood, MEAN, own.low, own.high)
        assert together.value[person] == pytest.approx(alone.value, rel=1e-6, abs=1e-6)
    assert together.converged.all()


def test_straight_coordinates_of_people_are_those_of_each(own):
    """There and back of all people at once equal there and back of one; derivatives are those of values."""
    rng = np.random.default_rng(0)
    natural = rng.normal(MEAN, 0.2, (8, 5))
    straight = Straight(Likelihood(own.choices, own.model, by_person=True))
    at = straight.there(natural)
    assert at[3] == pytest.approx(Straight(own.everyone).there(natural[3]), abs=1e-13)
    assert straight.back(at) == pytest.approx(natural, abs=1e-12)
    _, gradient, _ = own.derivatives(at)
    for k in range(5):
        step = 1e-5 * np.eye(5)[k]
        assert gradient[:, k] == pytest.approx((own.value(at + step) - own.value(at - step)) / 2e-5, abs=1e-5)


def test_some_people_are_as_in_the_table_of_all(own):
    """Values of a few people, in a table of their own or in that of all, are the same."""
    at = np.tile((own.low + own.high) / 2, (8, 1))
    whole = own.value(at)
    few = np.array([2, 5])
    assert own.value(at[few], few) == pytest.approx(whole[few], abs=1e-12)
    assert own.value(at) == pytest.approx(whole, abs=1e-12)


def test_the_table_of_everyone_is_made_once(monkeypatch):
    """Whatever is asked for, and of whom; what is asked afterwards is as from likelihoods made for it alone."""
    made = []
    real = OwnLikelihoods._made
    monkeypatch.setattr(OwnLikelihoods, "_made", lambda self, choices: made.append(choices) or real(self, choices))
    own = OwnLikelihoods(crowd(1, 8, 60)[0], Model())
    at = np.tile((own.low + own.high) / 2, (8, 1))
    for _ in range(3):
        natural = own.natural_coordinates(at)
        found = own.hessian(natural)
        own.value(at[:2], np.array([1, 6]))
        own.value(at)
    assert sum(choices is own.choices for choices in made) == 1
    alone = Likelihood(people_of(own.choices, np.array([6])), own.model)
    np.testing.assert_allclose(natural[6], Straight(own.everyone).back(at[6]), atol=1e-12)
    np.testing.assert_allclose(found[6], alone.hessian(natural[6]), rtol=1e-9, atol=1e-9)


def test_beyond_a_bound_a_likelihood_is_flat(own):
    """Moving further out changes no value and has no gradient."""
    out = np.tile(own.high + 1, (8, 1))
    assert (own.value(out) == own.value(out + 3)).all()
    assert (own.derivatives(out)[1] == 0).all()


def test_a_normal_law_pulls_climbs_to_its_mean(own):
    """Under a law of no width everyone arrives at its mean."""
    mean = Straight(own.everyone).there(MEAN)
    found = climb_each(own, np.tile(mean + 0.5, (8, 1)), own.all, mean=mean, precision=1e8 * np.eye(5))
    assert found.coordinates == pytest.approx(np.tile(mean, (8, 1)), abs=1e-5)
