"""The capacity function of Tversky and Kahneman against Eq. 3 in many digits, at both ends and in logs."""

from __future__ import annotations

import re
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from humanline.theory import (
    Identity,
    TverskyKahneman,
)
from humanline.theory.capacity.tversky_kahneman import MONOTONE_GAMMA
from tests import oracles
from tests.helpers import strategies
from tests.helpers.optional import torch

SETTINGS = settings(derandomize=True, deadline=None, max_examples=60)
TABLE_P = [0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99]
HARD_P = [5e-324, 1e-300, 1e-20, 1e-5, 0.1, 0.3, 0.4999999, 0.5, 0.5000001, 0.7, 0.99, 1 - 1e-9, 1 - 2**-53]


def quiet(gamma: float) -> TverskyKahneman:
    """A capacity of any gamma, without the warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return TverskyKahneman(gamma)


@pytest.mark.parametrize("gamma", [0.002, 0.05, 0.2793, 0.3, 0.61, 0.69, 1.0, 1.5, 3.0, 50.0])
def test_agrees_with_the_equation(gamma):
    """Values agree with mpmath to 1e-12 relative over all of [0, 1]."""
    expected = [float(oracles.tversky_kahneman(p, gamma)) for p in HARD_P]
    np.testing.assert_allclose(quiet(gamma)(HARD_P), expected, rtol=1e-12, atol=1e-307)


@pytest.mark.parametrize("gamma", [0.002, 0.05, 0.2793, 0.3, 0.61, 0.69, 1.0, 1.5, 3.0])
def test_log_agrees_with_the_equation(gamma):
    """Logs agree with mpmath to 1e-13 relative from -1e5 to the last float below 0."""
    log_p = [
        -1e5,
        -1e4,
        -745.2,
        -700.0,
        -30.0,
        -1.0,
        -0.7,
        -0.6931471805599453,
        -0.69,
        -0.1,
        -1e-3,
        -1e-9,
        -1e-20,
        -1e-300,
    ]
    expected = [float(oracles.log_tversky_kahneman(lp, gamma)) for lp in log_p]
    np.testing.assert_allclose(quiet(gamma).log(log_p), expected, rtol=1e-13)


@pytest.mark.parametrize("gamma", [0.3, 0.61, 0.69, 1.0])
def test_log_is_good_to_the_last_digits_for_sequences(gamma):
    """From -1e-3 to -1e5, where sequence log-probabilities lie, the log is good to 1e-15 relative."""
    log_p = -np.logspace(-3, 5, 60)
    expected = np.array([float(oracles.log_tversky_kahneman(lp, gamma)) for lp in log_p])
    np.testing.assert_allclose(TverskyKahneman(gamma).log(log_p), expected, rtol=1e-15)


def test_published_numbers():
    """The table at .61, the values at 1/2 and the fixed points are those of the literature."""
    table = [0.05526614, 0.1316257, 0.18630257, 0.29074293, 0.42063935, 0.56826791, 0.71171606, 0.79319578, 0.91158375]
    np.testing.assert_allclose(TverskyKahneman(0.61)(TABLE_P), table, atol=5e-9)
    for gamma, half, fixed in ((0.61, 0.420639354336, 0.338781144319), (0.69, 0.453987549524, 0.377564488851)):
        assert TverskyKahneman(gamma)(0.5) == pytest.approx(half, abs=5e-13)
        assert TverskyKahneman(gamma)(0.5) == pytest.approx(2 ** (1 - gamma - 1 / gamma), rel=1e-14)
        root = float(oracles.fixed_point(gamma, 0.36))
        assert root == pytest.approx(fixed, abs=5e-13)
        assert TverskyKahneman(gamma)(root) == pytest.approx(root, rel=1e-14)


def test_threshold_is_where_the_slope_touches_zero():
    """Solving slope = 0 and its derivative = 0 gives the constant, the flat point p* and its closed form."""
    gamma, p = oracles.flat_point()
    assert float(gamma) == MONOTONE_GAMMA == 0.279204247014938541855
    assert float(p) == pytest.approx(0.0975961651773, abs=5e-14)
    assert float(p) == pytest.approx(float(gamma**2 / (1 - gamma + gamma**2)), rel=1e-15)
    assert float((2 * gamma - 1) * oracles.mpmath.log(gamma) + (2 - gamma) * oracles.mpmath.log(1 - gamma)) == (
        pytest.approx(0, abs=1e-15)
    )


@SETTINGS
@given(gamma=st.floats(1e-3, 20))
def test_fixes_both_ends(gamma):
    """0 and 1 are their own images exactly, and without a warning."""
    assert quiet(gamma)([0.0, 1.0]).tolist() == [0.0, 1.0]
    assert quiet(gamma).log([-np.inf, 0.0]).tolist() == [-np.inf, 0.0]


@SETTINGS
@given(gamma=strategies.monotone_gammas, p=strategies.probabilities, q=strategies.probabilities)
def test_never_decreases_from_the_threshold_on(gamma, p, q):
    """Above the threshold a larger probability is not perceived as a smaller one (up to rounding)."""
    low, high = TverskyKahneman(gamma)([min(p, q), max(p, q)])
    assert high >= low - 4e-16
    assert TverskyKahneman(gamma).is_monotone


@pytest.mark.parametrize("gamma", [0.05, 0.1, 0.2, 0.25, 0.27, 0.279])
def test_decreases_somewhere_below_the_threshold(gamma):
    """Below the threshold some larger probability is perceived as clearly smaller."""
    with pytest.warns(UserWarning, match="below 0.279204: the capacity is not monotone"):
        capacity = TverskyKahneman(gamma)
    assert not capacity.is_monotone
    assert np.diff(capacity(np.linspace(0, 1, 2001))).min() < -1e-9


def test_warning_points_at_the_caller():
    """The warning is attributed to the line that made the capacity."""
    with pytest.warns(UserWarning, match="negative") as caught:
        TverskyKahneman(0.2)
    assert caught[0].filename == __file__


@pytest.mark.parametrize("gamma", [0.61, 1.0])
def test_no_warning_at_or_above_the_threshold(gamma):
    """Nothing is warned about where the capacity is monotone."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        TverskyKahneman(gamma)
        TverskyKahneman(MONOTONE_GAMMA)


@pytest.mark.parametrize("gamma", [1e-4, 1 / 1025, 1e3, 1e6])
def test_extreme_gammas_do_not_overflow(gamma):
    """Far below 1/1024, and far above 1, values stay in [0, 1] and logs finite."""
    capacity = quiet(gamma)
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        values, logs = capacity(HARD_P), capacity.log([-1e5, -1.0, -1e-3])
    assert np.all((values >= 0) & (values <= 1))
    assert np.all(np.isfinite(logs))
    expected = [float(oracles.log_tversky_kahneman(lp, gamma)) for lp in (-1e5, -1.0, -1e-3)]
    np.testing.assert_allclose(logs, expected, rtol=1e-13)


def test_slope_next_to_one_is_steep():
    """One unit in the last place below 1 costs 3e-10 at .61 and 5.5e-5 at .3, so totals need the small end."""
    for gamma, lost in ((0.61, 3e-10), (0.3, 5.5e-5)):
        expected = float(1 - oracles.tversky_kahneman(1 - oracles.mpf(2) ** -53, gamma))
        assert expected == pytest.approx(lost, rel=0.05)
        assert 1 - TverskyKahneman(gamma)(1 - 2.0**-53) == pytest.approx(expected, rel=1e-6)


def test_identity_and_gamma_one_leave_probabilities_alone():
    """Identity returns its input, and gamma = 1 does up to rounding."""
    p = np.array(HARD_P)
    assert Identity()(p).tolist() == p.tolist()
    np.testing.assert_allclose(TverskyKahneman(1.0)(p), p, rtol=1e-15)
    np.testing.assert_allclose(TverskyKahneman(1.0).log([-1e5, -2.0, -1e-9]), Identity().log([-1e5, -2.0, -1e-9]))
    assert Identity().is_monotone


@pytest.mark.parametrize("gamma", [0.61, 1.0, 2.0])
def test_numpy_and_torch_agree(gamma):
    """Both kinds give the same values, keep float32 and return their own kind."""
    p = np.array([0.0, *HARD_P, 1.0])
    capacity = TverskyKahneman(gamma)
    for function, x in ((capacity, p), (capacity.log, np.array([-np.inf, -1e5, -1.0, -1e-3, 0.0]))):
        tensor = function(torch.tensor(x))
        assert isinstance(tensor, torch.Tensor)
        np.testing.assert_allclose(tensor.numpy(), function(x), rtol=1e-13)
        assert function(x.astype(np.float32)).dtype == np.float32
        single = function(torch.tensor(x, dtype=torch.float32))
        assert single.dtype == torch.float32
        np.testing.assert_allclose(single.numpy(), function(x.astype(np.float32)), rtol=2e-6)


@pytest.mark.parametrize("gamma", [0.3, 0.61, 1.0, 1.8])
def test_gradient_is_the_derivative(gamma):
    """Autograd agrees with finite differences, also at 1/2 where the formula changes sides."""
    p = torch.tensor([0.01, 0.3, 0.5, 0.8, 0.99], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(TverskyKahneman(gamma), (p,))
    log_p = torch.tensor([-50.0, -2.0, -np.log(2), -0.3, -1e-2], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(TverskyKahneman(gamma).log, (log_p,))


@pytest.mark.parametrize(("gamma", "slopes"), [(0.61, [0.0, 0.0]), (1.0, [1.0, 1.0]), (2.0, [0.0, 1.0])])
def test_gradient_at_the_ends(gamma, slopes):
    """At 0 and 1 the gradient is the slope, and 0 where that is infinite; never nan."""
    p = torch.tensor([0.0, 1.0], dtype=torch.float64, requires_grad=True)
    TverskyKahneman(gamma)(p).sum().backward()
    assert p.grad.tolist() == slopes
    log_p = torch.tensor([-torch.inf, 0.0], dtype=torch.float64, requires_grad=True)
    TverskyKahneman(gamma).log(log_p).sum().backward()
    assert torch.isfinite(log_p.grad).all()


def test_works_under_vmap_and_on_the_meta_device():
    """Where values cannot be read, the range check is skipped and the function still works."""
    p = torch.rand(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    capacity = TverskyKahneman(0.61)
    assert torch.equal(torch.func.vmap(capacity)(p), capacity(p))
    assert torch.equal(torch.func.vmap(capacity.log)(p.log()), capacity.log(p.log()))
    assert capacity(torch.empty(3, device="meta")).shape == (3,)


def test_nan_stays_nan():
    """A nan is passed on, to be dealt with where it came from."""
    np.testing.assert_array_equal(TverskyKahneman(0.61)([np.nan, 1.0]), [np.nan, 1.0])
    np.testing.assert_array_equal(TverskyKahneman(0.61).log([np.nan, 0.0]), [np.nan, 0.0])
    assert TverskyKahneman(1.5)(torch.tensor([torch.nan])).isnan().all()


@pytest.mark.parametrize("kind", [np.array, torch.tensor, list])
@pytest.mark.parametrize("capacity", [TverskyKahneman(0.61), Identity()])
def test_refuses_numbers_that_are_no_probabilities(kind, capacity):
    """A probability outside [0, 1], or a log-probability above 0, is a ValueError with the first offender."""
    with pytest.raises(ValueError, match=r"^prob must lie in \[0, 1\]; got 1\.5$"):
        capacity(kind([0.5, 1.5, -1.0]))
    with pytest.raises(ValueError, match=r"^prob must lie in \[0, 1\]; got -0\.25$"):
        capacity(kind([-0.25]))
    with pytest.raises(ValueError, match=r"^log_prob must be <= 0; got 0\.5$"):
        capacity.log(kind([-1.0, 0.5]))


@pytest.mark.parametrize("gamma", [0, -0.5, float("nan"), float("inf")])
def test_refuses_a_gamma_outside_its_domain(gamma):
    """The parameter must be finite and > 0."""
    with pytest.raises(ValueError, match=re.escape(f"; got {gamma!r}")):
        TverskyKahneman(gamma)
