"""Simulated responses are those of the model, and can be made again."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest

from humanline.fit import Choices, Model, design_check, fit_prospect
from humanline.fit.simulate import simulate_choices
from humanline.theory import PowerValue, TverskyKahneman, subjective_utility
from tests.helpers.choices import TRUTH, answered, problems

OPTIONS = problems(np.random.default_rng(3), 40)


def shares(truth=TRUTH, lapse=0.0):
    """The probability of each second option, by plain calls of the theory."""
    value = PowerValue(truth["curvature"], loss_aversion=truth["loss_aversion"])
    gain, loss = TverskyKahneman(truth["gain.gamma"]), TverskyKahneman(truth["loss.gamma"])
    first, second = (subjective_utility(*side, value=value, gain=gain, loss=loss) for side in OPTIONS)
    return (1 - lapse) / (1 + np.exp(-truth["sensitivity"] * (second - first))) + lapse / 2


def off_by(rate, share, n, problems):
    """Whether rates are farther from probabilities than chance allows once in a million (Hoeffding, all together)."""
    return np.abs(rate - share) > math.sqrt(math.log(2 * problems / 1e-6) / (2 * n))


@pytest.mark.parametrize("kind", ["choices", "counts"])
def test_rates_are_the_probabilities_of_the_model(kind):
    """Of 20 000 choices of each problem the share of the second is the model's, within Hoeffding's bound."""
    n = 20_000 if kind == "counts" else 5000
    made = simulate_choices(Model(), OPTIONS, values=TRUTH, n=n, kind=kind, seed=4)
    rate = np.bincount(made.problem, weights=made.response) / n
    assert made.kind == kind and len(made) == (40 if kind == "counts" else 40 * n)
    assert not off_by(rate, shares(), n, 40).any()


def test_lapses_are_answers_without_looking():
    """With a lapse rate of .3 the shares are .7 of the model's and .15."""
    made = simulate_choices(Model(lapse=True), OPTIONS, values={**TRUTH, "lapse": 0.3}, n=20_000, kind="counts")
    assert not off_by(made.response / made.trials, shares(lapse=0.3), 20_000, 40).any()
    assert off_by(made.response / made.trials, shares(), 20_000, 40).any()


def test_people_have_values_of_their_own():
    """Each person answers with their own parameters; numbers that are not arrays are everyone's."""
    values = {**TRUTH, "gain.gamma": np.array([0.4, 1.0]), "sensitivity": np.array([0.1, 0.9])}
    made = simulate_choices(Model(), OPTIONS, values=values, n=20_000, kind="counts", people=["ann", "bob"])
    assert made.person_names == ("ann", "bob") and made.people == 2
    for person in (0, 1):
        mine = made.of_person(person)
        own = {**TRUTH, **{name: values[name][person] for name in ("gain.gamma", "sensitivity")}}
        assert not off_by(mine.response / mine.trials, shares(own), 20_000, 80).any()


def test_choices_are_as_independent_as_draws():
    """The variance of counts over 2000 repetitions is n p (1 - p), within its own Chebyshev bound."""
    made = simulate_choices(Model(), OPTIONS, values=TRUTH, n=25, kind="counts", people=2000, seed=1)
    p = shares()
    counts = made.response.reshape(2000, 40)
    spread = 25 * p * (1 - p)
    fourth = spread * (1 + 3 * (25 - 2) * p * (1 - p))  # the fourth central moment of a binomial
    error = np.sqrt((fourth - spread**2) / 2000)
    found = ((counts - 25 * p) ** 2).mean(0)
    assert (np.abs(found - spread) < error * math.sqrt(40 / 1e-3)).all()


def test_equivalents_are_the_models_with_normal_errors():
    """Certainty equivalents have the model's mean and the noise's spread, within Chebyshev's bound."""
    z, p = OPTIONS[0]
    values = {name: TRUTH[name] for name in list(TRUTH)[:4]} | {"noise": 3.0}
    made = simulate_choices(Model(), (z, p), values=values, n=4000, kind="equivalents", seed=2)
    rows = made.response.reshape(40, 4000)
    value = PowerValue(TRUTH["curvature"], loss_aversion=TRUTH["loss_aversion"])
    gain, loss = TverskyKahneman(TRUTH["gain.gamma"]), TverskyKahneman(TRUTH["loss.gamma"])
    sure = value.inverse(subjective_utility(z, p, value=value, gain=gain, loss=loss))
    bound = math.sqrt(40 / 1e-3)
    assert (np.abs(rows.mean(1) - sure) < bound * 3 / math.sqrt(4000)).all()
    assert (np.abs(rows.var(1) - 9) < bound * 9 * math.sqrt(2 / 4000)).all()


def test_equivalents_that_no_outcome_has_are_refused():
    """Separable weights of 1.7 together and values that level off: no sure outcome is as good as such a prospect."""
    model = Model(value="exponential", gain="power", loss="identity", weights="separable", fixed={"loss_aversion": 1})
    values = {"curvature": 1.0, "gain.exponent": 0.2, "noise": 1.0}
    with pytest.raises(ValueError, match="values must give finite certainty equivalents"):
        simulate_choices(model, ([[50.0, 40.0]], [[0.5, 0.5]]), values=values, kind="equivalents")


def test_a_fit_of_equivalents_takes_prospects_for_what_it_is_of():
    """New prospects for a fit of certainty equivalents need no kind: to be simulated, and to be planned with."""
    prospects = OPTIONS[0]
    model = Model(gain="identity", loss="identity")
    values = {"curvature": 0.8, "loss_aversion": 1.8, "noise": 3.0}
    fit = fit_prospect(simulate_choices(model, prospects, values=values, n=9, kind="equivalents"), model, starts=1)
    fewer = prospects[0][:5], prospects[1][:5]
    made, named = simulate_choices(fit, fewer), simulate_choices(fit, fewer, kind="equivalents")
    assert made.kind == "equivalents" and made.problems == 5 and (made.response == named.response).all()
    assert design_check(prospects, fit).standard_errors["noise"] == pytest.approx(
        fit.estimates["noise"] / math.sqrt(80)
    )


def test_the_same_seed_gives_the_same_responses():
    """Twice the same, with another seed others; n may differ by problem."""
    first, again, other = (simulate_choices(Model(), OPTIONS, values=TRUTH, n=5, seed=seed) for seed in (7, 7, 8))
    assert (first.response == again.response).all() and (first.response != other.response).any()
    number = np.arange(1, 41)
    assert (np.bincount(simulate_choices(Model(), OPTIONS, values=TRUTH, n=number).problem) == number).all()


def test_a_fit_foretells_choices_of_its_own_problems():
    """Without problems or values a fit simulates its own, at its estimates; and what it makes can be fitted."""
    data = answered(1, 120, 6)
    fit = fit_prospect(data, starts=1)
    made = simulate_choices(fit, n=200, kind="counts")
    assert made.problems == data.problems and made.problem_names == data.problem_names
    again = fit_prospect(made, starts=1)
    for name, value in fit.estimates.items():
        assert abs(again.estimates[name] - value) < 5 * again.standard_errors()[name]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"values": None}, "values must be given with a model: curvature"),
        ({"values": {**TRUTH, "gain.gama": 1}}, "gain.gama"),
        ({"values": {"curvature": 1.0}}, "values must hold all free parameters"),
        ({"values": {**TRUTH, "sensitivity": -1.0}}, "sensitivity must be finite and > 0"),
        ({"values": {**TRUTH, "sensitivity": np.nan}}, "sensitivity must be finite and > 0"),
        ({"n": 0}, "n must be a whole number >= 1"),
        ({"n": 1.5}, "n must be a whole number >= 1"),
        ({"people": 0}, "people must be at least one"),
        ({"people": 3, "values": {**TRUTH, "sensitivity": np.ones(2)}}, "sensitivity"),
        ({"problems": None}, "problems must be given with a model"),
        ({"problems": [OPTIONS[0]]}, r"problems must be Choices, or two options, each a pair \(outcomes, probs\)"),
        ({"problems": (OPTIONS[0], OPTIONS[1][0])}, r"second option must be a pair \(outcomes, probs\)"),
        ({"problems": OPTIONS[0][0], "kind": "equivalents"}, r"problems must be a pair \(outcomes, probs\)"),
        ({"people": "ann"}, "people must be a number, or a sequence of names; got 'ann'"),
        ({"values": {**TRUTH, "sensitivity": "much"}}, "sensitivity must be a number, or one for each person"),
        ({"kind": "rates"}, "kind"),
    ],
)
def test_what_cannot_be_simulated(settings, said):
    """Missing or impossible values, numbers and problems are named."""
    given = {"problems": OPTIONS, "values": TRUTH, **settings}
    with pytest.raises(ValueError, match=said):
        simulate_choices(Model(), given.pop("problems"), **given)


@pytest.mark.parametrize("lapse", [1.0, 1.5, -0.1, np.nan, [0.1, 1.0]])
def test_a_lapse_rate_lies_below_one(lapse):
    """Each person's is in [0, 1), free or fixed; a rate of 0 is none, and needs no warning."""
    with pytest.raises(ValueError, match=r"lapse must lie in \[0, 1\)"):
        simulate_choices(Model(lapse=True), OPTIONS, values={**TRUTH, "lapse": lapse})
    with pytest.raises(ValueError, match=r"lapse must lie in \[0, 1\)"):
        simulate_choices(Model(fixed={"lapse": 1.0}), OPTIONS, values=TRUTH)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for zero, people in ((0.0, 2), ([0.0, 0.0], None)):
            made = simulate_choices(
                Model(lapse=True), OPTIONS, values={**TRUTH, "lapse": zero}, n=50, people=people, kind="counts"
            )
            assert (
                made.response
                == simulate_choices(Model(), OPTIONS, values=TRUTH, n=50, people=2, kind="counts").response
            ).all()
    with pytest.raises(ValueError, match="lapse must lie strictly between 0 and 1"):
        design_check(OPTIONS, Model(lapse=True), values={**TRUTH, "lapse": 0.0})


def test_a_share_is_at_most_one():
    """A neo-additive share above 1 is refused: it was taken for 1."""
    values = {**{name: TRUTH[name] for name in ("curvature", "loss_aversion", "sensitivity")}, "loss.share": 0.5}
    values |= {"gain.slope": 0.5, "loss.slope": 0.5, "gain.share": 1.2}
    with pytest.raises(ValueError, match=r"gain.share must be > 0 and <= 1; got 1.2"):
        simulate_choices(Model(gain="neo-additive"), OPTIONS, values=values)


def test_problems_of_one_kind_make_no_responses_of_the_other():
    """Prospects for certainty equivalents have no second option to choose."""
    data = Choices.equivalents(OPTIONS[0], np.zeros(40))
    with pytest.raises(ValueError, match="kind must suit the problems, which are of equivalents"):
        simulate_choices(Model(), data, values=TRUTH, kind="choices")
