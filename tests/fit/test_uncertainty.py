"""Standard errors, profiles and the bootstrap, and the sentences where there is no interval."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import linalg, stats

from humanline.fit import Likelihood, Model, bootstrap, expected_value, fit_prospect, profile_interval
from humanline.fit.curves import drawn_parameters
from humanline.fit.parameters import capacity_of
from humanline.theory import NeoAdditive
from tests.helpers.choices import answered

SLIGHT = {"sensitivity": 0.03}  # so that many choices are errors


@pytest.fixture(scope="module")
def fit():
    return fit_prospect(answered(0, 150, 4), starts=2)


def test_covariances_by_plain_loops(fit):
    """The inverse observed information, and the sandwich of scores alone, by problem and by person."""
    at, data = fit.coordinates, fit.choices
    bread = np.linalg.inv(-fit.likelihood.hessian(at))
    np.testing.assert_allclose(fit.covariance(), bread, rtol=1e-6)
    scores = fit.likelihood.scores(at)[1]
    meat = sum(np.outer(each, each) for each in scores) * len(data) / (len(data) - 1)
    np.testing.assert_allclose(fit.covariance("robust"), bread @ meat @ bread, rtol=1e-6)
    whole = fit.likelihood.derivatives(at)[2]
    turn = linalg.sqrtm(whole).real
    meat = np.zeros((5, 5))
    for problem in range(data.problems):
        total = scores[data.problem == problem].sum(0)
        own = Likelihood(data.take(data.problem == problem), fit.model).derivatives(at)[2]
        share = np.linalg.inv(turn) @ own @ np.linalg.inv(turn)
        corrected = turn @ np.linalg.inv(linalg.sqrtm(np.eye(5) - share).real) @ np.linalg.inv(turn) @ total
        meat += np.outer(corrected, corrected)
    np.testing.assert_allclose(fit.covariance("problem"), bread @ meat @ bread, rtol=1e-5)
    assert np.diag(fit.correlations()) == pytest.approx(np.ones(5))
    errors = np.sqrt(np.diag(fit.covariance()))
    assert fit.standard_errors()["curvature"] == pytest.approx(errors[0] * fit.estimates["curvature"])


def test_too_few_clusters_have_no_interval(fit):
    """Four people are no more than five parameters: nan, and a sentence."""
    assert np.isnan(fit.covariance("person")).all()
    interval = fit.interval("curvature", kind="person")
    assert math.isnan(interval.low) and "4 clusters" in interval.why


def test_intervals_are_made_on_the_log_scale(fit):
    """Their ends are the estimate times and over the same factor."""
    for name in fit.names:
        interval = fit.interval(name, confidence=0.9)
        at = fit.estimates[name]
        assert interval.high / at == pytest.approx(at / interval.low)
        error = math.sqrt(fit.covariance()[fit.names.index(name), fit.names.index(name)])
        assert math.log(interval.high / at) == pytest.approx(1.6448536 * error, rel=1e-6)


def test_intervals_of_few_clusters_are_wider():
    """By Student's law with clusters less one degrees of freedom, as a library has it; others by the normal law."""
    fit = fit_prospect(answered(1, 60, 7, expected_value(), SLIGHT), expected_value(), starts=1)
    at = fit.estimates["sensitivity"]
    for kind, quantile in (("person", stats.t.ppf(0.975, 6)), ("problem", stats.t.ppf(0.975, 59)), ("robust", 1.96)):
        error = math.sqrt(fit.covariance(kind)[0, 0])
        assert math.log(fit.interval("sensitivity", kind=kind).high / at) == pytest.approx(quantile * error, rel=1e-4)
    drawn = [math.log(row["sensitivity"] / at) for row in drawn_parameters(fit, errors="person", draws=20_000)]
    share = np.mean(np.abs(drawn) < stats.t.ppf(0.975, 6) * math.sqrt(fit.covariance("person")[0, 0]))
    assert abs(share - 0.95) < 5 * math.sqrt(0.95 * 0.05 / 20_000)


@pytest.mark.slow  # 400 fits
def test_intervals_of_three_people_cover():
    """Clustered by person, of 400 data sets of identical people; by the normal law they would in less than .85."""
    covered = np.zeros(2)
    for seed in range(400):
        fit = fit_prospect(answered(seed, 40, 3, expected_value(), SLIGHT), expected_value(), starts=1)
        error, off = math.sqrt(fit.covariance("person")[0, 0]), fit.coordinates[0] - math.log(SLIGHT["sensitivity"])
        interval = fit.interval("sensitivity", kind="person")
        covered += interval.low < SLIGHT["sensitivity"] < interval.high, abs(off) < 1.959964 * error
    assert covered[0] >= stats.binom.ppf(1e-4, 400, 0.95) and covered[1] < 0.85 * 400, covered


def test_ends_of_intervals_are_values_that_a_parameter_can_have():
    """A slope and a share are at most 1, and so is a lapse rate, whatever the error."""
    model = Model(gain="neo-additive", lapse=True)
    fit = fit_prospect(answered(2, 40, 3), model, starts=2)
    some = [name for name in fit.names if name == "lapse" or "." in name]
    ends = [fit.interval(name, confidence=level) for name in some for level in (0.8, 0.95, 0.99, 0.999)]
    assert all(one.why or one.high <= 1.0 for one in ends) and any(one.high == 1.0 for one in ends)


def test_a_slope_of_one_is_no_error():
    """Nothing is distorted there: where a derivative's step leads beyond, the capacity stays that one."""
    beyond = capacity_of(NeoAdditive, {"slope": 1 + 1e-5, "share": 0.5})
    assert (beyond.slope, beyond.intercept) == (1.0, 0.0)
    several = capacity_of(NeoAdditive, {"slope": np.array([0.5, 1 + 1e-5]), "share": np.array([0.5, 0.5])})
    np.testing.assert_array_equal(several.slope, [0.5, 1.0])
    np.testing.assert_array_equal(several.intercept, [0.25, 0.0])
    truth = {"curvature": 0.9, "loss_aversion": 1.5, "sensitivity": 0.1}
    truth |= {f"{side}.{name}": value for side in ("gain", "loss") for name, value in (("slope", 1.0), ("share", 0.5))}
    likelihood = Likelihood(answered(3, 50, 2), Model(gain="neo-additive"))
    assert np.isfinite(likelihood.hessian(likelihood.coordinates(truth))).all()


def test_ends_of_profiles_lose_half_a_quantile(fit):
    """Fitted again with the parameter held at an end, the log-likelihood is 1.92 lower, for both ends."""
    for name in ("loss_aversion", "gain.gamma"):
        interval = profile_interval(fit, name)
        assert interval.low < fit.estimates[name] < interval.high and interval.why == ""
        for end in (interval.low, interval.high):
            held = fit_prospect(fit.choices, Model(fixed={name: end}), starts=2)
            assert fit.log_likelihood - held.log_likelihood == pytest.approx(3.841458820694124 / 2, rel=1e-4)


def test_flat_profiles_have_no_end_but_a_sentence():
    """Lapses that these choices do not show have an estimate on the bound, or a profile without a lower end."""
    fit = fit_prospect(answered(1, 150, 4), Model(lapse=True), starts=3)
    interval = profile_interval(fit, "lapse")
    assert math.isnan(interval.low)
    assert "bound" in interval.why


def test_the_bootstrap_varies_as_the_errors_say():
    """Over problems it has a spread near that of clustered errors; the same seed gives the same draws."""
    fit = fit_prospect(answered(2, 200, 3), expected_value(), starts=1)
    found, again = (bootstrap(fit, draws=200, seed=3) for _ in range(2))
    np.testing.assert_array_equal(found.coordinates, again.coordinates)
    error = math.sqrt(fit.covariance("problem")[0, 0])
    # The spread of 200 draws is within 5/sqrt(2 * 200) of its mean, five of its standard errors.
    assert math.sqrt(found.covariance[0, 0]) == pytest.approx(error, rel=0.25 + 0.05)
    interval = found.interval("sensitivity")
    assert interval.low < fit.estimates["sensitivity"] < interval.high and found.failed == 0


def test_the_bootstrap_over_people_draws_people():
    """Each draw is a fit to the choices of whole people; another seed gives other draws."""
    fit = fit_prospect(answered(3, 40, 6), expected_value(), starts=1)
    found, other = (bootstrap(fit, by="person", draws=20, seed=seed) for seed in (0, 1))
    assert (found.coordinates != other.coordinates).any() and found.failed == 0
    people = np.random.default_rng(0).integers(6, size=6)
    data = fit.choices
    rows = np.concatenate([np.flatnonzero(data.person == each) for each in people])
    alone = fit_prospect(data.take(rows), expected_value(), starts=1)
    assert found.coordinates[0] == pytest.approx(alone.coordinates, rel=1e-7)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda fit: fit.interval("gain.gama"), "did you mean gain.gamma"),
        (lambda fit: fit.interval("curvature", confidence=95), "strictly between 0 and 1"),
        (lambda fit: fit.covariance("sandwich"), "kind must be one of"),
        (lambda fit: bootstrap(fit, draws=1), "draws must be >= 2"),
        (lambda fit: bootstrap(fit, by="person"), None),
        (lambda fit: bootstrap(fit, by="people"), "by must be one of"),
    ],
)
def test_wrong_questions(fit, call, said):
    """A name, a confidence or a kind that is none is refused with what there is."""
    if said is None:
        one = fit_prospect(fit.choices.of_person(0), expected_value())
        with pytest.raises(ValueError, match="have two units or more to draw from; these data have 1"):
            call(one)
        return
    with pytest.raises(ValueError, match=said):
        call(fit)


def test_least_squares_has_errors_of_its_own_residuals():
    """The covariance is that of the residuals: twice the responses' error gives twice the standard error."""
    from humanline.fit import Choices
    from tests.helpers.choices import TRUTH, problems

    rng = np.random.default_rng(6)
    first, second = problems(rng, 300)
    empty = Likelihood(Choices.between(first, second, np.zeros(300)), Model())
    share = empty.predicted(empty.coordinates(TRUTH))
    noise = rng.choice([-1.0, 1.0], 300) * np.minimum(share, 1 - share)
    errors = []
    for size in (1e-3, 2e-3):
        rates = Choices.between(first, second, share + size * noise, kind="rates")
        errors.append(fit_prospect(rates, starts=1, objective="least squares").standard_errors()["gain.gamma"])
    assert errors[1] / errors[0] == pytest.approx(2.0, rel=0.01)
    assert fit_prospect(rates, starts=1, objective="least squares").usual_kind == "robust"
    with pytest.raises(ValueError, match="bare rates have none"):
        profile_interval(fit_prospect(rates, starts=1), "gain.gamma")


def test_bare_rates_have_robust_errors():
    """A share is no choice: what is shown unless asked is the sandwich, which follows the noise of the shares."""
    from humanline.fit import Choices
    from tests.helpers.choices import TRUTH, problems

    rng = np.random.default_rng(7)
    first, second = problems(rng, 300)
    empty = Likelihood(Choices.between(first, second, np.zeros(300)), Model())
    share = np.clip(empty.predicted(empty.coordinates(TRUTH)) + rng.normal(0, 0.02, 300), 0, 1)
    fit = fit_prospect(Choices.between(first, second, share, kind="rates"), starts=1)
    assert fit.usual_kind == "robust" and fit.standard_errors() == fit.standard_errors("robust")
    assert fit.standard_errors()["gain.gamma"] < fit.standard_errors("information")["gain.gamma"] / 3
    assert fit.interval("gain.gamma") == fit.interval("gain.gamma", kind="robust")


def test_an_interval_beyond_both_bounds_is_none():
    """Where choices hardly tell a parameter there is a sentence in place of an interval from 0 to infinity."""
    data = answered(0, 60, 2)
    fit = fit_prospect(data, Model(gain="exponential-power", weights="separable", lapse=True), starts=2)
    wide = [fit.interval(name, confidence=0.999999999999) for name in fit.names if name not in fit.at_bound]
    told = [one for one in wide if one.why]
    assert told and all(math.isnan(one.low) and "beyond both bounds" in one.why for one in told)


def test_a_profile_above_the_fit_is_said(fit):
    """A fit that is not the best optimum has no profile, but a sentence."""
    import dataclasses

    worse = dataclasses.replace(fit, log_likelihood=fit.log_likelihood - 5, coordinates=fit.coordinates + 0.05)
    assert "fit again with more starts" in profile_interval(worse, "curvature").why


def test_a_profile_that_gets_lost_is_said(fit, monkeypatch):
    """Where the other parameters come to no optimum there is no end, but a sentence."""
    from humanline.fit import optimum, straight

    monkeypatch.setattr(straight, "climb", lambda *args: optimum.score(*args, most=0))
    interval = profile_interval(fit, "curvature")
    assert math.isnan(interval.high) and "no optimum of the others was found" in interval.why
