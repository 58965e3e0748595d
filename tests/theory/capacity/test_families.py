"""Every family of capacity functions against its formula in many digits, at both ends and in logs."""

from __future__ import annotations

import math
import re
import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from humanline import theory
from humanline.theory import (
    ExponentialPower,
    HyperbolicLog,
    Identity,
    LinearInLogOdds,
    NeoAdditive,
    PowerWeight,
    Prelec,
    TverskyKahneman,
)
from humanline.theory.capacity.family import BLOCK
from tests import oracles
from tests.helpers import strategies
from tests.helpers.optional import torch

SETTINGS = settings(derandomize=True, deadline=None, max_examples=60)
TABLE_P = [0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99]
HARD_P = [5e-324, 1e-300, 1e-20, 1e-5, 0.1, 0.3, 0.4999999, 0.5, 0.5000001, 0.7, 0.99, 1 - 1e-9, 1 - 2**-53]
#: One capacity of each shape that a family can have.
SHAPES = [
    ("TverskyKahneman", (0.2793,)),
    ("TverskyKahneman", (0.61,)),
    ("TverskyKahneman", (1.0,)),
    ("TverskyKahneman", (1.5,)),
    ("TverskyKahneman", (3.0,)),
    ("Prelec", (0.65,)),
    ("Prelec", (0.3, 2.0)),
    ("Prelec", (1.0, 0.7)),
    ("Prelec", (2.0, 0.7)),
    ("LinearInLogOdds", (0.61, 0.724)),
    ("LinearInLogOdds", (1.0, 1e6)),
    ("LinearInLogOdds", (2.5, 4.0)),
    ("LinearInLogOdds", (0.3, 1e-2)),
    ("PowerWeight", (0.5,)),
    ("PowerWeight", (1.0,)),
    ("PowerWeight", (2.0,)),
    ("NeoAdditive", (0.7, 0.1)),
    ("NeoAdditive", (0.6, 0.4)),
    ("NeoAdditive", (0.5, 0.0)),
    ("NeoAdditive", (0.05, 0.9)),
    ("ExponentialPower", (2.0, 0.5)),
    ("ExponentialPower", (0.5, -0.5)),
    ("ExponentialPower", (1.5, 0.0)),
    ("ExponentialPower", (3.0, 1.5)),
    ("HyperbolicLog", (1.0, 1.5)),
    ("HyperbolicLog", (0.1, 0.5)),
    ("Identity", ()),
]
every_shape = pytest.mark.parametrize(("family", "parameters"), SHAPES)
every_family = pytest.mark.parametrize(  # by its first shape; the others are slow
    ("family", "parameters"),
    [
        pytest.param(*shape, marks=pytest.mark.slow if shape[0] in [other for other, _ in SHAPES[:i]] else ())
        for i, shape in enumerate(SHAPES)
    ],
)


def make(family: str, parameters: tuple[float, ...]) -> Any:
    """The capacity of a family's name and its parameters."""
    return getattr(theory, family)(*parameters)


def quiet(gamma: float) -> TverskyKahneman:
    """A capacity of any gamma, without the warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return TverskyKahneman(gamma)


# ---- all families ---------------------------------------------------------------------------------------------------


@every_shape
def test_values_agree_with_their_formulas(family, parameters):
    """Values agree with mpmath to 1e-12 relative, from the smallest float to the last below 1."""
    expected = [float(oracles.CAPACITIES[family](oracles.mpf(p), *parameters)) for p in HARD_P]
    np.testing.assert_allclose(make(family, parameters)(HARD_P), expected, rtol=1e-12, atol=1e-307)


@every_shape
def test_logs_agree_with_their_formulas(family, parameters):
    """Logs agree with mpmath to 1e-13 relative, from -1e7 to the last digits below 0."""
    log_p = [
        -1e7,
        -1e5,
        -1e4,
        -745.2,
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
    if family == "ExponentialPower" and parameters[1] < 0:
        assert make(family, parameters).log(-1e7) == -np.inf  # exp(5e6) is beyond any float
        log_p = [lp for lp in log_p if lp > -1000]
    expected = [float(oracles.log_capacity(family, lp, parameters)) for lp in log_p]
    np.testing.assert_allclose(make(family, parameters).log(log_p), expected, rtol=1e-13, atol=0)


@every_shape
def test_derivatives_agree_with_finite_differences(family, parameters):
    """Slopes agree with those of the formula in mpmath to 1e-12 relative over the whole open interval."""
    expected = [float(oracles.capacity_slope(family, p, parameters)) for p in HARD_P]
    np.testing.assert_allclose(make(family, parameters).derivative(HARD_P), expected, rtol=1e-12, atol=1e-307)


@every_family
def test_inverses_agree_with_bisection(family, parameters):
    """Inverses agree with a bisection of the formula in mpmath to 1e-12 relative, next to both ends too."""
    w = [1e-300, 1e-20, 1e-5, 0.05, 0.3, 0.5, 0.7, 0.95, 1 - 1e-6, 1 - 2.0**-53]
    expected = [float(oracles.capacity_inverse(family, value, parameters)) for value in w]
    np.testing.assert_allclose(make(family, parameters).inverse(w), expected, rtol=1e-12, atol=1e-300)


@SETTINGS
@given(shape=strategies.capacities)
def test_every_family_fixes_both_ends(shape):
    """0 and 1 are their own images exactly, under the inverse too, and 0 and -inf under the log."""
    capacity = make(*shape)
    assert capacity([0.0, 1.0]).tolist() == [0.0, 1.0]
    assert capacity.inverse([0.0, 1.0]).tolist() == [0.0, 1.0]
    assert capacity.log([-np.inf, 0.0]).tolist() == [-np.inf, 0.0]


@SETTINGS
@given(shape=strategies.capacities, p=strategies.probabilities, q=strategies.probabilities)
def test_every_family_is_monotone_and_stays_between_0_and_1(shape, p, q):
    """A larger probability is not perceived as a smaller one (up to rounding), nor one outside [0, 1]."""
    capacity = make(*shape)
    low, high = capacity([min(p, q), max(p, q)])
    assert 0 <= low <= 1 and 0 <= high <= 1
    assert high >= low - 1e-13 * low
    assert capacity.is_monotone
    assert (capacity.derivative([p, q]) >= 0).all()


@SETTINGS
@given(shape=strategies.capacities, p=st.floats(1e-300, 1.0))
def test_log_is_the_log_of_the_value(shape, p):
    """exp(log(ln p)) is the value, up to the rounding of ln p."""
    capacity = make(*shape)
    np.testing.assert_allclose(np.exp(capacity.log(np.log(p))), capacity(p), rtol=2e-12, atol=1e-300)


@SETTINGS
@given(shape=strategies.capacities, p=st.floats(1e-6, 1 - 1e-6))
def test_inverse_undoes_every_family(shape, p):
    """The inverse of a value is the probability, up to the value's rounding over the slope."""
    capacity = make(*shape)
    value = capacity(p)
    slack = 1e-15 * value / capacity.derivative(p) if capacity.derivative(p) > 0 else 1.0
    np.testing.assert_allclose(
        capacity.inverse(value), p, rtol=1e-11, atol=10 * slack + 1e-12 * (family_is_flat(shape))
    )


def family_is_flat(shape: tuple[str, tuple[float, ...]]) -> float:
    """A looser tolerance close to the threshold of Eq. 3, where the slope all but vanishes."""
    return 1e9 if shape[0] == "TverskyKahneman" and shape[1][0] < 0.285 else 0.0


@SETTINGS
@given(shape=strategies.capacities)
def test_fixed_points_and_inflections_are_what_they_say(shape):
    """At a fixed point the formula returns its argument; at an inflection its second difference changes sign."""
    capacity, formula = make(*shape), oracles.CAPACITIES[shape[0]]
    point, bend = capacity.fixed_point, capacity.inflection
    if point is not None and 1e-12 < point < 1 - 1e-12:
        image = float(formula(oracles.mpf(point), *shape[1]))
        slope = float(capacity.derivative(point))
        assert abs(image - point) <= 1e-13 * point * (1 + slope)
    if bend is not None and 1e-9 < bend < 1 - 1e-9:
        step = 1e-4 * min(bend, 1 - bend)
        below, above = (oracles.capacity_slope(shape[0], bend + sign * step, shape[1], 2) for sign in (-1, 1))
        assert below * above < 0


@pytest.mark.parametrize(
    ("family", "parameters", "fixed", "bends"),
    [
        ("TverskyKahneman", (0.61,), True, True),
        ("TverskyKahneman", (1.0,), False, False),
        ("TverskyKahneman", (1.5,), True, True),
        ("TverskyKahneman", (2.5,), False, True),
        ("TverskyKahneman", (3.0,), False, False),
        ("Prelec", (0.65, 2.0), True, True),
        ("Prelec", (1.0, 2.0), False, False),
        ("LinearInLogOdds", (0.61, 0.724), True, True),
        ("LinearInLogOdds", (1.0, 0.5), False, False),
        ("PowerWeight", (2.0,), False, False),
        ("NeoAdditive", (0.7, 0.1), True, False),
        ("NeoAdditive", (0.6, 0.4), False, False),
        ("ExponentialPower", (2.0, 0.5), True, True),
        ("ExponentialPower", (0.5, 0.5), False, False),
        ("ExponentialPower", (0.5, -0.5), True, True),
        ("HyperbolicLog", (1.0, 1.5), True, True),
        ("HyperbolicLog", (0.1, 0.5), False, False),
        ("Identity", (), False, False),
    ],
)
def test_where_there_is_a_fixed_point_or_an_inflection(family, parameters, fixed, bends):
    """Signs of Omega(p) - p and of the second difference on a fine grid say whether there is one."""
    capacity, p = make(family, parameters), np.linspace(0.0005, 0.9995, 1999)
    assert (capacity.fixed_point is not None) == fixed
    assert (capacity.inflection is not None) == bends
    excess = np.sign(np.round(capacity(p) - p, 12))
    assert (len(np.unique(excess[excess != 0])) == 2) == fixed
    bend = np.sign(np.round(np.diff(capacity(p), 2), 12))
    assert (len(np.unique(bend[bend != 0])) == 2) == bends


def test_closed_forms_of_special_points():
    """Prelec's points are 1/e; others follow from their formulas by hand."""
    assert Prelec(0.65).fixed_point == Prelec(0.65).inflection == pytest.approx(1 / math.e, rel=1e-15)
    assert Prelec(2.5).fixed_point == pytest.approx(1 / math.e, rel=1e-15)
    assert Prelec(0.5, 2.0).fixed_point == pytest.approx(math.exp(-4), rel=1e-14)
    assert LinearInLogOdds(0.5, 1.0).fixed_point == LinearInLogOdds(0.5, 1.0).inflection == 0.5
    assert LinearInLogOdds(0.5, 2.0).fixed_point == pytest.approx(0.8, rel=1e-14)  # odds 4 = 2 * 4**.5
    assert NeoAdditive(0.5, 0.25).fixed_point == 0.5
    assert ExponentialPower(2.0, 0.5).inflection == pytest.approx(1 / 16, rel=1e-14)
    assert HyperbolicLog(1.0, 1.5).inflection == pytest.approx(math.exp(-1.5), rel=1e-14)


def test_prelec_table():
    """Prelec's family of one parameter at .65, on the grid of the literature."""
    table = [0.067312, 0.129970, 0.179129, 0.290389, 0.454745, 0.640868, 0.793262, 0.864973, 0.950961]
    np.testing.assert_allclose(Prelec(0.65)(TABLE_P), table, atol=5e-7)


def test_linear_in_log_odds_table():
    """Gonzalez and Wu's parametrisation: slope .61 and elevation .724, in this order."""
    table = [0.042048, 0.107257, 0.159323, 0.270297, 0.419954, 0.585936, 0.734455, 0.813535, 0.922732]
    np.testing.assert_allclose(LinearInLogOdds(slope=0.61, elevation=0.724)(TABLE_P), table, atol=5e-7)


# Wakker (2010), Prospect Theory: examples, exercises and assignments by number, with the digits that the R package pt
# (gary-au/pt, tests/Test_Wakker_2010.R) prints for them: w at the ranks, and the decision weights.
WAKKER = [
    ("Exercise 5.4.3", PowerWeight(0.5), [1 / 6, 2 / 3], [0.40825, 0.81650]),
    ("Example 5.6.1", PowerWeight(2.0), [0.2, 0.5], [0.04, 0.25]),
    ("Exercise 5.6.1.a", PowerWeight(2.0), [1 / 3, 1 / 2], [0.11111, 0.25]),
    ("Exercise 5.6.1.b", PowerWeight(2.0), [1 / 12, 1 / 3], [0.0069444, 0.1111111]),
    ("Exercise 5.6.2", PowerWeight(2.0), [1 / 6, 2 / 3], [0.027778, 0.444444]),
    ("Assignment 5.6.3", PowerWeight(2.0), [0.25, 0.75], [0.0625, 0.5625]),
    ("Figure 6.3.1.b", PowerWeight(0.5), [0.25, 0.5, 0.75], [0.5, 0.70711, 0.86603]),
    ("Exercise 7.2.1", TverskyKahneman(0.5), [0.2, 0.8], [0.24845, 0.49690]),
    ("Exercise 7.2.3", TverskyKahneman(0.61), [0.5], [0.42064]),
    ("Exercise 9.3.7.c", TverskyKahneman(0.61), [0.01, 0.36, 0.71], [0.05527, 0.34971, 0.54041]),
    ("Exercise 9.3.7.a, losses", TverskyKahneman(0.69), [0.29], [0.32091]),
    ("Exercise 9.3.7.d, losses", TverskyKahneman(0.61), [0.29], [0.31298]),
    ("Assignment 9.3.9.c", TverskyKahneman(0.69), [0.33, 0.66], [0.3472, 0.5589]),
    ("Assignment 9.3.9.a, losses", TverskyKahneman(0.69), [0.34], [0.3537]),
    ("Assignment 9.3.5.a", TverskyKahneman(0.61), [0.15], [0.2269]),
    ("Assignment 9.3.5.a, losses", TverskyKahneman(0.69), [0.2], [0.2570]),
]


@pytest.mark.parametrize(("where", "capacity", "p", "printed"), WAKKER, ids=[row[0] for row in WAKKER])
def test_worked_numbers_of_a_textbook(where, capacity, p, printed):
    """Perceived probabilities are those printed, to half a unit of their last digit."""
    np.testing.assert_allclose(capacity(p), printed, atol=5.1e-5 if where.startswith("Assignment 9") else 5.1e-6)


@pytest.mark.parametrize(
    ("capacity", "slopes"),
    [
        (TverskyKahneman(0.61), [np.inf, np.inf]),
        (TverskyKahneman(1.0), [1.0, 1.0]),
        (TverskyKahneman(1.5), [0.0, 0.5]),
        (Prelec(0.65), [np.inf, np.inf]),
        (Prelec(1.0, 2.0), [0.0, 2.0]),
        (Prelec(2.0), [0.0, 0.0]),
        (LinearInLogOdds(0.61, 0.724), [np.inf, np.inf]),
        (LinearInLogOdds(1.0, 4.0), [4.0, 0.25]),
        (LinearInLogOdds(2.0, 4.0), [0.0, 0.0]),
        (PowerWeight(0.5), [np.inf, 0.5]),
        (PowerWeight(2.0), [0.0, 2.0]),
        (NeoAdditive(0.7, 0.1), [np.inf, np.inf]),
        (NeoAdditive(0.7, 0.0), [0.7, np.inf]),
        (NeoAdditive(0.5, 0.5), [np.inf, 0.5]),
        (ExponentialPower(2.0, 0.5), [np.inf, 2.0]),
        (ExponentialPower(2.0, -0.5), [0.0, 2.0]),
        (HyperbolicLog(1.0, 1.5), [np.inf, 1.5]),
        (Identity(), [1.0, 1.0]),
    ],
    ids=str,
)
def test_slopes_and_gradients_at_the_ends(capacity, slopes):
    """At 0 and 1 the derivative is the limit from inside, infinite at a jump, and the gradient is it or, for inf, 0."""
    assert capacity.derivative([0.0, 1.0]).tolist() == slopes
    finite = [0.0 if slope == np.inf else slope for slope in slopes]
    p = torch.tensor([0.0, 1.0], dtype=torch.float64, requires_grad=True)
    values = capacity(p)
    values.sum().backward()
    assert values.tolist() == [0.0, 1.0]
    assert p.grad.tolist() == finite
    w = torch.tensor([0.0, 1.0], dtype=torch.float64, requires_grad=True)
    capacity.inverse(w).sum().backward()
    assert w.grad.tolist() == [1 / slope if slope > 0 else 0.0 for slope in slopes]
    log_p = torch.tensor([-torch.inf, 0.0], dtype=torch.float64, requires_grad=True)
    capacity.log(log_p).sum().backward()
    assert log_p.grad.tolist() == [0.0, finite[1]]


def test_jumps():
    """Next to an end at which it jumps the function has its inner limit; the inverse maps the gap to that end."""
    neo, power = NeoAdditive(0.7, 0.1), ExponentialPower(2.0, 0.5)
    assert neo([5e-324, 1 - 2.0**-53]) == pytest.approx([0.1, 0.8])
    assert neo.log([-1e5, -1e-300]) == pytest.approx([math.log(0.1), math.log(0.8)], rel=1e-14)
    assert neo.inverse([0.05, 0.1, 0.8, 0.9]).tolist() == [0.0, 0.0, 1.0, 1.0]
    assert power(5e-324) == pytest.approx(math.exp(-4))
    assert power.log(-1e5) == pytest.approx(-4)
    assert power.inverse([0.01, math.exp(-4) * (1 - 1e-15)]).tolist() == [0.0, 0.0]


@every_shape
def test_every_family_agrees_between_numpy_and_torch(family, parameters):
    """Both kinds give the same to 1e-12, keep float32 and shape, and return their own kind."""
    capacity = make(family, parameters)
    p, log_p = np.array([0.0, *HARD_P, 1.0]), np.array([-np.inf, -600.0, -1.0, -1e-3, 0.0])
    for function, x in ((capacity, p), (capacity.derivative, p), (capacity.inverse, p), (capacity.log, log_p)):
        tensor = function(torch.tensor(x))
        assert isinstance(tensor, torch.Tensor)
        np.testing.assert_allclose(tensor.numpy(), function(x), rtol=1e-12, atol=1e-300)
        assert function(x.reshape(1, -1)).shape == (1, len(x))
        assert np.ndim(function(x[1])) == 0
        with np.errstate(under="ignore"):
            assert function(x.astype(np.float32)).dtype == np.float32
        assert function(torch.tensor(x, dtype=torch.float32)).dtype == torch.float32


@every_shape
def test_every_gradient_is_the_derivative(family, parameters):
    """Autograd agrees with finite differences for value, log, derivative and inverse, and with `derivative`."""
    capacity = make(family, parameters)
    p = torch.tensor([0.01, 0.3, 0.5, 0.77, 0.99], dtype=torch.float64, requires_grad=True)
    log_p = torch.tensor([-9.0, -2.0, -math.log(2), -0.3, -1e-2], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(capacity, (p,))
    assert torch.autograd.gradcheck(capacity.log, (log_p,))
    (gradient,) = torch.autograd.grad(capacity(p).sum(), p)
    torch.testing.assert_close(gradient, capacity.derivative(p.detach()), rtol=1e-9, atol=0)
    if family != "Identity" and family != "NeoAdditive":
        assert torch.autograd.gradcheck(capacity.derivative, (p,))
    if parameters not in ((0.2793,), (1.0, 1e6)):  # too flat for finite differences, or too bent
        w = capacity(p.detach()[1:4]).requires_grad_()
        assert torch.autograd.gradcheck(capacity.inverse, (w,), eps=1e-7, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("count", [100_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
@every_shape
def test_float32_has_no_nan(family, parameters, count):
    """Many float32 probabilities, some at or next to the ends, give no nan and nothing outside [0, 1]."""
    capacity, rng = make(family, parameters), np.random.default_rng(0)
    p = np.concatenate([rng.random(count - 1000), 10 ** rng.uniform(-45, 0, 998), [0.0, 1.0]]).astype(np.float32)
    p = np.minimum(p, np.float32(1))
    for kind in (np.asarray, torch.tensor):
        value = np.asarray(capacity(kind(p)))
        assert value.dtype == np.float32
        assert ((value >= 0) & (value <= 1 + 1e-6)).all()
        with np.errstate(divide="ignore"):
            log_p = np.log(p)
        assert not np.isnan(np.asarray(capacity.log(kind(log_p)))).any()
        assert not np.isnan(np.asarray(capacity.derivative(kind(p)))).any()
    some = p[::50]
    assert not np.isnan(capacity.inverse(some)).any()


@every_family
def test_every_family_works_under_vmap_and_on_the_meta_device(family, parameters):
    """Where values cannot be read, the range check is skipped and every function still works."""
    capacity = make(family, parameters)
    p = torch.rand(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for function in (capacity, capacity.derivative, capacity.inverse):
        torch.testing.assert_close(torch.func.vmap(function)(p), function(p), rtol=1e-14, atol=0)
        assert function(torch.empty(3, device="meta")).shape == (3,)
    torch.testing.assert_close(torch.func.vmap(capacity.log)(p.log()), capacity.log(p.log()), rtol=1e-14, atol=0)


@pytest.mark.parametrize("size", [BLOCK - 1, BLOCK, 2 * BLOCK + 7])
def test_blocks_change_nothing(size):
    """A large array, also one that is not contiguous, gives what its elements give; a bad one is found in any block."""
    p = np.random.default_rng(0).random(2 * size)[::2]
    for capacity in (TverskyKahneman(0.61), Prelec(0.65)):
        np.testing.assert_array_equal(capacity(p)[-5:], capacity(p[-5:]))
        np.testing.assert_array_equal(capacity(p[:-1].reshape(-1, 1))[:, 0], capacity(p)[:-1])
    p[-1] = 1.25
    with pytest.raises(ValueError, match=r"^prob must lie in \[0, 1\]; got 1\.25$"):
        TverskyKahneman(0.61)(p)


@every_shape
def test_every_family_passes_nan_on(family, parameters):
    """A nan is passed on by all functions."""
    capacity = make(family, parameters)
    for function in (capacity, capacity.log, capacity.inverse):
        np.testing.assert_array_equal(function([np.nan, 0.0]), [np.nan, function(0.0)])
        assert function(torch.tensor([torch.nan])).isnan().all()


def test_inverse_needs_a_monotone_capacity():
    """Below the threshold a value has several origins: the inverse is refused with the capacity and the rule."""
    message = "capacity must be monotone to have an inverse; got TverskyKahneman(gamma=0.2)"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        quiet(0.2).inverse(0.5)


@pytest.mark.parametrize("kind", [np.array, torch.tensor, list])
@every_shape
def test_every_family_refuses_what_is_no_probability(family, parameters, kind):
    """Outside its domain every function names the argument, the rule and the first offender."""
    capacity = make(family, parameters)
    for function, name in ((capacity, "prob"), (capacity.derivative, "prob"), (capacity.inverse, "perceived")):
        with pytest.raises(ValueError, match=rf"^{name} must lie in \[0, 1\]; got -0\.25$"):
            function(kind([0.5, -0.25, 1.5]))
    with pytest.raises(ValueError, match=r"^log_prob must be <= 0; got 0\.5$"):
        capacity.log(kind([-1.0, 0.5]))


@pytest.mark.parametrize(
    ("family", "arguments", "message"),
    [
        ("TverskyKahneman", (0,), "gamma must be > 0; got 0"),
        ("Prelec", (-1.0,), "alpha must be > 0; got -1.0"),
        ("Prelec", (0.65, 0.0), "beta must be > 0; got 0.0"),
        ("LinearInLogOdds", (0.0, 1.0), "slope must be > 0; got 0.0"),
        ("LinearInLogOdds", (0.6, math.inf), "elevation must be finite; got inf"),
        ("PowerWeight", (0.0,), "exponent must be > 0; got 0.0"),
        ("NeoAdditive", (0.0, 0.1), "slope must be > 0; got 0.0"),
        ("NeoAdditive", (0.5, -0.1), "intercept must be >= 0; got -0.1"),
        ("NeoAdditive", (0.5, 0.75), "slope + intercept must be <= 1; got 1.25"),
        ("ExponentialPower", (0.0, 1.0), "alpha must be > 0; got 0.0"),
        ("ExponentialPower", (1.0, math.nan), "beta must be finite; got nan"),
        ("HyperbolicLog", (0.0, 1.0), "alpha must be > 0; got 0.0"),
        ("HyperbolicLog", (1.0, -2.0), "beta must be > 0; got -2.0"),
    ],
)
def test_every_family_refuses_parameters_outside_their_domain(family, arguments, message):
    """A parameter outside its domain is a ValueError with its name, the rule and the value."""
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        make(family, arguments)
