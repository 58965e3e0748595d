"""Models compared: on what they had not seen, with errors over units, Holm, and a verdict of no difference."""

from __future__ import annotations

import math
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

import humanline.fit.compare as compare
from humanline.fit import (
    Choices,
    Model,
    NotConverged,
    compare_models,
    expected_utility,
    expected_value,
    fit_prospect,
    simulate_choices,
    standard_models,
)
from humanline.fit.folds import cross_validate, fold_of, units_of
from humanline.fit.formats import read_choices
from humanline.fit.shown import comparison_lines
from tests.conftest import ROOT
from tests.helpers.choices import TRUTH, answered, problems
from tests.helpers.pages import tables

#: Titles of models that docs/fitting.md tells of.
PAGE = {
    "expected value": "expected value",
    "expected utility": "expected utility, power",
    "separable, Prelec with one parameter (the best)": "separable, prelec (one parameter)",
    "cumulative, Tversky-Kahneman": "cumulative, tversky-kahneman",
}
CPC18 = ROOT.parent / "shared" / "data" / "cpc18-estimation.csv"
STRONG = {"curvature": 0.7, "loss_aversion": 2.0, "gain.gamma": 0.45, "loss.gamma": 0.5, "sensitivity": 1.0}
FEW = {"value": expected_value(), "utility": expected_utility(), "prospect": Model()}


@pytest.fixture(scope="module")
def weighed():
    """Choices of people who weigh probabilities strongly, and their comparison."""
    data = answered(1, 200, 8, truth=STRONG)
    return data, compare_models(data, FEW, folds=5, starts=3)


def test_what_made_the_choices_is_found_better(weighed):
    """Where choices come from prospect theory far from expected value, it is better, and told from all others."""
    found = weighed[1]
    rows = {row.title: row for row in found.rows}
    assert rows["prospect"].verdict == "better" and found.best.title == "prospect"
    assert found.alike == () and ("prospect", "value") in found.separated and found.pairs == 3
    assert found.units == 200 and found.measure == "log-loss" and rows["value"].verdict == ""


def test_differences_and_errors_are_those_of_sums_over_problems(weighed):
    """The difference is of mean losses of held-out answers, its error that of sums over problems, by hand."""
    data, found = weighed
    rows = {row.title: row for row in found.rows}
    off = rows["value"].held_out.log_likelihood - rows["prospect"].held_out.log_likelihood
    sums = np.array([off[data.problem == problem].sum() for problem in range(data.problems)])
    counts = np.array([(data.problem == problem).sum() for problem in range(data.problems)])
    mean = sums.sum() / counts.sum()
    spread = sums - mean * counts
    error = math.sqrt(len(sums) / (len(sums) - 1) * (spread**2).sum()) / counts.sum()
    assert (rows["prospect"].difference.mean, rows["prospect"].difference.error) == pytest.approx((mean, error))
    assert rows["prospect"].difference.degrees == 199
    assert rows["prospect"].loss - rows["value"].loss == pytest.approx(mean)


def test_what_is_held_out_was_not_fitted(weighed):
    """Each answer's score is that of a fit to the other folds, and no problem is in two."""
    data, found = weighed
    fold = fold_of(units_of(data, "problem"), 5, 0)
    assert all(len(set(fold[data.problem == problem])) == 1 for problem in range(data.problems))
    assert sorted(np.bincount(fold)) == [320] * 5
    held = fold == 2
    other = fit_prospect(data.take(~held), FEW["utility"])
    mine = next(row for row in found.rows if row.title == "utility").held_out.log_likelihood[held]
    assert mine == pytest.approx(other.rows(data)[held], abs=1e-5)


def test_people_can_be_held_out():
    """By person, all answers of a person are in one fold, and the error is over people."""
    data = answered(2, 60, 12, truth=STRONG)
    found = compare_models(data, {name: FEW[name] for name in ("value", "utility")}, by="person", folds=4, starts=2)
    fold = fold_of(units_of(data, "person"), 4, 0)
    assert found.units == 12 and found.rows[1].difference.degrees == 11
    assert all(len(set(fold[data.person == person])) == 1 for person in range(12))


def test_the_same_model_under_another_name_is_not_distinguishable():
    """A difference of rounding is none, however sure its sign: p is 1, and the verdict says so."""
    data = answered(3, 60, 6)
    same = expected_utility(fixed={"curvature": 1.0, "loss_aversion": 1.0})
    found = compare_models(data, {"value": expected_value(), "again": same}, folds=3, starts=2)
    assert found.rows[1].p == 1.0 and found.rows[1].verdict == "not distinguishable" and found.separated == ()


def test_little_data_make_no_model_better():
    """Of few choices that follow expected value no model is better than it, and a sentence says how little is known."""
    data = answered(4, 40, 5, model=expected_value(), truth={"sensitivity": 0.05})
    found = compare_models(data, FEW, folds=5, starts=3)
    for row in found.rows[1:]:
        assert row.verdict != "better"
        assert row.difference.interval(0.95).excludes_zero is False or row.verdict == "worse"
    said = "\n".join(comparison_lines(found, source="made"))
    assert "40 problems cannot separate most of these models: of 3 pairs" in said
    assert "not distinguishable from value" in said.lower()


def test_a_verdict_needs_an_interval_without_zero(weighed):
    """What Holm calls better or worse has an interval of its own that leaves out 0."""
    for row in weighed[1].rows[1:]:
        assert row.adjusted >= row.p
        if row.verdict != "not distinguishable":
            assert row.difference.interval(0.95).excludes_zero


def test_criteria_of_a_likelihood_are_the_usual_ones(weighed):
    """AIC and BIC of choices are those of the fit to all data."""
    for row in weighed[1].rows:
        assert (row.aic, row.bic) == pytest.approx((row.fit.aic, row.fit.bic)) and weighed[1].dispersion == 1.0


def test_rates_are_scored_by_squared_error_and_quasi_criteria():
    """Of bare rates the loss is the squared error, and the log-likelihood is divided by their dispersion."""
    rng = np.random.default_rng(5)
    first, second = problems(rng, 80)
    empty = Choices.between(first, second, np.zeros(80))
    p = fit_prospect(answered(1, 80, 3), starts=2).predicted(empty)
    data = Choices.between(first, second, rng.binomial(20, p) / 20, kind="rates")
    found = compare_models(data, FEW, folds=4, starts=3, noise=np.full(80, 0.01))
    best = next(row for row in found.rows if row.title == "prospect")
    predicted = best.fit.predicted()
    pearson = ((data.response - predicted) ** 2 / (predicted * (1 - predicted))).sum() / (80 - 5)
    assert found.measure == "squared error" and found.dispersion == pytest.approx(pearson)
    assert best.aic == pytest.approx(2 * 5 - 2 * best.fit.log_likelihood / pearson)
    assert best.loss == pytest.approx(
        best.held_out.squared_error.mean()
    ) and found.floor.squared_error == pytest.approx(0.01)
    assert "QAIC" in "\n".join(comparison_lines(found, source="made"))


def foretold(names, response, predicted):
    """A fit of rates of which only what its dispersion needs is there."""
    choices = SimpleNamespace(kind="rates", response=np.array(response), trials=np.ones(len(response)))
    likelihood = SimpleNamespace(objective="likelihood")
    return SimpleNamespace(names=names, choices=choices, likelihood=likelihood, predicted=lambda: np.array(predicted),
                           log_likelihood=-3.0), None  # fmt: skip


def test_the_dispersion_of_rates_that_are_foretold_for_certain():
    """A rate of 0 or 1 that was foretold so adds nothing; one that was not makes it infinite; the least number counts.

    By hand: ((.5 - .25)**2 / (.25 * .75) + (.75 - .5)**2 / .25) / (4 - 1) = 7/36.
    """
    good = foretold("a", [0.0, 1.0, 0.5, 0.75], [0.0, 1.0, 0.25, 0.5])
    never = foretold("a", [0.1, 1.0, 0.5, 0.75], [0.0, 1.0, 0.25, 0.5])
    without = foretold("abcd", [0.0, 1.0, 0.5, 0.75], [0.0, 1.0, 0.25, 0.5])  # as many parameters as responses
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert compare._dispersion({"one": good}) == pytest.approx(7 / 36)
        for fits in ({"one": never, "two": good}, {"one": good, "two": never}):
            assert compare._dispersion(fits) == pytest.approx(7 / 36)
        assert compare._dispersion({"one": never}) == math.inf
        assert math.isnan(compare._dispersion({"one": without}))
    for dispersion in (math.inf, math.nan, 0.0):
        assert np.isnan(compare._criteria(good[0], dispersion)).all()
    assert compare._criteria(good[0], 2.0)[0] == pytest.approx(2 - 2 * -3.0 / 2.0)


def test_least_squares_have_criteria_of_normal_errors():
    """With least squares AIC is n ln(mean squared error) + 2 (K + 1)."""
    data = answered(6, 40, 4)
    found = compare_models(data, {"value": FEW["value"]}, folds=4, starts=2, objective="least squares")
    row = found.rows[0]
    assert row.aic == pytest.approx(160 * math.log(row.fit.squared_error) + 4)
    assert row.bic == pytest.approx(160 * math.log(row.fit.squared_error) + 2 * math.log(160))


def test_least_squares_of_counts_have_as_many_normal_errors_as_shares():
    """Of counts AIC and BIC differ between models as scipy's normal law of variance s^2 / n for each share says.

    A share of 500 choices is one number with an error of its own, not 500 of them.
    """
    data = simulate_choices(Model(), problems(np.random.default_rng(3), 40), values=TRUTH, n=500, kind="counts", seed=1)
    found = compare_models(data, FEW, folds=4, starts=2, objective="least squares")
    share, n, theirs = data.response / data.trials, data.trials, []
    for row in found.rows:
        off = share - row.fit.predicted()
        spread = np.sqrt(np.mean(n * off**2) / n)
        numbers = len(row.fit.names) + 1
        least = -2 * stats.norm(0, spread).logpdf(off).sum()
        theirs.append((least + 2 * numbers, least + math.log(40) * numbers))
    mine = np.array([(row.aic, row.bic) for row in found.rows])
    assert np.diff(mine, axis=0) == pytest.approx(np.diff(theirs, axis=0), rel=1e-9)


def test_models_that_these_data_do_not_determine_are_named():
    """Of gains alone, models with loss aversion have no row: the table says which, and why."""
    rng = np.random.default_rng(7)
    first, second = ((rng.integers(1, 90, (60, 2)).astype(float), np.tile([q, 1 - q], (60, 1))) for q in (0.3, 0.7))
    data = Choices.between(first, second, rng.integers(0, 2, 60))
    found = compare_models(data, FEW, folds=3, starts=2)
    assert [row.title for row in found.rows] == ["value"] and set(found.missing) == {"utility", "prospect"}
    assert found.not_converged == ()
    said = "\n".join(comparison_lines(found, source="gains"))
    assert "Not in the table: utility cannot be fitted to these data" in said and "loss_aversion must be fixed" in said
    with pytest.raises(ValueError, match="the baseline, prospect, has no fit"):
        compare_models(data, FEW, baseline="prospect", folds=3, starts=2)


def test_a_model_that_foretells_infinite_equivalents_is_named():
    """Its loss is no number: what had been said of that was 'numerators must be finite; got nan'."""
    rng = np.random.default_rng(0)
    z, p = rng.uniform(1, 40, (40, 3)), rng.dirichlet([1, 1, 1], 40)
    given = -np.log1p(-(p**0.9 * -np.expm1(-0.02 * z)).sum(1)) / 0.02 + rng.normal(0, 1, 40)
    z, p = np.vstack([z, [[250.0, 225.0, 200.0]]]), np.vstack([p, [[1 / 3] * 3]])
    settings = {"gain": "power", "loss": "identity", "weights": "separable", "fixed": {"loss_aversion": 1}}
    models = {value: Model(value=value, **settings) for value in ("power", "exponential")}
    data = Choices.equivalents((z, p), np.append(given, 230.0))
    found = compare_models(data, models, folds=4, starts=2)
    assert [row.title for row in found.rows] == ["power"] and found.not_converged == ()
    assert "infinite certainty equivalents are foretold of 1 of 41 responses" in found.missing["exponential"]


@pytest.mark.parametrize("where", ["all data", "a fold"])
def test_a_model_that_did_not_converge_is_named(monkeypatch, where):
    """A model without an optimum, for all data or for one fold, is no row; it is named with the reason."""
    data = answered(8, 40, 4)
    real = fit_prospect

    def failing(given, model, **how):
        if model.title == "utility" and (where == "all data") == (len(given) == len(data)):
            raise NotConverged("none of 2 starts came to an optimum")
        return real(given, model, **how)

    monkeypatch.setattr("humanline.fit.compare.fit_prospect", failing)
    monkeypatch.setattr("humanline.fit.folds.fit_prospect", failing)
    found = compare_models(data, {name: FEW[name] for name in ("value", "utility")}, folds=4, starts=2)
    assert found.not_converged == ("utility",) and [row.title for row in found.rows] == ["value"]
    assert ("without fold 1 of 4" in found.missing["utility"]) == (where == "a fold")
    assert "Not in the table: utility did not converge" in "\n".join(comparison_lines(found, source="made"))


def test_a_fold_without_an_optimum_near_the_estimates_is_climbed_anew(monkeypatch):
    """Where the climb from the estimates of all data comes to none, the usual starts are tried."""
    data = answered(8, 40, 4)
    real, begun = fit_prospect, []

    def failing(given, model, **how):
        begun.append("start_from" in how)
        if "start_from" in how:
            raise NotConverged("lost")
        return real(given, model, **how)

    fit = real(data, FEW["utility"], starts=2)
    fold = fold_of(units_of(data, "problem"), 2, 0)
    wanted = cross_validate(fit, fold)
    monkeypatch.setattr("humanline.fit.folds.fit_prospect", failing)
    found = cross_validate(fit, fold)
    assert begun == [True, False] * 2 and found.log_likelihood == pytest.approx(wanted.log_likelihood, abs=1e-4)


def test_all_families_in_one_call():
    """By default expected value, expected utility, and separable and cumulative prospect theory of all families."""
    titles = list(standard_models())
    assert titles[0] == "expected value" and len(titles) == 18
    assert (
        sum(title.startswith("separable") for title in titles) == sum(t.startswith("cumulative") for t in titles) == 8
    )


def test_the_same_seed_gives_the_same(weighed):
    """Folds come from the seed alone."""
    data, found = weighed
    again = compare_models(data, FEW, folds=5, starts=3)
    assert [row.loss for row in again.rows] == [row.loss for row in found.rows]
    other = fold_of(units_of(data, "problem"), 5, 1)
    assert (other != fold_of(units_of(data, "problem"), 5, 0)).any()


def test_progress_counts_every_fit():
    """It goes from 0 to all fits, and never back."""
    said = []
    data = answered(9, 30, 4)
    compare_models(data, {"value": FEW["value"]}, folds=3, starts=2, progress=lambda *at: said.append(at))
    assert said[0] == (0, 4) and said[-1] == (4, 4) and sorted(said) == said


@pytest.mark.parametrize(
    "how,said",
    [
        ({"folds": 1}, "folds must be from 2 to the number of units, 30; got 1"),
        ({"folds": 31}, "folds must be from 2 to the number of units, 30; got 31"),
        ({"by": "trial"}, "by"),
        ({"baseline": "expected valu"}, "baseline"),
        ({"level": 1.0}, "level must lie strictly between 0 and 1; got 1.0"),
    ],
)
def test_what_cannot_be_asked(how, said):
    with pytest.raises(ValueError, match=said):
        compare_models(answered(9, 30, 2), FEW, **how)


def test_a_cross_validation_starts_from_the_fit(weighed):
    """Estimates of a fold are an optimum of that fold: another climb from usual starts ends at the same likelihood."""
    data = weighed[0]
    fit = fit_prospect(data, FEW["prospect"], starts=3)
    fold = fold_of(units_of(data, "problem"), 3, 4)
    found = cross_validate(fit, fold)
    again = fit_prospect(data.take(fold != 0, all_problems=True), FEW["prospect"], starts=6)
    assert found.log_likelihood[fold == 0] == pytest.approx(again.rows(data)[fold == 0], abs=1e-4)


def test_no_difference_where_an_error_is_not_known():
    """A single unit gives no error, and so no verdict."""
    from humanline.stats import Estimate

    assert compare.two_sided(Estimate(-3.0, math.inf, 0)) == 1.0
    assert compare.two_sided(Estimate(-2.0, 1.0, 1e9)) == pytest.approx(0.0455, abs=1e-4)


@pytest.mark.slow
@pytest.mark.skipif(not CPC18.exists(), reason="shared/data is not here")
def test_the_competition_of_2018():
    """Of 51 problems no model is told from expected value, in either part, and docs/fitting.md has the numbers."""
    (told,) = [rows for head, rows in tables(ROOT / "docs" / "fitting.md").items() if not head]
    for number, part in enumerate(read_choices(CPC18).parts):
        found = compare_models(part.choices, noise=part.noise)
        rows = {row.title: row for row in found.rows}
        for name, loss, difference, p in told if number == 0 else ():
            row = rows[PAGE[name]]
            assert f"{row.loss:.4f}".lstrip("0") == loss, name
            if difference:
                wanted = f"-{-row.difference.mean:.4f} ± {row.difference.error:.4f}".replace("0.", ".")
                assert (difference, p) == (wanted, f"{row.adjusted:.2f}".lstrip("0")), name
        assert not found.missing and {row.verdict for row in found.rows[1:]} == {"not distinguishable"}
        assert found.pairs == 153 and len(found.separated) <= 2
        said = "\n".join(comparison_lines(found, source="CPC18"))
        assert "51 problems cannot separate most of these models" in said
