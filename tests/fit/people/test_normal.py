"""The law of people's coordinates on weighted points: its likelihood, gradient, information and steps uphill."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

from humanline.fit import NotConverged
from humanline.fit.people.normal import Anchor, Normal, Points, curvature, em_step, objective, packed, shares, unpacked
from humanline.fit.people.population import climb_law, even_points


@pytest.fixture
def points():
    """Forty people with thirty points each of three coordinates."""
    rng = np.random.default_rng(0)
    centre = rng.normal(0, 0.5, (40, 1, 3))
    at = centre + rng.normal(0, 1, (40, 30, 3))
    return Points(at, -((at - centre) ** 2).sum(-1) / 2)


LAW = Normal(np.array([0.1, -0.2, 0.3]), np.array([[0.5, 0.1, 0.0], [0.1, 0.3, -0.1], [0.0, -0.1, 0.8]]))
ANCHOR = Anchor(3.0, 0.4)


def test_a_sum_over_points_is_the_integral_of_the_likelihood_over_the_law():
    """With points on a fine grid the marginal likelihood equals scipy's integral to 1e-9."""
    grid = np.linspace(-8, 8, 4001)
    law = Normal(np.array([0.4]), np.array([[0.25]]))
    log_likelihood = -np.log1p(np.exp(-3 * grid)) - np.log1p(np.exp(2 * grid - 1))
    found = shares(Points(grid[None, :, None], (log_likelihood + np.log(grid[1] - grid[0]))[None]), law)[0][0]
    exact = quad(lambda x: norm.pdf(x, 0.4, 0.5) / (1 + np.exp(-3 * x)) / (1 + np.exp(2 * x - 1)), -8, 8)[0]
    assert found == pytest.approx(np.log(exact), abs=1e-9)


def test_gradient_and_information_are_derivatives_of_the_objective(points):
    """They agree with central differences of the objective along laws that move."""
    gradient, information = curvature(points, LAW, ANCHOR)

    def at(vector):
        return objective(points, LAW.moved(*unpacked(vector, 3)), ANCHOR)

    step, number = 1e-4, len(gradient)
    each = step * np.eye(number)
    slopes = [(at(one) - at(-one)) / (2 * step) for one in each]
    assert gradient == pytest.approx(slopes, abs=1e-5)
    seconds = [[(at(i + j) - at(i - j) - at(j - i) + at(-i - j)) / (4 * step**2) for j in each] for i in each]
    assert -information == pytest.approx(np.array(seconds), abs=2e-4)


def test_expectation_and_maximisation_never_fall(points):
    """Sixty steps each raise the objective, and the last ones hardly."""
    law, values = LAW, []
    for _ in range(60):
        value, law = em_step(points, law, ANCHOR)
        values.append(value)
    assert (np.diff(values) >= -1e-12).all()
    assert values[-1] - values[-2] < 1e-4 * (values[1] - values[0])


def test_a_climb_ends_where_the_gradient_vanishes(points):
    """The end of a climb has a gradient of 0, an information that is positive, and a path that only rises."""
    law, decrement = LAW, np.nan
    while np.isnan(decrement):
        law, path, decrement = climb_law(points, law, Anchor(30.0, 0.5))
    gradient, information = curvature(points, law, Anchor(30.0, 0.5))
    assert decrement < 1e-8 and np.abs(gradient).max() < 1e-3
    assert np.linalg.eigvalsh(information)[0] > 0
    assert (np.diff(path) >= 0).all()


def test_a_climb_stops_where_its_points_say_little(points):
    """A law that has moved by more than .4 of its spreads, or logs of them, is given back without a decrement."""
    far = Normal(np.full(3, 3.0), 0.2 * np.eye(3))
    law, _, decrement = climb_law(points, far, ANCHOR)
    assert np.isnan(decrement)
    assert np.abs(packed(law, far)).max() > 0.4


def test_a_likelihood_that_falls_is_an_error(points, monkeypatch):
    """A step that leads down is not passed over."""
    worse = Normal(LAW.mean + 5, LAW.covariance)
    monkeypatch.setattr("humanline.fit.people.population.em_step", lambda *_: (0.0, worse))
    with pytest.raises(NotConverged, match="fell from"):
        climb_law(points, LAW, ANCHOR)


def test_moving_and_packing_undo_each_other():
    """The vector by which a law was moved is found again."""
    vector = np.random.default_rng(1).normal(0, 0.3, 9)
    assert packed(LAW.moved(*unpacked(vector, 3)), LAW) == pytest.approx(vector, abs=1e-12)


def test_points_of_people_are_even_and_their_own():
    """Each person's points fill the cube evenly, and no two people have the same."""
    cube = even_points(5, 2, 128, 0)
    assert cube.shape == (5, 128, 3)
    assert np.abs(cube.mean(1) - 0.5).max() < 0.02
    assert len(np.unique(cube[:, 0, 0])) == 5
