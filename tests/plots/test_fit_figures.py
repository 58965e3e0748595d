"""Figures of a fit to choices: their rows hold what they draw, and are what the fit says."""

from __future__ import annotations

import numpy as np
import pytest

from humanline.fit import Choices, Model, fit_prospect
from humanline.fit.curves import Shown, by_problem, drawn_parameters
from humanline.plots import _table, fit_check, fit_curves
from tests.helpers.choices import answered


@pytest.fixture(scope="module")
def fit():
    return fit_prospect(answered(11, 60, 10), starts=2)


def test_curves_are_those_of_the_estimates(fit):
    """Fitted points are the capacities and the value function of the fit; bands lie around them."""
    table = _table.Table(fit_curves.rows(Shown(fit)))
    for side, capacity in (("gain", fit.gain), ("loss", fit.loss)):
        x, y = table.xy(side, "fitted")
        assert y == pytest.approx(capacity(x))
        low, high = (table.xy(side, name)[1] for name in ("low", "high"))
        inner = (x > 0.02) & (x < 0.98)
        assert (low <= high).all() and (high[inner] > low[inner]).any()
        covered = (low <= y + 1e-9) & (y <= high + 1e-9)
        assert covered.mean() > 0.95
    x, y = table.xy("value", "fitted")
    unit = table.setting("typical")
    assert y == pytest.approx(fit.value(x) / fit.value(np.array([unit])))
    median = table.xy("gain", "1992 median")
    assert np.interp(0.5, *median) == pytest.approx(0.420639, abs=1e-6)


def test_bands_are_quantiles_of_the_estimates_law(fit):
    """Of one capacity parameter, the band's ends are the capacity at that parameter's own quantiles."""
    table = _table.Table(fit_curves.rows(Shown(fit)))
    x, low = table.xy("gain", "low")
    high = table.xy("gain", "high")[1]
    interval = fit.interval("gain.gamma")
    at = int(np.argmin(np.abs(x - 0.9)))  # there the capacity rises with gamma
    ends = [type(fit.gain)(gamma)(x[at]) for gamma in (interval.low, interval.high)]
    # 400 draws: an end is between the 1st and the 5th percentile, or the mirrored ones, but for one case in a thousand.
    room = [type(fit.gain)(float(gamma))(x[at]) for gamma in _quantiles(fit, (0.01, 0.05, 0.95, 0.99))]
    assert room[0] < low[at] < room[1] and room[2] < high[at] < room[3]
    assert ends == pytest.approx([low[at], high[at]], abs=0.02)


def _quantiles(fit, shares):
    from scipy.special import ndtri

    place = fit.names.index("gain.gamma")
    error = np.sqrt(fit.covariance()[place, place])
    return [np.exp(fit.coordinates[place] + error * ndtri(share)) for share in shares]


def test_without_losses_there_is_no_panel_of_losses():
    """Of gains alone two panels are drawn; of estimates on a bound no band is made for them."""
    rng = np.random.default_rng(2)
    first, second = ((rng.integers(1, 90, (80, 2)).astype(float), np.tile([q, 1 - q], (80, 1))) for q in (0.3, 0.8))
    model = Model(fixed={"loss_aversion": 1.0}, equal={"loss_curvature": "curvature", "loss.gamma": "gain.gamma"})
    data = Choices.between(first, second, (rng.random(80) < 0.5).astype(float))
    found = fit_curves.rows(Shown(fit_prospect(data, model, starts=2)))
    assert _table.Table(found).setting("losses") == 0 and "loss" not in {row.panel for row in found}
    assert len(fit_curves.draw(found).axes) == 2


def test_residuals_and_calibration_are_of_problems(fit):
    """Each problem is a point; groups of like prediction have the means of what is in them, and cover all choices."""
    table = _table.Table(fit_check.rows(Shown(fit)))
    found = by_problem(fit)
    x, y = table.xy("residual", "problem")
    assert sorted(y) == pytest.approx(sorted(found.observed - found.predicted)) and len(x) == 60
    noise = table.xy("residual", "noise")[1]
    assert noise == pytest.approx(2 * np.sqrt(x * (1 - x) / 10))
    middle, mean = table.xy("calibration", "mean")
    assert len(middle) == 10 and mean.mean() == pytest.approx(fit.choices.response.mean())
    assert (np.diff(middle) > 0).all()


@pytest.mark.parametrize("kind", ["rates", "equivalents"])
def test_noise_that_nobody_knows_is_not_drawn(kind):
    """Bare rates and certainty equivalents have no line of noise, and the figure says so."""
    rng = np.random.default_rng(3)
    outcomes, probs = rng.integers(1, 90, (40, 2)).astype(float), np.tile([0.4, 0.6], (40, 1))
    model = Model(gain="identity", fixed={"loss_aversion": 1.0})
    if kind == "rates":
        sure = rng.integers(1, 90, (40, 1)).astype(float), np.ones((40, 1))
        data = Choices.between((outcomes, probs), sure, rng.random(40), kind="rates")
    else:
        data = Choices.equivalents((outcomes, probs), (outcomes * probs).sum(1) + rng.normal(0, 2, 40))
    rows = fit_check.rows(Shown(fit_prospect(data, model, starts=2)))
    assert {row.series for row in rows if row.panel == "residual"} == {"problem"}
    figure = fit_check.draw(rows)
    assert "not known" in figure._supxlabel.get_text()
    assert ("certainty equivalent" in figure.axes[0].get_xlabel()) == (kind == "equivalents")


@pytest.mark.parametrize("module", [fit_curves, fit_check])
def test_figures_are_drawn_from_their_rows_alone(fit, module, tmp_path):
    """Rows written as CSV and read again draw the same numbers, and the same seed gives the same rows."""
    rows = module.rows(Shown(fit, seed=4))
    again = _table.read(_table.write(tmp_path / "rows.csv", rows))
    assert repr(module.rows(Shown(fit, seed=4))) == repr(rows)
    drawn = [module.draw(each) for each in (rows, again)]
    for one, other in zip(*(figure.axes for figure in drawn), strict=True):
        for a, b in zip(one.get_lines(), other.get_lines(), strict=True):
            np.testing.assert_allclose(a.get_xydata(), b.get_xydata(), rtol=1e-9, atol=1e-9)


def test_draws_stay_within_bounds(fit):
    """No drawn gamma lies below the monotone threshold, and as many are drawn as asked."""
    drawn = drawn_parameters(fit, draws=50, seed=1)
    assert len(drawn) == 50 and min(each["gain.gamma"] for each in drawn) > 0.2792
    assert drawn == drawn_parameters(fit, draws=50, seed=1)
