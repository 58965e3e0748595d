"""Information taken apart in the scale in which its diagonal is 1."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest

from humanline.fit import fit_prospect
from humanline.fit.scaled import scaled
from tests.helpers.choices import answered


def test_the_inverse_is_that_of_exact_arithmetic():
    """Of coordinates whose scales differ by 1e12, to 1e-9 of mpmath's inverse with 50 digits; the condition too."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(9, 4)) * [1e-6, 1.0, 30.0, 1e6]
    matrix = rows.T @ rows
    with mpmath.workdps(50):
        exact = mpmath.matrix(matrix.tolist())
        inverse = np.array((exact**-1).tolist(), dtype=float)
        scale = [mpmath.sqrt(exact[i, i]) for i in range(4)]
        unit = mpmath.matrix(4, 4)
        for i in range(4):
            for j in range(4):
                unit[i, j] = exact[i, j] / scale[i] / scale[j]
        eigen = [float(each) for each in mpmath.eigsy(unit, eigvals_only=True)]
    found = scaled(matrix)
    np.testing.assert_allclose(found.inverse(), inverse, rtol=1e-9)
    assert found.condition == pytest.approx(max(eigen) / min(eigen), rel=1e-9)


def test_directions_of_no_information_can_be_left_out():
    """Within what is kept the inverse is the generalised one; a matrix that is not positive has no finite condition."""
    matrix = np.array([[2.0, 2.0, 0.0], [2.0, 2.0, 0.0], [0.0, 0.0, 5.0]])
    found = scaled(matrix)
    kept = found.eigen > 1e-9
    inverse = found.inverse(kept)
    assert kept.sum() == 2
    np.testing.assert_allclose(matrix @ inverse @ matrix, matrix, atol=1e-12)
    assert scaled(np.diag([1.0, -1.0])).condition == math.inf
    blank = scaled(np.diag([4.0, 0.0]))  # 0 on the diagonal has no scale
    assert blank.scale.tolist() == [2.0, 1.0] and blank.condition == math.inf


def test_nothing_has_a_condition_of_one():
    """A matrix without rows, as with all parameters fixed, can be taken apart."""
    found = scaled(np.zeros((0, 0)))
    assert found.condition == 1.0 and found.inverse().shape == (0, 0)


def test_a_fit_whose_information_is_not_finite_has_no_finite_condition():
    """Where second derivatives overflow its eigenvalues cannot be had: it is infinite, and no error of a library."""
    fit = fit_prospect(answered(3), starts=1)
    assert fit.inner.sum() >= 3 and 1 < fit.condition < math.inf  # of three rows and more eigenvalues raise an error
    fit.__dict__["information"] = np.full((len(fit.inner),) * 2, np.nan)
    assert fit.condition == math.inf
