"""The value function against Eq. 2, on numpy arrays and torch tensors."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from humanline.theory import PowerValue
from tests import oracles

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
