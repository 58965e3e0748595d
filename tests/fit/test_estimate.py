"""Fits: what they find, what leaves them alone, and what is refused."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from scipy.optimize import minimize

from humanline.fit import (
    Choices,
    Likelihood,
    Model,
    NotConverged,
    NotIdentified,
    expected_utility,
    expected_value,
    fit_prospect,
    standard_models,
)
from humanline.fit.starts import bounds, starting_points
from humanline.fit.straight import Straight
from tests.helpers.choices import TRUTH, answered, problems


@pytest.fixture(scope="module")
def data():
    return answered(0)


@pytest.fixture(scope="module")
def fit(data):
    return fit_prospect(data, starts=4)


def test_the_gradient_vanishes_at_the_estimates(fit):
    """The estimates are a maximum: the gradient is 0 beside its own spread, and the observed information positive."""
    _, gradient, information = fit.likelihood.derivatives(fit.coordinates)
    assert gradient @ np.linalg.solve(information, gradient) < 1e-9
    assert np.linalg.eigvalsh(-fit.likelihood.hessian(fit.coordinates))[0] > 0
    assert fit.starts.agreeing == 4 and len(fit.starts.values) == 4
    assert fit.at_bound == {} and 1 < fit.condition < 1e4


def test_expected_value_with_logit_is_a_logistic_regression(data):
    """Estimate, standard errors, robust and clustered ones, and log-likelihood equal those of statsmodels to 1e-6."""
    api = pytest.importorskip("statsmodels.api", reason="statsmodels, of the dev extra, is the oracle")
    means = (data.outcomes * data.probs).reshape(-1, 4).sum(1)
    gap = (means[data.problems :] - means[: data.problems])[data.problem]
    theirs = api.Logit(data.response, gap[:, None]).fit(disp=0, tol=1e-14, method="newton")
    ours = fit_prospect(data, expected_value(), starts=3)
    assert ours.estimates["sensitivity"] == pytest.approx(theirs.params[0], rel=1e-6)
    assert ours.log_likelihood == pytest.approx(theirs.llf, rel=1e-9)
    assert (ours.aic, ours.bic) == pytest.approx((theirs.aic, theirs.bic), rel=1e-9)
    assert ours.standard_errors()["sensitivity"] == pytest.approx(theirs.bse[0], rel=1e-6)
    robust = api.Logit(data.response, gap[:, None]).fit(disp=0, cov_type="HC0", method="newton")
    ratio = len(data) / (len(data) - 1)
    assert ours.standard_errors("robust")["sensitivity"] == pytest.approx(robust.bse[0] * math.sqrt(ratio), rel=1e-6)
    # Theirs has no correction for the share of a problem in the information, which is the share of its weights.
    weights = np.bincount(data.problem, weights=gap**2 * theirs.predict() * (1 - theirs.predict()))
    scores = np.bincount(data.problem, weights=gap * (data.response - theirs.predict()))
    settings = {"cov_type": "cluster", "cov_kwds": {"groups": data.problem, "use_correction": False}}
    clustered = api.Logit(data.response, gap[:, None]).fit(disp=0, method="newton", **settings)
    assert clustered.bse[0] == pytest.approx(math.sqrt((scores**2).sum()) / weights.sum(), rel=1e-6)
    corrected = math.sqrt((scores**2 / (1 - weights / weights.sum())).sum()) / weights.sum()
    assert ours.standard_errors("problem")["sensitivity"] == pytest.approx(corrected, rel=1e-6)
    assert ours.standard_errors("problem")["sensitivity"] == pytest.approx(clustered.bse[0], rel=0.02)


def test_other_likelihoods_are_those_of_statsmodels(data):
    """Probit equals Probit, counts a binomial GLM, and bare rates one with robust errors, to 1e-6."""
    api = pytest.importorskip("statsmodels.api", reason="statsmodels, of the dev extra, is the oracle")
    means = (data.outcomes * data.probs).reshape(-1, 4).sum(1)
    gap = (means[data.problems :] - means[: data.problems])[:, None]
    theirs = api.Probit(data.response, gap[data.problem]).fit(disp=0, tol=1e-14, method="newton")
    ours = fit_prospect(data, expected_value(rule="probit"), starts=1)
    assert ours.estimates["sensitivity"] == pytest.approx(theirs.params[0], rel=1e-6)
    assert ours.log_likelihood == pytest.approx(theirs.llf, rel=1e-9)
    assert ours.standard_errors()["sensitivity"] == pytest.approx(theirs.bse[0], rel=1e-6)
    z, p = data.outcomes.reshape(-1, 4), data.probs.reshape(-1, 4)
    sides = (z[: data.problems], p[: data.problems]), (z[data.problems :], p[data.problems :])
    count = np.bincount(data.problem, weights=data.response)
    both = np.stack([count, 5 - count], axis=1)
    theirs = api.GLM(both, gap, family=api.families.Binomial()).fit(tol=1e-14)
    counts = Choices.between(*sides, count, kind="counts", trials=np.full(data.problems, 5))
    ours = fit_prospect(counts, expected_value(), starts=1)
    assert ours.estimates["sensitivity"] == pytest.approx(theirs.params[0], rel=1e-6)
    assert ours.standard_errors()["sensitivity"] == pytest.approx(theirs.bse[0], rel=1e-6)
    theirs = api.GLM(count / 5, gap, family=api.families.Binomial()).fit(tol=1e-14, cov_type="HC0")
    ours = fit_prospect(Choices.between(*sides, count / 5, kind="rates"), expected_value(), starts=1)
    ratio = math.sqrt(data.problems / (data.problems - 1))
    assert ours.estimates["sensitivity"] == pytest.approx(theirs.params[0], rel=1e-6)
    assert ours.standard_errors()["sensitivity"] == pytest.approx(theirs.bse[0] * ratio, rel=1e-6)


def test_one_parameter_is_that_of_a_grid():
    """With two outcomes and gamma alone free, the estimate is the best point of a fine grid."""
    rng = np.random.default_rng(1)
    p = rng.uniform(0.02, 0.98, 400)
    risky = np.stack([np.full(400, 100.0), np.zeros(400)], 1), np.stack([p, 1 - p], 1)
    sure = rng.uniform(5, 95, (400, 1)), np.ones((400, 1))
    fixed = {"curvature": 0.88, "sensitivity": 0.2, "loss_aversion": 1.0, "loss.gamma": 0.7}
    model = Model(fixed=fixed)
    share = Likelihood(Choices.between(sure, risky, np.zeros(400)), model)
    chosen = rng.random(400) < share.predicted(share.coordinates({"gain.gamma": 0.6}))
    fit = fit_prospect(Choices.between(sure, risky, chosen), model, starts=2)
    gamma = np.linspace(0.3, 1.2, 9001)[:, None]
    perceived = p**gamma / (p**gamma + (1 - p) ** gamma) ** (1 / gamma)
    eta = 0.2 * (perceived * 100**0.88 - sure[0][:, 0] ** 0.88)
    total = -np.logaddexp(0, np.where(chosen, -eta, eta)).sum(1)
    assert fit.estimates["gain.gamma"] == pytest.approx(gamma[total.argmax(), 0], abs=0.6e-4)
    assert fit.log_likelihood >= total.max()
    assert fit.log_likelihood == pytest.approx(total.max(), abs=1e-3)


def moved(fit, other, *, factor=1.0, but=()):
    """The largest difference of estimates on the log scale, leaving out some."""
    return max(abs(math.log(other.estimates[n] / fit.estimates[n])) for n in fit.names if n not in but)


def test_orders_and_splits_move_nothing(data, fit):
    """Problems in another order, outcomes in another order or split, and options mirrored: the same estimates."""
    rng = np.random.default_rng(2)
    z, p = data.outcomes.reshape(-1, 4), data.probs.reshape(-1, 4)
    half = data.problems
    order = rng.permutation(half)
    place = np.argsort(order)
    turned = Choices.between(
        (z[:half][order], p[:half][order]),
        (z[half:][order], p[half:][order]),
        data.response,
        problem=place[data.problem],
    )
    columns = rng.permutation(4)
    shuffled = Choices.between(
        (z[:half][:, columns], p[:half][:, columns]), (z[half:], p[half:]), data.response, problem=data.problem
    )
    split = Choices.between(
        (np.hstack([z[:half], z[:half, :1]]), np.hstack([p[:half, :1] * 0.3, p[:half, 1:], p[:half, :1] * 0.7])),
        (z[half:], p[half:]),
        data.response,
        problem=data.problem,
    )
    mirrored = Choices.between((z[half:], p[half:]), (z[:half], p[:half]), 1 - data.response, problem=data.problem)
    for other in (turned, shuffled, split, mirrored):
        found = fit_prospect(other, starts=2)
        assert found.log_likelihood == pytest.approx(fit.log_likelihood, rel=1e-11)
        assert moved(fit, found) < 1e-5


def scaled(data, factor):
    z, p = data.outcomes.reshape(-1, 4) * factor, data.probs.reshape(-1, 4)
    half = data.problems
    return Choices.between((z[:half], p[:half]), (z[half:], p[half:]), data.response, problem=data.problem)


def test_the_unit_of_outcomes_moves_sensitivity_alone(data, fit):
    """In cents the sensitivity is that in dollars over 100**curvature, and nothing else moves."""
    found = fit_prospect(scaled(data, 100.0), starts=2)
    expected = fit.estimates["sensitivity"] * 100 ** -fit.estimates["curvature"]
    assert found.estimates["sensitivity"] == pytest.approx(expected, rel=1e-4)
    assert found.log_likelihood == pytest.approx(fit.log_likelihood, rel=1e-11)
    assert moved(fit, found, but=["sensitivity"]) < 1e-5


def test_with_two_curvatures_it_moves_loss_aversion_too(data):
    """By 100**(curvature of gains - that of losses), as theory has it."""
    model = Model(equal={})
    before, after = fit_prospect(data, model, starts=2), fit_prospect(scaled(data, 100.0), model, starts=2)
    gap = before.estimates["curvature"] - before.estimates["loss_curvature"]
    assert abs(gap) > 1e-3
    expected = before.estimates["loss_aversion"] * 100**gap
    assert after.estimates["loss_aversion"] == pytest.approx(expected, rel=1e-4)
    assert moved(before, after, but=["sensitivity", "loss_aversion"]) < 1e-5


def test_a_curvature_that_has_a_unit_moves_with_it(data):
    """With an exponential, curvature and sensitivity per cent are those per dollar over 100, and nothing else moves."""
    model = Model(value="exponential")
    before, after = fit_prospect(data, model, starts=2), fit_prospect(scaled(data, 100.0), model, starts=2)
    for name in ("curvature", "sensitivity"):
        assert after.estimates[name] * 100 == pytest.approx(before.estimates[name], rel=1e-4)
    assert moved(before, after, but=["curvature", "sensitivity"]) < 1e-5


def test_every_standard_model_comes_to_one_optimum(data):
    """At least half of the starts of each model agree to 1e-8, and cumulative models nest: more cannot fit worse."""
    fits = {title: fit_prospect(data, model, starts=4) for title, model in standard_models().items()}
    assert all(fit.starts.agreeing >= 2 for fit in fits.values())
    for weights in ("cumulative", "separable"):
        assert fits[f"{weights}, prelec"].log_likelihood >= fits[f"{weights}, prelec (one parameter)"].log_likelihood
        assert fits[f"{weights}, power"].log_likelihood >= fits["expected utility, power"].log_likelihood - 1e-6
    assert fits["expected utility, power"].log_likelihood > fits["expected value"].log_likelihood
    assert max(fits.values(), key=lambda fit: fit.log_likelihood).model.weights == "cumulative"


def test_bounds_are_named():
    """A gamma that data want below the monotone threshold sits on it, unless that is asked for."""
    data = answered(3, truth={**TRUTH, "gain.gamma": 0.2, "loss.gamma": 0.6}, model=Model(non_monotone=True))
    fit = fit_prospect(data, starts=3)
    assert fit.at_bound == {"gain.gamma": "lower"}
    assert fit.estimates["gain.gamma"] == pytest.approx(0.2792042)
    interval = fit.interval("gain.gamma")
    assert math.isnan(interval.low) and interval.why == "the estimate is on its lower bound"
    assert fit.interval("curvature").why == ""
    freed = fit_prospect(data, Model(non_monotone=True), starts=2)
    assert freed.estimates["gain.gamma"] < 0.27 and freed.log_likelihood > fit.log_likelihood


def test_other_responses():
    """Counts, rates by likelihood and by least squares, and certainty equivalents bring back what made them."""
    rng = np.random.default_rng(5)
    first, second = problems(rng, 400)
    empty = Likelihood(Choices.between(first, second, np.zeros(400)), Model())
    share = empty.predicted(empty.coordinates(TRUTH))
    counts = fit_prospect(
        Choices.between(first, second, rng.binomial(50, share), kind="counts", trials=np.full(400, 50)), starts=2
    )
    rates = Choices.between(first, second, share, kind="rates")
    exact = [fit_prospect(rates, starts=2), fit_prospect(rates, starts=2, objective="least squares")]
    sure = Likelihood(Choices.equivalents(first, np.zeros(400)), Model())
    mean = sure.predicted(sure.coordinates({**TRUTH, "noise": 1.0}))
    equivalents = fit_prospect(Choices.equivalents(first, mean + rng.normal(0, 2.0, 400)), starts=2)
    for name in ("curvature", "loss_aversion", "gain.gamma", "loss.gamma"):
        for fit in exact:
            assert fit.estimates[name] == pytest.approx(TRUTH[name], rel=1e-4)
        # Six standard errors: by Chebyshev, and far more so for a normal, no luck of a seed.
        for fit in (counts, equivalents):
            assert abs(fit.estimates[name] - TRUTH[name]) < 6 * fit.standard_errors()[name]
            assert fit.standard_errors()[name] < 0.2
    assert equivalents.estimates["noise"] == pytest.approx(2.0, rel=0.3)
    assert exact[1].squared_error < 1e-12 and math.isnan(exact[1].aic)
    told = exact[0].to_dict()
    assert math.isnan(exact[0].aic) and told["aic"] is told["bic"] is None  # of a quasi-likelihood
    for fit, other in ((equivalents, rates), (exact[0], equivalents.choices)):
        with pytest.raises(ValueError, match="choices must be of the kind that was fitted"):
            fit.predicted(other)
        with pytest.raises(ValueError, match="choices must be of the kind that was fitted"):
            fit.rows(other)


def test_separable_equivalents_of_bounded_values_are_those_of_another_optimiser():
    """Where weights sum to more than 1 a utility may have no sure outcome: no climb ends there, nor ends at one.

    The oracle: powers of probabilities, ``sure = -ln(1 - c u) / c``, infinite where ``c u >= 1``, and Nelder-Mead.
    """
    rng = np.random.default_rng(0)
    z, p = rng.uniform(1, 100, (60, 3)), rng.dirichlet([1, 1, 1], 60)

    def sure(curvature, exponent):
        share = (p**exponent * -np.expm1(-curvature * z)).sum(1)
        return -np.log1p(-share) / curvature if share.max() < 1 else np.full(60, math.inf)

    given = sure(0.02, 1.05) + rng.normal(0, 3, 60)

    def worse(at):
        curvature, exponent, noise = np.exp(at)
        off = given - sure(curvature, exponent)
        return (off**2).sum() / (2 * noise**2) + len(z) * (math.log(noise) + math.log(2 * math.pi) / 2)

    best = minimize(worse, np.log([0.01, 1.1, 5]), method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-12})
    model = Model(value="exponential", gain="power", loss="identity", weights="separable", fixed={"loss_aversion": 1})
    fit = fit_prospect(Choices.equivalents((z, p), given), model, starts=5)
    start = starting_points(fit.likelihood, 1, 0)[0]
    assert not np.isfinite(fit.likelihood.value(start + np.array([5, -1, 0])))  # such places are there
    assert fit.log_likelihood == pytest.approx(-best.fun, rel=1e-9)
    assert list(fit.estimates.values()) == pytest.approx(np.exp(best.x), rel=1e-4)


def test_a_climb_that_ends_beside_infinite_equivalents_has_no_optimum():
    """There is no second derivative there; the search for one had ended in an exception of numpy's."""
    rng = np.random.default_rng(0)
    z, p = rng.uniform(1, 100, (60, 3)), rng.dirichlet([1, 1, 1], 60)
    given = -np.log1p(-(p**1.05 * -np.expm1(-0.02 * z)).sum(1)) / 0.02 + rng.normal(0, 3, 60)
    z, p = np.vstack([z, [[3e3] * 3]]), np.vstack([p, [[1 / 3] * 3]])
    model = Model(value="exponential", gain="power", loss="identity", weights="separable", fixed={"loss_aversion": 1})
    with pytest.raises(NotConverged, match="none of 1 starts"):
        fit_prospect(Choices.equivalents((z, p), np.append(given, 60.0)), model, starts=1)


def test_a_fit_that_does_not_converge_is_an_error(data, monkeypatch):
    """Where no start comes to an optimum nothing is returned."""
    from humanline.fit import optimum, straight

    monkeypatch.setattr(straight, "climb", lambda *args: optimum.score(*args, most=1))
    with pytest.raises(NotConverged, match=r"none of 3 starts .* took 1 steps"):
        fit_prospect(data, starts=3)


def test_choices_by_chance_have_an_optimum_too():
    """Where the model is far from right, so that scoring is slow, every start ends, and bounds are named."""
    rng = np.random.default_rng(0)
    first, second = problems(rng, 100)
    fit = fit_prospect(Choices.between(first, second, rng.random(100) < 0.5), starts=4)
    assert all(math.isfinite(value) for value in fit.starts.values) and fit.log_likelihood == max(fit.starts.values)
    assert {"loss_aversion", "gain.gamma"} <= fit.at_bound.keys()


def test_json_is_the_same_for_the_same_seed(data):
    """Two fits of one seed give the same bytes, which name all that was estimated, and no nan."""
    texts = [json.dumps(fit_prospect(data, starts=3, seed=7).to_dict(), allow_nan=False) for _ in range(2)]
    assert texts[0] == texts[1]
    assert json.loads(texts[0])["starts"]["seed"] == 7


def test_predictions_of_other_choices(data, fit):
    """A part of the data has, under the fit, its own rows of log-likelihoods and predictions."""
    part = data.take(data.person == 2, all_problems=True)
    np.testing.assert_array_equal(fit.rows(part), fit.rows()[data.person == 2])
    np.testing.assert_array_equal(fit.predicted(data.of_person(2)), fit.predicted()[data.person == 2])
    assert fit.value.curvature == fit.estimates["curvature"] and fit.loss.gamma == fit.estimates["loss.gamma"]


def test_nothing_free_is_no_fit_but_a_likelihood(data):
    """A model without free parameters has its likelihood."""
    model = expected_utility(fixed={"curvature": 1.0, "loss_aversion": 1.0, "sensitivity": 0.1})
    assert fit_prospect(data, model).log_likelihood == Likelihood(data, model).value(np.zeros(0))


@pytest.mark.parametrize(
    "model",
    [
        Model(),
        Model(gain="prelec", equal={}),
        Model(gain="neo-additive", weights="separable"),
        Model(value="exponential", gain="linear-in-log-odds", rule="probit"),
        Model(lapse=True, contextual=True),
    ],
    ids=lambda model: model.title,
)
def test_another_optimiser_comes_to_the_same_optimum(data, model):
    """Of three climbs of scipy's L-BFGS-B within the same bounds none ends higher, and the best as high to 1e-8."""
    fit = fit_prospect(data, model, starts=3)
    straight = Straight(fit.likelihood)

    def down(at):
        value, gradient, _ = straight.derivatives(at)
        return -value, -gradient

    settings = {"jac": True, "method": "L-BFGS-B", "bounds": list(zip(fit.low, fit.high, strict=True))}
    options = {"ftol": 1e-15, "gtol": 1e-8, "maxiter": 2000, "maxls": 60}
    begins = starting_points(fit.likelihood, 3, 0)
    found = [minimize(down, straight.there(begin), options=options, **settings) for begin in begins]
    assert -min(each.fun for each in found) == pytest.approx(fit.log_likelihood, rel=1e-8)


def test_a_perfect_prediction_is_no_fit():
    """Choices that a model predicts without error have no finite sensitivity: refused, unless that is fixed."""
    rng = np.random.default_rng(0)
    first, second = problems(rng, 40)
    means = [(z * p).sum(1) for z, p in (first, second)]
    separable = Choices.between(first, second, (means[1] > means[0]).astype(float))
    with pytest.raises(NotIdentified, match="predicted without error: no finite sensitivity"):
        fit_prospect(separable, expected_value(), starts=2)
    fixed = {"curvature": 1.0, "loss_curvature": 1.0, "loss_aversion": 1.0, "sensitivity": 0.1}
    assert fit_prospect(separable, expected_value(fixed=fixed)).names == ()


def test_the_reference_point_moves_with_the_outcomes(data, fit):
    """Outcomes and reference point shifted by 1000 give the same estimates."""
    z, p = data.outcomes.reshape(-1, 4) + 1000, data.probs.reshape(-1, 4)
    half = data.problems
    moved_data = Choices.between((z[:half], p[:half]), (z[half:], p[half:]), data.response, problem=data.problem)
    found = fit_prospect(moved_data, starts=2, reference_point=1000.0)
    assert found.log_likelihood == pytest.approx(fit.log_likelihood, rel=1e-11)
    assert moved(fit, found) < 1e-5


def test_a_parameter_stays_within_the_bounds_of_what_equals_it(data):
    """Where gamma is equal to Prelec's alpha neither goes below the monotone threshold."""
    model = Model(gain="prelec", loss="tversky-kahneman", equal={"loss.gamma": "gain.alpha"})
    low, _ = bounds(Likelihood(data, model))
    assert math.exp(low[model.free().index("gain.alpha")]) == pytest.approx(0.2792042)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"starts": 0}, "starts must be a whole number >= 1"),
        ({"starts": 2.5}, "starts must be a whole number >= 1"),
        ({"start_from": {"gama": 1.0}}, "no such free parameter"),
        ({"start_from": {"curvature": -1.0}}, "curvature must be > 0"),
        ({"objective": "ls"}, "objective must be one of"),
        ({"reference_point": math.nan}, "reference_point must be finite"),
    ],
)
def test_wrong_settings(data, settings, said):
    """What cannot be a setting is refused with its name."""
    with pytest.raises(ValueError, match=said):
        fit_prospect(data, **settings)
    with pytest.raises(TypeError, match="model must be a Model"):
        fit_prospect(data, "prelec")


def test_a_start_of_ones_own(data, fit):
    """Values for the first start may be some of the free parameters."""
    assert moved(fit, fit_prospect(data, starts=1, start_from={"curvature": 1.1})) < 1e-5
