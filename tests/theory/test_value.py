"""The value function against Eq. 2, on numpy arrays and torch tensors."""

from __future__ import annotations

import inspect
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from humanline.theory import (
    ExponentialValue,
    LogarithmicValue,
    LogisticValue,
    PowerValue,
    TverskyKahneman,
)
from tests import oracles
from tests.helpers.optional import torch

SETTINGS = settings(derandomize=True, deadline=None, max_examples=60)
exponents = st.floats(0.2, 3.0)


@SETTINGS
@given(z=st.floats(-1e6, 1e6), a=exponents, b=exponents, aversion=st.floats(0.1, 5.0), z0=st.floats(-10, 10))
def test_agrees_with_the_equation(z, a, b, aversion, z0):
    """Values agree with mpmath to 1e-12 for any parameters (the excess z - z0 taken as rounded)."""
    value = PowerValue(a, b, aversion, z0)(z)
    expected = float(oracles.power_value(z - z0, a, b, aversion))
    np.testing.assert_allclose(value, expected, rtol=1e-12, atol=1e-300)


@SETTINGS
@given(z=st.floats(-1e6, 1e6), a=exponents, b=exponents, z0=st.floats(-10, 10))
def test_inverse_undoes_the_value(z, a, b, z0):
    """The inverse of a value is the outcome, to the precision that the excess and its powers leave."""
    v = PowerValue(a, b, 2.25, z0)
    np.testing.assert_allclose(v.inverse(v(z)), z, rtol=1e-11, atol=1e-12)


def test_medians_are_the_default():
    """The default is curvature .88, loss aversion 2.25 and one exponent for both sides."""
    assert PowerValue() == PowerValue(0.88, None, 2.25, 0.0)
    np.testing.assert_allclose(PowerValue()([100.0, -100.0]), [100**0.88, -2.25 * 100**0.88], rtol=1e-14)


def test_losses_have_their_own_exponent():
    """loss_curvature applies to losses only, and None means the exponent of gains."""
    assert PowerValue(2.0, 3.0, 1.0)([2.0, -2.0]).tolist() == [4.0, -8.0]
    assert PowerValue(2.0, None, 1.0)([2.0, -2.0]).tolist() == [4.0, -4.0]


def test_outcome_at_the_reference_point_is_worth_nothing():
    """An outcome at the reference point has value 0, never minus 0 of the loss branch."""
    value = PowerValue(reference_point=3.0)(3.0)
    assert value == 0
    assert not np.signbit(value)


def test_nan_and_infinity_pass_through():
    """A nan stays nan and infinities keep their sign, without a warning."""
    np.testing.assert_array_equal(PowerValue()([np.nan, np.inf, -np.inf]), [np.nan, np.inf, -np.inf])
    np.testing.assert_array_equal(PowerValue().inverse([np.nan, np.inf, -np.inf]), [np.nan, np.inf, -np.inf])


@pytest.mark.parametrize("make", [float, int, lambda n: [n], lambda n: (n,), np.array, np.float32, torch.tensor])
def test_accepts_scalars_lists_and_arrays(make):
    """Scalars, lists and integer arrays are converted, and give the same value."""
    np.testing.assert_allclose(float(np.asarray(PowerValue()(make(4))).item()), 4**0.88, rtol=1e-6)


@pytest.mark.parametrize("z0", [0.0, 0.5])
def test_numpy_and_torch_agree(z0):
    """Both kinds give the same values, keep float32 and return their own kind."""
    z = np.linspace(-5, 5, 101)
    v = PowerValue(0.88, 0.7, 2.25, z0)
    for function in (v, v.inverse):
        tensor = function(torch.tensor(z))
        assert isinstance(tensor, torch.Tensor)
        np.testing.assert_allclose(tensor.numpy(), function(z), rtol=1e-14)
        assert function(z.astype(np.float32)).dtype == np.float32
        assert function(torch.tensor(z, dtype=torch.float32)).dtype == torch.float32


@pytest.mark.parametrize("curvature", [0.5, 0.88, 1.0, 1.7])
def test_gradient_is_the_derivative(curvature):
    """Autograd agrees with finite differences on both sides of the reference point, for the value and its inverse."""
    z = torch.tensor([-3.0, -0.2, 0.3, 2.0], dtype=torch.float64, requires_grad=True)
    v = PowerValue(curvature, None, 2.25, 0.1)
    assert torch.autograd.gradcheck(v, (z,))
    assert torch.autograd.gradcheck(v.inverse, (z,))


@pytest.mark.parametrize(("curvature", "slope"), [(0.5, 0.0), (0.88, 0.0), (1.0, 1.0), (2.0, 0.0)])
def test_gradient_at_the_reference_point(curvature, slope):
    """At the reference point the gradient is the gain side's, and 0 where that is infinite; never nan."""
    z = torch.tensor([0.3, 0.3], dtype=torch.float64, requires_grad=True)
    values = PowerValue(curvature, None, 2.25, 0.3)(z)
    torch.where(torch.tensor([True, False]), values, 0.0).sum().backward()
    assert z.grad.tolist() == [slope, 0.0]


def test_works_under_vmap_and_on_the_meta_device():
    """No value is read: the function maps and traces."""
    z = torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert torch.equal(torch.func.vmap(PowerValue())(z), PowerValue()(z))
    assert PowerValue()(torch.empty(3, device="meta")).shape == (3,)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"curvature": 0}, "curvature must be > 0; got 0"),
        ({"loss_curvature": -1}, "loss_curvature must be > 0; got -1"),
        ({"loss_aversion": float("nan")}, "loss_aversion must be finite; got nan"),
        ({"reference_point": float("inf")}, "reference_point must be finite; got inf"),
    ],
)
def test_refuses_parameters_outside_their_domain(arguments, message):
    """A parameter outside its domain is a ValueError that names it."""
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        PowerValue(**arguments)


def test_refuses_what_is_not_a_real_number():
    """Text and complex numbers are a TypeError that names the argument."""
    for bad in (["a"], [1j], [None]):
        with pytest.raises(TypeError, match=r"^outcome must hold real numbers"):
            PowerValue()(bad)


# ---- the other families ---------------------------------------------------------------------------------------------

ORACLES = {
    ExponentialValue: oracles.exponential_value,
    LogarithmicValue: oracles.logarithmic_value,
    LogisticValue: oracles.logistic_value,
}
every_family = pytest.mark.parametrize("family", ORACLES)
curvatures = st.floats(1e-3, 5.0)


@every_family
@SETTINGS
@given(z=st.floats(-1e3, 1e3), c=curvatures, d=curvatures, aversion=st.floats(0.1, 5.0), z0=st.floats(-10, 10))
def test_other_families_agree_with_their_formulas(family, z, c, d, aversion, z0):
    """Values agree with mpmath to 1e-12 for any parameters (the excess z - z0 taken as rounded)."""
    expected = float(ORACLES[family](z - z0, c, d, aversion))
    np.testing.assert_allclose(family(c, d, aversion, z0)(z), expected, rtol=1e-12, atol=1e-300)


@every_family
@SETTINGS
@given(excess=st.floats(-3, 3), c=curvatures, d=curvatures, aversion=st.floats(0.1, 5.0), z0=st.floats(-10, 10))
def test_other_inverses_undo_the_value(family, excess, c, d, aversion, z0):
    """The inverse of a value is the outcome, where the value has not yet levelled off."""
    v = family(c, d, aversion, z0)
    z = z0 + excess / max(c, d)
    np.testing.assert_allclose(v.inverse(v(z)), z, rtol=1e-11, atol=1e-12 / min(c, d))


@SETTINGS
@given(c=curvatures, d=curvatures, aversion=st.floats(0.1, 5.0), z0=st.floats(-10, 10))
def test_ranges(c, d, aversion, z0):
    """The range holds the values of infinite outcomes, which are the inverse of its ends."""
    for family, low, high in (
        (PowerValue, -np.inf, np.inf),
        (LogarithmicValue, -np.inf, np.inf),
        (ExponentialValue, -aversion / d, 1 / c),
        (LogisticValue, -aversion / 2, 0.5),
    ):
        v = family(c, d, aversion, z0)
        assert v.range == pytest.approx((low, high), rel=1e-15)
        assert v([-np.inf, np.inf]) == pytest.approx(v.range, rel=1e-15)
        assert v.inverse(list(v.range)).tolist() == [-np.inf, np.inf]


@pytest.mark.parametrize("family", [PowerValue, *ORACLES])
@SETTINGS
@given(ends=st.tuples(st.floats(-30, 30), st.floats(-30, 30)), aversion=st.floats(0.1, 5.0))
def test_norm_on_an_interval(family, ends, aversion):
    """No outcome of an interval has a larger absolute value than `max_abs` says, and one has this."""
    v = family(0.7, 0.5, aversion, 1.0)
    found = np.abs(v(np.linspace(min(ends), max(ends), 101)))
    assert found.max() == pytest.approx(v.max_abs(min(ends), max(ends)), rel=1e-14)
    assert v.max_abs(-np.inf, np.inf) == max(-v.range[0], v.range[1])


@every_family
def test_gradients_of_the_other_families(family):
    """Autograd agrees with finite differences on both sides, and at the reference point is the gain side's slope."""
    v = family(0.8, 0.5, 2.25, 0.1)
    z = torch.tensor([-3.0, -0.2, 0.3, 2.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(v, (z,))
    assert torch.autograd.gradcheck(v.inverse, (v(z.detach()).requires_grad_(),))
    at = torch.tensor([0.1], dtype=torch.float64, requires_grad=True)
    v(at).sum().backward()
    assert at.grad.tolist() == [0.2 if family is LogisticValue else 1.0]
    smooth = family(0.8, None, 1.0, 0.1)  # one function on both sides: differentiable at the reference point too
    assert torch.autograd.gradcheck(smooth, (at.detach().requires_grad_(),))


@every_family
def test_other_families_agree_between_numpy_and_torch(family):
    """Both kinds give the same values, keep float32 without a nan, work under vmap and on the meta device."""
    v = family(0.8, 0.5, 2.25, 0.5)
    z = np.concatenate([np.linspace(-5, 5, 101), [-np.inf, np.inf, np.nan]])
    np.testing.assert_allclose(v(torch.tensor(z)).numpy(), v(z), rtol=1e-14)
    np.testing.assert_allclose(v.inverse(torch.tensor(v(z))).numpy(), v.inverse(v(z)), rtol=1e-13)
    many = np.random.default_rng(0).normal(0, 50, 1_000_000).astype(np.float32)
    for kind in (np.asarray, torch.tensor):
        values = v(kind(many))
        assert np.asarray(values).dtype == np.float32
        assert not np.isnan(np.asarray(values)).any()
        assert not np.isnan(np.asarray(v.inverse(values))).any()
    batch = torch.tensor(z[:100]).reshape(10, 10)
    assert torch.equal(torch.func.vmap(v)(batch), v(batch))
    assert v(torch.empty(3, device="meta")).shape == (3,)


def test_exponential_reproduces_the_gains_of_a_textbook():
    """The value of 80 at alpha .005, and times its decision weight at .5, as printed for Wakker (2010)."""
    # gary-au/pt, tests/Test_Wakker_2010.R, Example 9.3.3: .3297 and .13868. Losses are concave there, unlike here.
    v = ExponentialValue(0.005)
    assert 0.005 * v(80.0) == pytest.approx(0.3297, abs=5e-5)
    assert 0.005 * v(80.0) * TverskyKahneman(0.61)(0.5) == pytest.approx(0.13868, abs=5e-6)
    assert 0.005 * v(-20.0) == pytest.approx(-(1 - np.exp(-0.1)), rel=1e-14)


def test_logistic_is_the_value_function_of_kto():
    """lambda_D sigmoid(beta (z - z0)) is lambda_D (1/2 + v), and lambda_U sigmoid(beta (z0 - z)) lambda_U (1/2 - v)."""
    z, z0, beta = torch.linspace(-20, 20, 9, dtype=torch.float64), 1.5, 0.1
    v = LogisticValue(beta, reference_point=z0)(z)
    torch.testing.assert_close(0.5 + v, torch.sigmoid(beta * (z - z0)), rtol=1e-14, atol=0)
    torch.testing.assert_close(0.5 - v, torch.sigmoid(beta * (z0 - z)), rtol=1e-14, atol=0)


def test_values_out_of_range_and_bad_intervals_are_refused():
    """An inverse outside the range, and an interval the wrong way round, name the argument, the rule and the value."""
    with pytest.raises(ValueError, match=r"^value must lie in \[-4, 2\], the range of the function; got 2\.5$"):
        ExponentialValue(0.5, loss_aversion=2.0).inverse([1.0, 2.5])
    with pytest.raises(ValueError, match=r"^value must lie in \[-0\.5, 0\.5\], the range of the function; got -0\.75$"):
        LogisticValue(0.1).inverse(-0.75)
    with pytest.raises(ValueError, match=r"^low must be <= high 1\.0; got 2\.0$"):
        PowerValue().max_abs(2.0, 1.0)
    with pytest.raises(ValueError, match=r"^low must be <= high 1\.0; got nan$"):
        PowerValue().max_abs(float("nan"), 1.0)
    for family in ORACLES:
        with pytest.raises(ValueError, match=r"^curvature must be > 0; got 0$"):
            family(0)
        with pytest.raises(ValueError, match=r"^loss_curvature must be > 0; got -1$"):
            family(1.0, loss_curvature=-1)


@pytest.mark.parametrize(
    "family,named,ours",
    [
        (PowerValue, "alpha", "curvature"),
        (PowerValue, "beta", "loss_curvature"),
        (PowerValue, "lam", "loss_aversion"),
        (ExponentialValue, "alpha", "curvature"),
        (LogarithmicValue, "z0", "reference_point"),
        (LogisticValue, "beta", "curvature"),
    ],
)
def test_other_names_of_parameters_are_answered_with_ours(family, named, ours):
    """Who writes the letter of a paper is told what it is called here; any other name is Python's own error."""
    with pytest.raises(TypeError, match=f"has no '{named}': it is called {ours} here; write {ours}=0.5"):
        family(**{named: 0.5})
    with pytest.raises(TypeError, match="unexpected keyword argument 'nothing'"):
        family(nothing=0.5)
    assert next(iter(inspect.signature(family).parameters)) == "curvature"


def test_arrays_of_curvatures_have_the_slope_of_each_at_the_reference_point():
    """1 where the curvature is 1 and 0 above, as of one number; below 1, where it is infinite, 0."""
    at = torch.zeros(4, dtype=torch.float64, requires_grad=True)
    curvatures = torch.tensor([1.0, 2.0, 1.0, 0.5], dtype=torch.float64)
    PowerValue(curvatures, loss_aversion=1.0)(at).sum().backward()
    assert at.grad.tolist() == [1.0, 0.0, 1.0, 0.0]
    several = curvatures.clone().requires_grad_()
    PowerValue(several, loss_aversion=1.0)(torch.zeros(4, dtype=torch.float64)).sum().backward()
    assert several.grad.tolist() == [0.0] * 4
