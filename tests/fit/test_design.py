"""What problems identify is said before data are collected, and is what data then give."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from humanline.fit import Likelihood, Model, fit_prospect
from humanline.fit.design import Design, design_check
from humanline.fit.simulate import simulate_choices
from tests.helpers.choices import TRUTH, problems

OPTIONS = problems(np.random.default_rng(5), 12, most=3)
GAINS = Model(fixed={"loss_aversion": 1.0, "loss.gamma": 0.7})


def observed(data):
    likelihood = Likelihood(data, Model())
    return -likelihood.hessian(likelihood.coordinates(TRUTH))


def test_expected_information_is_the_mean_of_the_observed():
    """Over 100 replications, within Hoeffding's bound; and exactly where rates are the probabilities.

    Observed information is straight in the responses: each choice moves it by a problem's own D, of either sign.
    """
    n, times = 40_000, 100
    design = design_check(OPTIONS, values=TRUTH, n=n)
    made = simulate_choices(Model(), OPTIONS, values=TRUTH, n=n, kind="counts", people=times, seed=6)
    p = design.likelihood.predicted(design.coordinates)
    counts = dataclasses.replace(
        made, problem=made.problem[:12], trials=made.trials[:12], person=made.person[:12], response=n * p
    )
    np.testing.assert_allclose(observed(counts), design.information, atol=1e-6 * np.abs(design.information).max())
    squares = np.zeros((5, 5))
    for each in range(12):
        one = counts.take([each])
        ends = [observed(dataclasses.replace(one, response=np.array([end]))) for end in (0.0, float(n))]
        squares += n * ((ends[1] - ends[0]) / n) ** 2
    rows = made.response.reshape(times, 12)
    mean = np.mean([observed(dataclasses.replace(counts, response=row)) for row in rows], 0)
    bound = np.sqrt(math.log(2 * 15 / 1e-6) / 2 * squares / times)  # 15 distinct entries
    assert (np.abs(mean - design.information) < bound + 1e-7 * design.information.max()).all()
    scale = np.sqrt(np.diag(design.information))
    assert np.median(bound / np.outer(scale, scale)) < 0.1  # so that the bound says something


@pytest.mark.slow
def test_estimates_spread_as_expected():
    """Over 300 data sets the variance of each estimate is the expected one, within Bonferroni's chi-square bounds."""
    from scipy.stats import chi2

    options = problems(np.random.default_rng(8), 80)
    design = design_check(options, values=TRUTH, n=100)
    logs = []
    for seed in range(300):
        fit = fit_prospect(simulate_choices(Model(), options, values=TRUTH, n=100, seed=seed, kind="counts"), starts=1)
        logs.append(fit.coordinates)
    ratio = np.var(logs, axis=0, ddof=1) / np.diag(design.covariance) * 299
    # A twentieth is left for what normal theory misses at this size.
    assert (ratio > chi2.ppf(1e-4, 299) * 0.95).all() and (ratio < chi2.ppf(1 - 1e-4, 299) * 1.05).all()


def test_errors_fall_with_the_root_of_n_and_sums_are_what_they_should_be():
    """Four times the choices halve all errors; what problems add sums to the parameters, or to 1 for one of them."""
    one, four = (design_check(OPTIONS, values=TRUTH, n=n) for n in (25, 100))
    for name in TRUTH:
        assert one.standard_errors[name] == pytest.approx(2 * four.standard_errors[name])
        assert one.adds(name) @ one.n == pytest.approx(1)
        assert one.needed(name, four.standard_errors[name]) == pytest.approx(four.n.sum())
    assert one.adds() @ one.n == pytest.approx(5)
    np.testing.assert_allclose(one.covariance, np.linalg.inv(one.information), rtol=1e-6)
    assert one.condition == pytest.approx(four.condition) and one.flat == () and one.faults == ()


def test_the_problem_that_adds_most_does():
    """One more choice of a problem lowers a variance by what was said, to first order."""
    number = np.full(12, 500.0)
    design = design_check(OPTIONS, values=TRUTH, n=number)
    (best, adds), *_ = design.most(12, "gain.gamma")
    place = list(TRUTH).index("gain.gamma")
    shares = []
    for each in range(12):
        more = design_check(OPTIONS, values=TRUTH, n=number + (np.arange(12) == each))
        shares.append(1 - more.covariance[place, place] / design.covariance[place, place])
    assert int(np.argmax(shares)) == best
    np.testing.assert_allclose(shares, design.adds("gain.gamma"), rtol=0.05)
    assert adds == pytest.approx(max(design.adds("gain.gamma")))


def test_a_design_without_losses_is_told():
    """Loss aversion and the capacity of losses are named, are flat alone, and leave the rest as it is."""
    first = (
        [[40.0, 0.0], [90.0, 10.0], [60.0, 20.0], [10.0, 5.0], [70.0, 0.0]],
        [[0.5, 0.5], [0.1, 0.9], [0.8, 0.2]] + [[0.3, 0.7]] * 2,
    )
    second = [[18.0], [20.0], [45.0], [6.0], [22.0]], [[1.0]] * 5
    design = design_check((first, second), n=100)
    assert sorted(fault.column for fault in design.faults) == ["loss.gamma", "loss_aversion"]
    assert design.flat == ({"loss_aversion": 1.0}, {"loss.gamma": 1.0})
    errors = design.standard_errors
    assert math.isnan(errors["loss.gamma"]) and math.isnan(errors["loss_aversion"]) and math.isinf(design.condition)
    alone = design_check((first, second), GAINS, values={name: design.values[name] for name in GAINS.free()}, n=100)
    for name in GAINS.free():
        assert errors[name] == pytest.approx(alone.standard_errors[name])
    assert np.isnan(design.adds("loss_aversion")).all() and design.adds() @ design.n == pytest.approx(3)
    said = "\n".join(design.told())
    assert "loss_aversion must be fixed, as no outcome is a loss" in said and "not determined" in said


def test_a_design_with_equal_probabilities_is_told():
    """Where all probabilities are 1/2, gamma cannot be told from sensitivity."""
    rng = np.random.default_rng(2)
    z = rng.integers(1, 100, (2, 30, 2)).astype(float)
    half = np.full((30, 2), 0.5)
    design = design_check(((z[0], half), (z[1], half)), GAINS)
    assert [fault.column for fault in design.faults] == ["gain.gamma"]
    assert "1 different probabilities strictly between 0 and 1" in "\n".join(design.told())


def test_a_combination_that_cannot_be_told_is_named_with_its_direction():
    """With one size of outcome x, sensitivity x^curvature is one number: d ln s = -curvature ln(x) d ln curvature."""
    rng = np.random.default_rng(1)
    p = rng.uniform(0.05, 0.95, (2, 200))
    z = np.tile([50.0, 0.0], (200, 1))
    options = (z, np.stack([p[0], 1 - p[0]], 1)), (z, np.stack([p[1], 1 - p[1]], 1))
    design = design_check(options, GAINS, values={"curvature": 0.9, "gain.gamma": 0.6, "sensitivity": 0.2}, n=10)
    (direction,) = design.flat
    assert set(direction) == {"curvature", "sensitivity"}
    slope = direction["sensitivity"] / direction["curvature"]
    assert slope == pytest.approx(-0.9 * math.log(50), rel=1e-4)
    assert math.isfinite(design.standard_errors["gain.gamma"])
    assert [fault.column for fault in design.faults] == ["curvature and sensitivity"]


def test_problems_that_nobody_answers_say_nothing():
    """Where n is 0 a problem adds no information, and only the others count for what can be told."""
    number = np.where(np.arange(12) < 4, 100, 0)
    design = design_check(OPTIONS, values=TRUTH, n=number)
    assert "problems" in [fault.column for fault in design.faults]
    assert (design.by_problem.shape, design.n.sum()) == ((12, 5, 5), 400)


def test_certainty_equivalents_can_be_planned():
    """With equivalents the information is that of a normal: the error of the noise is noise / sqrt(2 n)."""
    values = {name: TRUTH[name] for name in list(TRUTH)[:4]} | {"noise": 2.0}
    design = design_check(OPTIONS[0], values=values, n=10, kind="equivalents")
    assert design.standard_errors["noise"] == pytest.approx(2 / math.sqrt(2 * 120))


@pytest.mark.parametrize("n", [-1, np.nan, 0])
def test_numbers_that_are_none(n):
    """Choices cannot be fewer than none, or none at all."""
    with pytest.raises(ValueError, match="n must be"):
        design_check(OPTIONS, n=n)


def test_flat_directions_do_not_hang_on_how_their_span_is_turned():
    """Any basis of a span gives the same directions, with as few names each as can be."""
    from humanline.fit.design import _reduced

    plain = np.array([[0.0, 1, 0, 0, 0], [-0.5, 0, 0, 2, 1.0]])
    for seed in range(5):
        turned = np.linalg.qr(np.random.default_rng(seed).normal(size=(2, 2)))[0] @ plain
        np.testing.assert_allclose(_reduced(turned), [[1, 0, 0, -4, -2], [0, 1, 0, 0, 0]], atol=1e-12)


@pytest.mark.parametrize("upper", [1 + 1e-12, 1 - 1e-12])
def test_the_most_correlated_are_named_in_the_order_of_the_model(upper, monkeypatch):
    """Whichever of two entries that are equal but for rounding is the larger."""
    found = np.eye(5)
    found[1, 4], found[4, 1] = -0.9 * upper, -0.9
    monkeypatch.setattr(Design, "correlations", found)
    told = design_check(OPTIONS, values=TRUTH, n=100).told()
    assert "most correlated: the estimates of loss_aversion and sensitivity, -0.90" in told
