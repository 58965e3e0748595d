"""The offline curve and the mean excess over it, against plain loops, exact cases and a small calibration."""

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose

from humanline.reproduce.curves import choose_degree, fit_curves
from humanline.reproduce.excess import excess, mean_excess
from humanline.stats import crossed_estimate


def scattered(cells=9, starts=3, seed=0, scatter=0.02):
    """Return log KL and scores of cells by starts near a quadratic."""
    random = np.random.default_rng(seed)
    log_kl = np.linspace(-1, 2.5, cells)[:, None] + random.normal(0, 0.1, (cells, starts))
    return log_kl, 0.7 - 0.07 * (log_kl - 0.7) ** 2 + random.normal(0, scatter, log_kl.shape)


@pytest.mark.parametrize("degree", [1, 2, 3])
def test_each_start_has_the_polynomial_of_least_squares(degree):
    """Curves are those of numpy's own fit, start by start, and so are their residuals."""
    log_kl, scores = scattered()
    curves = fit_curves(log_kl, scores, degree)
    points = np.linspace(-1, 2, 7)
    for start in range(3):
        theirs = np.polyfit(log_kl[:, start], scores[:, start], degree)
        at = np.broadcast_to(points[:, None, None], (7, 3, 1))
        assert_allclose(curves.at(at)[:, start, 0], np.polyval(theirs, points), atol=1e-10)
        fitted = np.polyval(theirs, log_kl[:, start])
        assert_allclose(curves.residuals[:, start], scores[:, start] - fitted, atol=1e-10)


def test_the_peak_is_the_maximum_within_the_range():
    """Inside where the curve turns there, at the end where it still rises."""
    log_kl = np.linspace(-1, 2, 9)[:, None] * np.ones((1, 2))
    peaks, places = fit_curves(log_kl, 0.7 - 0.1 * (log_kl - np.array([0.5, 9.0])) ** 2, 2).peaks()
    assert_allclose(places, [0.5, 2.0], atol=0.01)
    assert_allclose(peaks, [0.7, 0.7 - 0.1 * 49], atol=1e-4)


def left_out_error(log_kl, scores, degree):
    """Return the criterion by fits anew without each cell."""
    total = 0.0
    for cell in range(len(log_kl)):
        keep = np.arange(len(log_kl)) != cell
        errors = [
            scores[cell, m] - np.polyval(np.polyfit(log_kl[keep, m], scores[keep, m], degree), log_kl[cell, m])
            for m in range(log_kl.shape[1])
        ]
        total += np.mean(errors) ** 2
    return total


@pytest.mark.parametrize("seed", range(8))
def test_the_degree_predicts_cells_left_out_best(seed):
    """The choice is that of fits made anew without each cell, from all starts at once."""
    log_kl, scores = scattered(seed=seed, scatter=0.04)
    scores = scores + 0.015 * (seed % 3) * log_kl**3
    errors = [left_out_error(log_kl, scores, degree) for degree in (1, 2, 3)]
    assert choose_degree(log_kl, scores, (3, 1, 2), 2) == 1 + int(np.argmin(errors))


def test_a_degree_needs_cells_to_spare():
    """Five cells leave two for a quadratic, one for a cubic; four leave too few for either."""
    log_kl, scores = scattered(cells=5)
    assert choose_degree(log_kl, scores + log_kl**3, (2, 3), 2) == 2
    assert choose_degree(log_kl[:4], scores[:4], (2, 3), 2) is None


@pytest.mark.parametrize(("seed", "of_starts"), [(1, 0.01), (2, 0.02), (3, 0.0), (4, 0.01)])
def test_without_scatter_of_the_curve_the_error_is_that_of_a_table_of_cells_by_starts(seed, of_starts):
    """Where offline cells lie on their curve, the estimate is `crossed_estimate` of the errors."""
    log_kl, _ = scattered()
    curves = fit_curves(log_kl, 0.7 - 0.1 * log_kl**2, 2)
    random = np.random.default_rng(seed)
    others = random.uniform(0, 1, (12, 3, 2))
    scores = (
        0.7
        - 0.1 * others**2
        + 0.05
        + random.normal(0, 0.02, (12, 3, 1))
        + random.normal(0, 0.02, (12, 1, 1))
        + random.normal(0, of_starts, (1, 3, 1))
    )
    ours = mean_excess([excess(curves, others, scores)])
    theirs = crossed_estimate((scores - 0.7 + 0.1 * others**2).mean(2))
    assert_allclose([ours.mean, ours.error, ours.degrees], [theirs.mean, theirs.error, theirs.degrees], rtol=1e-6)


def test_the_error_of_the_fit_is_that_of_its_weights():
    """Offline cells add their variance times the sum of squares of what raising each does to the mean."""
    log_kl, scores = scattered()
    others = np.random.default_rng(2).uniform(0, 1, (7, 3, 2))
    part = excess(fit_curves(log_kl, scores, 2), others, np.zeros_like(others))
    slopes = []
    for cell in range(len(log_kl)):
        raised = scores.copy()
        raised[cell] += 1.0
        slopes.append((excess(fit_curves(log_kl, raised, 2), others, np.zeros_like(others)).by_start).mean())
    slopes = np.array(slopes) - part.by_start.mean()
    curves = fit_curves(log_kl, scores, 2)
    variance = np.square(curves.residuals.mean(1)).sum() / curves.spare
    assert_allclose(part.of_cells[1][0], variance * np.square(slopes).sum(), rtol=1e-8)


def test_runs_that_are_left_out_weigh_nothing():
    """A cell with two finite draws counts as these two."""
    log_kl, scores = scattered()
    curves = fit_curves(log_kl, scores, 2)
    others = np.random.default_rng(2).uniform(0, 1, (5, 3, 3))
    values = others * 0.1
    others[2, 1, 0] = values[2, 1, 0] = np.nan
    expected = (values - curves.at(others))[2, 1, 1:].mean()
    assert_allclose(excess(curves, others, values).errors[2, 1], expected)


def test_one_start_has_no_interval():
    """From a single start model nothing is known of others."""
    log_kl, scores = scattered(starts=1)
    others = np.random.default_rng(2).uniform(0, 1, (5, 1, 3))
    estimate = mean_excess([excess(fit_curves(log_kl, scores, 2), others, others)])
    assert math.isinf(estimate.interval().half_width)


def coverage(starts, heights, errors_of_starts, *, grids, seed):
    """Return how often intervals hold 0 on one curve, and exclude it where the compared cells are shifted by .0374."""
    random = np.random.default_rng(seed)
    base = np.linspace(-0.7, 2.7, 9)
    covered = found = 0

    def runs(places, more):
        log_kl = places[:, None, None] + random.normal(0, 0.1, (len(places), starts, 3))
        noise = random.normal(0, 0.019, (len(places), 1, 1)) + random.normal(0, 0.011, log_kl.shape)
        return log_kl, 0.73 - 0.07 * (log_kl - 0.7) ** 2 + noise + more

    for grid in range(grids):
        height = random.normal(0, heights, (1, starts, 1))
        log_kl, scores = (values.mean(2) for values in runs(base, height))
        more = height + random.normal(0, errors_of_starts, (1, starts, 1))
        curves = fit_curves(log_kl, scores, choose_degree(log_kl, scores, (2, 3), 2))
        estimate = mean_excess([excess(curves, *runs(np.linspace(-0.4, 2.4, 20), more))])
        half = estimate.interval().half_width
        covered += abs(estimate.mean) <= half
        found += abs(estimate.mean + 0.0374 * (-1) ** grid) > half
    return covered / grids, found / grids


@pytest.mark.parametrize(("starts", "heights", "errors"), [(3, 0.01, 0.0), (3, 0.02, 0.01), (5, 0.0, 0.01)])
def test_intervals_cover(starts, heights, errors):
    """On runs of one curve 93 to 97 % of intervals hold 0, and four in five find a shift of two margins.

    Both hold up to three standard errors of a binomial share, as a share of that many grids may miss them.
    """
    grids = 200
    covered, found = coverage(starts, heights, errors, grids=grids, seed=3)
    allowed = 3 * math.sqrt(0.05 * 0.95 / grids)
    assert 0.93 - allowed < covered < 0.97 + allowed
    assert found > 0.8 - 3 * math.sqrt(0.16 / grids)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("starts", "heights", "errors"), [(3, 0.0, 0.0), (3, 0.01, 0.0), (3, 0.02, 0.01), (5, 0.01, 0.01)]
)
def test_intervals_cover_in_many_grids(starts, heights, errors):
    """The same, ten times as exact."""
    covered, found = coverage(starts, heights, errors, grids=4000, seed=4)
    assert 0.93 < covered < 0.97
    assert found > 0.8
