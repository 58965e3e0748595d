"""The log-likelihood: what it is by plain loops, its gradient and information, and that of each person."""

from __future__ import annotations

import math

import numpy as np
import pytest

from humanline.fit import Choices, Likelihood, Model, expected_utility
from humanline.theory import PowerValue, TverskyKahneman, certainty_equivalent, subjective_utility
from tests.helpers.choices import TRUTH, answered, problems

MODELS = {
    "1992": Model(),
    "probit in context": Model(rule="probit", contextual=True),
    "lapses": Model(lapse=True),
    "probit, lapses in context": Model(rule="probit", lapse=True, contextual=True, value="exponential"),
    "separable, own curvatures": Model(weights="separable", gain="prelec", equal={}),
    "neo-additive": Model(gain="neo-additive"),
    "a scale that is no logarithm": Model(gain="exponential-power", loss="hyperbolic-log", value="logarithmic"),
    "one capacity": Model(
        gain="linear-in-log-odds", equal={"loss.slope": "gain.slope", "loss.elevation": "gain.slope"}
    ),
    "logistic": Model(value="logistic", gain="power", fixed={"loss_aversion": 2.0}),
}
START = {"curvature": 0.9, "loss_curvature": 0.8, "loss_aversion": 2.0, "sensitivity": 0.2, "lapse": 0.05, "noise": 3.0}
SCALED = {"curvature": 0.03, "loss_curvature": 0.03}


def point(likelihood):
    values = {**START, **(SCALED if likelihood.model.value != "power" else {})}
    return likelihood.coordinates({name: values.get(name, 0.6) for name in likelihood.names})


def differences(function, at, step=1e-6):
    """Central differences of a function of coordinates, one for each."""
    return np.stack([(function(at + h) - function(at - h)) / (2 * step) for h in np.eye(len(at)) * step], axis=-1)


def test_it_is_the_sum_of_logs_of_probabilities():
    """By plain loops over responses, with utilities of the theory: Bernoulli, logit, a lapse as a mixture."""
    data = answered(0, 30, 4)
    model = Model(lapse=True)
    likelihood = Likelihood(data, model)
    at = likelihood.coordinates({**TRUTH, "lapse": 0.1})
    human = {"value": PowerValue(0.8, 0.8, 1.8), "gain": TverskyKahneman(0.6), "loss": TverskyKahneman(0.7)}
    (z1, p1), (z2, p2) = problems(np.random.default_rng(0), 30)
    gap = subjective_utility(z2, p2, **human) - subjective_utility(z1, p1, **human)
    total = 0.0
    for problem, chosen in zip(data.problem, data.response, strict=True):
        second = 0.9 / (1 + math.exp(-0.3 * gap[problem])) + 0.05
        total += math.log(second if chosen else 1 - second)
    assert likelihood.value(at) == pytest.approx(total, rel=1e-12)
    assert likelihood.rows(at).sum() == pytest.approx(total, rel=1e-12)


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("objective", ["likelihood", "least squares"])
def test_gradient_and_scores(model, objective):
    """The gradient is that of differences; scores of the responses sum to it; the value is that of the rows."""
    likelihood = Likelihood(answered(1, 60, 3), model, objective=objective)
    at = point(likelihood)
    value, gradient, information = likelihood.derivatives(at)
    np.testing.assert_allclose(gradient, differences(likelihood.value, at), rtol=2e-6, atol=2e-6)
    rows, scores = likelihood.scores(at)
    assert rows.sum() == pytest.approx(value, rel=1e-11) == likelihood.value(at)
    np.testing.assert_allclose(scores.sum(0), gradient, rtol=1e-9, atol=1e-9)
    assert np.linalg.eigvalsh(information)[0] >= -1e-9 * np.trace(information)
    np.testing.assert_allclose(
        likelihood.hessian(at), differences(lambda c: likelihood.derivatives(c)[1], at, 1e-5), rtol=1e-5, atol=1e-4
    )


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_information_is_expected(model):
    """It is the mean, over what could have been answered, of the outer product of scores."""
    data = answered(2, 25, 1)
    likelihood = Likelihood(data, model)
    at = point(likelihood)
    share = likelihood.predicted(at)
    (z1, p1), (z2, p2) = problems(np.random.default_rng(2), 25)
    total = 0.0
    for chosen, probability in ((np.ones(25), share), (np.zeros(25), 1 - share)):
        scores = Likelihood(Choices.between((z1, p1), (z2, p2), chosen), model).scores(at)[1]
        total = total + (scores * probability[:, None]).T @ scores
    np.testing.assert_allclose(likelihood.derivatives(at)[2], total, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_people_have_likelihoods_of_their_own(model):
    """Together by person it gives each the value, gradient, information, Hessian, scores of a likelihood alone."""
    data = answered(3, 40, 3)
    data = data.take(np.flatnonzero((data.problem + data.person) % 3 > 0))  # each person has other problems
    together = Likelihood(data, model, by_person=True)
    rng = np.random.default_rng(3)
    at = point(together)[None] + rng.uniform(-0.2, 0.2, (3, len(together.names)))
    value, gradient, information = together.derivatives(at)
    hessian, (rows, scores), predicted = together.hessian(at), together.scores(at), together.predicted(at)
    for person in range(3):
        alone = Likelihood(data.of_person(person), model)
        own = alone.derivatives(at[person])
        for ours, theirs in zip((value, gradient, information), own, strict=True):
            np.testing.assert_allclose(ours[person], theirs, rtol=1e-8, atol=1e-8)
        np.testing.assert_allclose(hessian[person], alone.hessian(at[person]), rtol=1e-5, atol=1e-5)
        mine = data.person == person
        np.testing.assert_allclose(predicted[mine], alone.predicted(at[person]), rtol=1e-10)
        np.testing.assert_allclose(rows[mine], alone.rows(at[person]), rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(scores[mine], alone.scores(at[person])[1], rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(together.value(at), value, rtol=1e-12)


def test_counts_are_choices_one_by_one():
    """Counts have the value, gradient and information of their choices, and rates those of shares of one choice."""
    rng = np.random.default_rng(4)
    first, second = problems(rng, 20)
    count, trials = rng.integers(0, 6, 20), np.full(20, 5)
    counts = Likelihood(Choices.between(first, second, count, kind="counts", trials=trials), Model())
    problem = np.repeat(np.arange(20), 5)
    single = np.concatenate([[1.0] * k + [0.0] * (5 - k) for k in count])
    alone = Likelihood(Choices.between(first, second, single, problem=problem), Model())
    rates = Likelihood(Choices.between(first, second, count / 5, kind="rates"), Model())
    at = point(alone)
    for one, other, share in zip(counts.derivatives(at), alone.derivatives(at), rates.derivatives(at), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10)
        np.testing.assert_allclose(one, np.multiply(share, 5), rtol=1e-10)


@pytest.mark.parametrize("model", [Model(), MODELS["neo-additive"], expected_utility("exponential")])
@pytest.mark.parametrize("by_person", [False, True])
def test_certainty_equivalents(model, by_person):
    """Their errors are normal around the certainty equivalent of the theory; the gradient is that of differences."""
    rng = np.random.default_rng(5)
    prospects, _ = problems(rng, 60)
    given = rng.normal(10, 5, 60)
    data = Choices.equivalents(prospects, given, person=np.arange(60) % 2 if by_person else None)
    likelihood = Likelihood(data, model, by_person=by_person)
    single = likelihood.coordinates(
        {
            **START,
            **(SCALED if model.value != "power" else {}),
            **dict.fromkeys(set(likelihood.names) - set(START), 0.6),
        }
    )
    at = np.tile(single, (2, 1)) if by_person else single
    values = model.complete(
        {name: likelihood.specs[name].natural(c) for name, c in zip(likelihood.names, single, strict=True)},
        "equivalents",
    )
    value, gain, loss = model.families(values)
    sure = certainty_equivalent(*prospects, value=value, gain=gain, loss=loss)
    np.testing.assert_allclose(likelihood.predicted(at), sure, rtol=1e-9, atol=1e-9)
    expected = -((given - sure) ** 2) / (2 * 9.0) - math.log(3.0) - math.log(2 * math.pi) / 2
    np.testing.assert_allclose(likelihood.rows(at), expected, rtol=1e-9)
    alone = Likelihood(Choices.equivalents(prospects, given), model)
    gradient = np.atleast_2d(likelihood.derivatives(at)[1]).sum(0)
    np.testing.assert_allclose(gradient, differences(alone.value, single), rtol=1e-5, atol=1e-5)


def test_extreme_utilities_neither_overflow_nor_warn():
    """Logs of probabilities of e^-1e6 are finite in value, gradient and information, for each rule."""
    first, second = (np.array([[1e6], [5.0]]), np.ones((2, 1))), (np.array([[1.0], [6.0]]), np.ones((2, 1)))
    for rule in ("logit", "probit"):
        model = Model(rule=rule, gain="identity", fixed={"loss_aversion": 1.0})
        likelihood = Likelihood(Choices.between(first, second, [1, 0]), model)
        value, gradient, information = likelihood.derivatives(np.zeros(2))
        assert value < -9e5 and np.isfinite(gradient).all() and np.isfinite(information).all()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"fixed": {"gain.gama": 1.0}}, "did you mean gain.gamma"),
        ({"fixed": {"curvature": -1.0}}, "curvature must be > 0"),
        ({"equal": {"curvature": "loss_curvature", "loss_curvature": "curvature"}}, "make no circle"),
        ({"fixed": {"loss_curvature": 1.0}}, "fixed or equal to another, not both"),
        ({"gain": "prelek"}, "gain must be one of"),
        ({"rule": "softmax"}, "rule must be one of"),
        ({"fixed": {"lapse": 1.2}}, r"lapse must be >= 0 and <= 1; got 1\.2"),
        ({"fixed": {"gain.gamma": 0.2}}, r"gain\.gamma must be >= 0\.279204; got 0\.2"),
        ({"gain": "neo-additive", "fixed": {"gain.slope": 1.5}}, r"gain\.slope must be > 0 and <= 1; got 1\.5"),
        ({"loss": "prelec", "equal": {"loss": "gain"}}, "with capacities of one family"),
        ({"equal": {"sensitivity": "curvature"}}, "parameters of one unit"),
        ({"equal": {"loss": "gains"}}, "'gain' for 'loss'"),
    ],
)
def test_models_that_cannot_be(settings, said):
    """A model says what is wrong with it, with the nearest name."""
    with pytest.raises(ValueError, match=said):
        Model(**settings)


def test_models_are_values():
    """Equal models are equal and have one hash; what JSON holds makes the same one."""
    for model in MODELS.values():
        assert Model(**model.to_dict()) == model and hash(Model(**model.to_dict())) == hash(model)


def test_one_capacity_for_both_sides():
    """``equal={"loss": "gain"}`` makes all parameters of the capacity of losses those of gains."""
    model = Model(gain="prelec", equal={"loss": "gain", "loss_curvature": "curvature"})
    assert model.free() == ("curvature", "loss_aversion", "gain.alpha", "gain.beta", "sensitivity")
    assert model.equal["loss.beta"] == "gain.beta"
    values = model.complete(dict.fromkeys(model.free(), 0.7))
    assert model.families(values)[1] == model.families(values)[2]
    fixed = {"gain.gamma": 0.2, "loss.gamma": 0.2}
    assert Model(non_monotone=True, fixed=fixed).fixed == fixed


@pytest.mark.parametrize(
    ("kind", "asked", "named"),
    [
        ("equivalents", {"rule": "probit", "contextual": True, "lapse": True}, "rule, contextual, lapse"),
        ("equivalents", {"fixed": {"sensitivity": 2.0, "lapse": 0.1}}, "sensitivity, lapse"),
        ("choices", {"fixed": {"noise": 3.0}}, "noise"),
    ],
)
def test_what_responses_have_no_use_for_is_refused(kind, asked, named):
    """A rule of choice changes nothing of certainty equivalents, nor a noise of choices: neither is passed over."""
    first, second = problems(np.random.default_rng(0), 5)
    data = (
        Choices.equivalents(first, np.zeros(5)) if kind == "equivalents" else Choices.between(first, second, [0.0] * 5)
    )
    with pytest.raises(ValueError, match=f"model must ask nothing that {kind} have no use for; got '{named}'"):
        Likelihood(data, Model(**asked))
