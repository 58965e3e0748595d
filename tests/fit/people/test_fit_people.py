"""People fitted alone and pooled: who is named, what is shown, and what is refused."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from humanline.fit import Choices, DataError, Likelihood, Model, NotConverged, NotIdentified
from humanline.fit.people import fit_people, pool, population, undetermined
from humanline.fit.people.own import OwnLikelihoods
from tests.helpers.people import SMALL, crowd


@pytest.fixture(scope="module")
def made():
    """Fourteen people with forty choices; two of them always chose one side, one answered a single problem."""
    data, truth = crowd(0, 14, 40, SMALL)
    response = data.response.copy()
    response[data.person == 3], response[data.person == 5] = 0.0, 1.0
    kept = ~((data.person == 7) & (data.problem > 0))
    data = dataclasses.replace(data, response=response).take(kept, all_problems=True)
    return data, truth, fit_people(data, SMALL)


def test_people_with_the_same_problems_are_looked_at_together(monkeypatch):
    """Groups are those of the problems answered, in whatever order rows are, and each response is in one of them."""
    data, _ = crowd(0, 6, 10, SMALL)
    rng = np.random.default_rng(3)
    answered = {0: range(10), 1: range(4), 2: range(10), 3: [7], 4: range(4), 5: range(2, 6)}
    kept = np.array([problem in answered[who] for problem, who in zip(data.problem, data.person, strict=True)])
    mixed = data.take(rng.permutation(np.repeat(np.flatnonzero(kept), 2)), all_problems=True)
    seen = []
    monkeypatch.setattr(undetermined, "_problem_faults", lambda own, choices: seen.append(choices) or [])
    undetermined.before(OwnLikelihoods(mixed, SMALL))
    together = [(sorted(set(each.person.tolist())), sorted(set(each.problem.tolist()))) for each in seen]
    assert together == [([0, 2], [*range(10)]), ([1, 4], [*range(4)]), ([3], [7]), ([5], [*range(2, 6)])]
    assert sum(len(each) for each in seen) == len(mixed) == 2 * kept.sum()
    assert sum(each.response.sum() for each in seen) == mixed.response.sum()


def test_people_without_an_estimate_are_named_with_the_reason(made):
    """Who always chose one side, or answered one problem, has no unpooled estimate but a reason, and is counted."""
    _, _, fit = made
    assert {3, 5, 7} <= set(fit.undetermined)
    assert fit.undetermined[3].kind == fit.undetermined[5].kind == "one-sided"
    assert "first" in fit.undetermined[3].why and "second" in fit.undetermined[5].why
    assert fit.undetermined[7].kind == "problems" and "problems must be 2 or more" in fit.undetermined[7].why
    assert np.isnan(fit.alone.coordinates[[3, 5, 7]]).all()
    rest = [each for each in range(14) if each not in fit.undetermined]
    assert np.isfinite(fit.alone.coordinates[rest]).all()
    assert f"{len(fit.undetermined)} of 14 people have no estimate of their own" in fit.notes[0]
    assert "2 always chose the same option" in fit.notes[0]


def test_pooled_numbers_that_hang_on_few_draws_are_said_to_be_rough(made):
    """Estimates as well as errors: both are averages over the laws that were drawn."""
    _, _, fit = made
    laws = len(fit.integrated.laws)
    one = dataclasses.replace(fit.integrated, weight=np.eye(1, laws)[0])
    even = dataclasses.replace(one, weight=np.full(laws, 1 / laws))
    rough, fine = (dataclasses.replace(fit, integrated=each).notes for each in (one, even))
    assert any("all pooled estimates and errors are rough" in note for note in rough)
    assert not any("of the law is far from normal" in note for note in fine)


def test_pooled_estimates_are_there_for_all_and_weigh_what_each_says(made):
    """Everyone has a pooled estimate; who answered one problem weighs less than anyone with forty, and errs more."""
    _, truth, fit = made
    assert np.isfinite(fit.pooled.coordinates).all() and (fit.pooled.errors > 0).all()
    assert ((fit.weight >= 0) & (fit.weight <= 1)).all()
    rest = [each for each in range(14) if each not in (3, 5, 7)]
    assert (fit.weight[7] < fit.weight[rest].min(0)).all()
    assert np.abs(fit.pooled.coordinates[rest] - truth[rest]).max() < 5 * fit.pooled.errors.max()


def test_what_is_not_known_of_the_law_widens_errors(made):
    """Corrected errors are on average larger than those of plain empirical Bayes."""
    fit = made[2]
    assert (fit.pooled.errors.mean(0) > fit.plain.errors.mean(0)).all()


def test_table_and_json_say_the_same(made):
    """The table shows people and reasons; the dict is JSON without nan, and holds everyone."""
    fit = made[2]
    text = json.dumps(fit.to_dict(), allow_nan=False)
    found = json.loads(text)
    assert len(found["people"]) == 14 and found["people"][3]["alone"] is None
    assert found["undetermined"]["one-sided"] == 2
    table = fit.table(4)
    assert "no estimate of their own: chose the first option each time" in table and "and 10 more people" in table
    name = fit.people[0]
    interval = fit.interval(name, "gain.gamma")
    assert interval.low < fit.parameters(name)["gain.gamma"] < interval.high


@pytest.mark.slow
def test_the_same_seed_gives_the_same_bytes(made):
    """A second fit writes the same JSON."""
    data, _, fit = made
    assert json.dumps(fit_people(data, SMALL).to_dict()) == json.dumps(fit.to_dict())


def test_the_unit_of_outcomes_moves_nothing_but_sensitivity():
    """In cents, curvature and gamma of every person are those in dollars."""
    model = dataclasses.replace(SMALL, fixed={"loss_aversion": 1.8})
    found = []
    for size in (1.0, 100.0):
        data, _ = crowd(2, 12, 60, SMALL, size)
        fit = fit_people(data, model)
        found.append([fit.parameters(name) for name in fit.people])
    for dollars, cents in zip(*found, strict=True):
        assert cents["curvature"] == pytest.approx(dollars["curvature"], rel=1e-5)
        assert cents["gain.gamma"] == pytest.approx(dollars["gain.gamma"], rel=1e-5)


def test_a_crowd_has_the_law_that_its_people_have(made, monkeypatch):
    """Where the law of some people is found first, pooled estimates differ by less than a quarter of their errors."""
    data, _, fit = made
    monkeypatch.setattr(pool, "CROWD", 10)
    found = fit_people(data, SMALL)
    assert (np.abs(found.pooled.coordinates - fit.pooled.coordinates) < fit.pooled.errors / 4).all()


def test_people_may_answer_different_problems():
    """Two halves of the people with problems of their own are fitted together."""
    data, _ = crowd(3, 10, 60, SMALL)
    half = (data.person < 5) == (data.problem < 30)
    fit = fit_people(data.take(half, all_problems=True), SMALL)
    assert np.isfinite(fit.pooled.coordinates).all()


def test_certainty_equivalents_and_counts_are_fitted_too():
    """Other responses with a likelihood go the same way."""
    rng = np.random.default_rng(4)
    outcomes, probs = rng.uniform(1, 50, (25, 2)), np.tile(rng.uniform(0.05, 0.95, 25)[:, None], (1, 2))
    probs[:, 1] = 1 - probs[:, 0]
    who, what = np.repeat(np.arange(8), 25), np.tile(np.arange(25), 8)
    sure = (outcomes * probs).sum(1)[what] + rng.normal(0, 2, 200)
    data = Choices.equivalents((outcomes, probs), sure, problem=what, person=who)
    model = Model(fixed={"loss_aversion": 1.0, "loss.gamma": 1.0})
    assert set(fit_people(data, model).names) == {"curvature", "gain.gamma", "noise"}


def test_what_cannot_be_pooled_is_said_in_words():
    """One person, no column of people, bare rates, nothing free, one name for two: each its own sentence."""
    data, _ = crowd(5, 4, 30, SMALL)
    with pytest.raises(DataError, match="people must be two or more"):
        fit_people(data.of_person(0), SMALL)
    anonymous = dataclasses.replace(data, person=np.zeros_like(data.person), person_names=("everyone",))
    with pytest.raises(DataError, match="nobody said who answered: give a column `person`"):
        fit_people(anonymous, SMALL)
    with pytest.raises(ValueError, match="bare rates have no likelihood"):
        fit_people(dataclasses.replace(data, kind="rates"), SMALL)
    with pytest.raises(ValueError, match="have a free parameter"):
        fit_people(
            data, Model(gain="identity", fixed=dict.fromkeys(("curvature", "loss_aversion", "sensitivity"), 1.0))
        )
    twice = dataclasses.replace(data, person_names=("a", "b", "a", "c"))
    with pytest.raises(DataError, match="one person under one name; got \"'a' for 2 people\""):
        fit_people(twice, SMALL)
    absent = data.take(data.person != 2, all_problems=True)
    with pytest.raises(DataError, match="have answered something"):
        fit_people(absent, SMALL)


def test_people_who_all_always_chose_one_side_are_refused():
    """Half always first and half always second: together mixed, but nobody weighs anything."""
    data, _ = crowd(6, 6, 30, SMALL)
    one_sided = dataclasses.replace(data, response=(data.person % 2).astype(float))
    with pytest.raises(NotIdentified, match="6 one-sided people"):
        fit_people(one_sided, SMALL)


@pytest.mark.slow
def test_nobody_with_an_estimate_of_their_own_is_said():
    """Forty people who answered one problem each, five times, are pooled; the result says that nobody stands alone."""
    data, truth = crowd(7, 40, 40, SMALL)
    own = data.take(data.person == data.problem, all_problems=True)
    share = Likelihood(own, SMALL, by_person=True).predicted(truth)
    counted = np.random.default_rng(0).binomial(5, share)
    counts = dataclasses.replace(own, kind="counts", response=counted.astype(float), trials=np.full(40, 5.0))
    fit = fit_people(counts, SMALL)
    assert len(fit.undetermined) == 40
    assert any("Nobody has an estimate of their own" in note for note in fit.notes)


def test_a_law_that_choices_say_nothing_of_is_an_error(monkeypatch):
    """People with one choice each determine no law: an error says what still moves, and no table is made."""
    monkeypatch.setattr(population, "_ROUNDS", 4)
    data, _ = crowd(7, 6, 6, SMALL)
    one_each = data.take(data.person == data.problem, all_problems=True)
    with pytest.raises(NotConverged, match="still moves; these choices say too little"):
        fit_people(one_each, SMALL, check=False)


def test_names_that_look_alike_are_pointed_out():
    """People whose names differ by a space or a capital are kept apart, with a note."""
    data, _ = crowd(8, 5, 30, SMALL)
    fit = fit_people(dataclasses.replace(data, person_names=("Ann", "ann ", "Bob", "Cy", "Di")), SMALL)
    assert any("'Ann', 'ann '" in note for note in fit.notes)
    with pytest.raises(ValueError, match="no such person"):
        fit.parameters("Eve")
    with pytest.raises(ValueError, match="no such free parameter"):
        fit.interval("Bob", "curvature")
