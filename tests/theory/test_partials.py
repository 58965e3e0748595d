"""Derivatives of value functions and capacities in their parameters, arrays of parameters, and separable weights."""

from __future__ import annotations

import dataclasses
import math

import mpmath
import numpy as np
import pytest
from mpmath import mpf

from humanline.theory import (
    ExponentialPower,
    ExponentialValue,
    HyperbolicLog,
    Identity,
    LinearInLogOdds,
    LogarithmicValue,
    LogisticValue,
    NeoAdditive,
    PowerValue,
    PowerWeight,
    Prelec,
    TverskyKahneman,
    decision_weights,
    separable_weights,
)
from tests import oracles
from tests.helpers.optional import torch

CAPACITIES = [
    TverskyKahneman(0.28),
    TverskyKahneman(0.61),
    TverskyKahneman(1.0),
    TverskyKahneman(2.5),
    Prelec(0.65, 1.1),
    Prelec(1.0),
    LinearInLogOdds(0.61, 0.724),
    LinearInLogOdds(1.0, 2.0),
    PowerWeight(0.7),
    NeoAdditive(0.8, 0.1),
    NeoAdditive(1.0, 0.0),
    ExponentialPower(2.0, 0.5),
    ExponentialPower(0.7, 0.0),
    ExponentialPower(1.2, -0.4),
    HyperbolicLog(1.0, 1.5),
    HyperbolicLog(0.001, 0.8),
]
LOG_P = [math.log(1e-300), -46.0, -5.0, -1.0, -0.7, -0.69, -0.3, -0.01, -1e-9, -1e-16]
VALUES = [
    (PowerValue(0.8, 0.7, 2.0), lambda z, c, d, a: oracles.power_value(z, c, d, a)),
    (ExponentialValue(0.03, 0.05, 1.5), oracles.exponential_value),
    (LogarithmicValue(0.2, 0.1, 2.0), oracles.logarithmic_value),
    (
        LogisticValue(0.1, 0.07, 1.2),
        lambda z, c, d, a: mpmath.tanh(c * z / 2) / 2 if z >= 0 else a * mpmath.tanh(d * z / 2) / 2,
    ),
]


def called(capacity):
    return f"{type(capacity).__name__}{tuple(vars(capacity).values())}"


@pytest.mark.parametrize("capacity", CAPACITIES, ids=called)
def test_derivatives_of_capacities(capacity):
    """They agree with mpmath to 1e-9, at probabilities from 1e-300 to 1 - 1e-16, whose rest may be known."""
    names = [field.name for field in dataclasses.fields(capacity)]
    own = [mpf(getattr(capacity, name)) for name in names]
    perceived, found = capacity.partials(np.array(LOG_P))
    np.testing.assert_allclose(perceived, np.exp(capacity.log(np.array(LOG_P))), rtol=1e-12)
    with mpmath.workdps(700):
        rest = np.array([float(mpmath.log1p(-mpmath.exp(mpf(lp)))) for lp in LOG_P])
        _, known = capacity.partials(np.array(LOG_P), rest)
        for at, lp in enumerate(LOG_P):
            p = mpmath.exp(mpf(lp))
            for k, name in enumerate(names):

                def omega(x, k=k, p=p):
                    return oracles.CAPACITIES[type(capacity).__name__](p, *[*own[:k], x, *own[k + 1 :]])

                step = mpf(10) ** -100
                expected = (omega(own[k] + step) - omega(own[k] - step)) / (2 * step)
                # Where the derivative crosses 0, what counts is the size of the function.
                room = 1e-9 * max(abs(expected), 1e-3 * min(omega(own[k]), 1 - omega(own[k]))) + mpf(5e-324)
                assert abs(mpf(float(found[name][at])) - expected) <= room, (name, lp)
                assert abs(mpf(float(known[name][at])) - expected) <= room, (name, lp)


@pytest.mark.parametrize("capacity", [*CAPACITIES, Identity()], ids=called)
def test_ends_are_exact_for_all_parameters(capacity):
    """At probabilities 0 and 1 the capacity is 0 and 1 and its derivatives are 0; nan stays nan; above 1 is refused."""
    perceived, found = capacity.partials([-math.inf, 0.0])
    assert perceived.tolist() == [0.0, 1.0]
    assert all(each.tolist() == [0.0, 0.0] for each in found.values())
    assert np.isnan(capacity.partials(math.nan)[0])
    with pytest.raises(ValueError, match="log_prob must be <= 0"):
        capacity.partials([-1.0, 0.5])


@pytest.mark.parametrize(("value", "oracle"), VALUES, ids=lambda v: type(v).__name__)
def test_derivatives_of_value_functions(value, oracle):
    """Those in the parameters and in the outcome agree with mpmath to 1e-9, near the reference point and far."""
    sizes = [1e-12, 1e-3, 0.3, 1.0, 7.0, 90.0, 900.0]
    z = np.array([-x for x in sizes] + sizes)
    own = [mpf(value.curvature), mpf(value.loss_curvature), mpf(value.loss_aversion)]
    found_value, found = value.partials(z)
    # A power by exp(c ln z) rounds c ln z, whose error in units of the last place the exponential passes on.
    room = (2 * np.abs(np.log(np.abs(z))) + 4) * np.finfo(float).eps
    assert (np.abs(found_value / value(z) - 1) <= room).all()
    slope = value.derivative(z)
    with mpmath.workdps(60):
        for at, outcome in enumerate(z):
            for k, name in enumerate(["curvature", "loss_curvature", "loss_aversion"]):
                expected = mpmath.diff(
                    lambda x, k=k, outcome=outcome: oracle(mpf(outcome), *[*own[:k], x, *own[k + 1 :]]),
                    own[k],
                    h=mpf(10) ** -20,
                )
                assert abs(found[name][at] - expected) <= 1e-9 * abs(expected) + 1e-300
            expected = mpmath.diff(lambda x: oracle(x, *own), mpf(outcome), h=mpf(10) ** -35)
            assert abs(slope[at] - expected) <= 1e-9 * abs(expected)


@pytest.mark.parametrize("value", [value for value, _ in VALUES], ids=lambda v: type(v).__name__)
@pytest.mark.parametrize("array", [False, True], ids=["numbers", "arrays"])
def test_one_side_alone_has_the_values_it_has_beside_the_other(value, array):
    """Gains alone, and losses alone, which take half of the work, have the values and derivatives of both together."""
    z = np.array([0.0, 0.3, 1.0, 7.0, math.nan, 90.0])
    both = np.concatenate([z, -z])
    if array:
        value = dataclasses.replace(value, curvature=np.array([[0.4], [0.9]]))
    everything = [value(both), *value.partials(both)[1].values()]
    for side in (slice(0, 6), slice(6, 12)):
        alone = [value(both[side]), *value.partials(both[side])[1].values()]
        for one, other in zip(everything, alone, strict=True):
            assert one[..., side].shape == other.shape
            np.testing.assert_allclose(other, one[..., side], rtol=1e-14, atol=0)
    assert value(np.zeros(0)).shape == (2, 0)[1 - array :]


def test_one_curvature_has_the_derivative_of_both_sides():
    """Without a loss curvature its derivative is that of losses too; at the reference point all are 0."""
    z = np.array([-3.0, 0.0, 4.0])
    _, one = PowerValue(0.8, None, 2.0).partials(z)
    _, two = PowerValue(0.8, 0.8, 2.0).partials(z)
    assert "loss_curvature" not in one
    np.testing.assert_array_equal(one["curvature"], two["curvature"] + two["loss_curvature"])
    assert all(each[1] == 0 for each in two.values())
    assert PowerValue(0.8).derivative(0.0) == math.inf and PowerValue(1.0).derivative(0.0) == 1.0


ARRAYS = [
    (TverskyKahneman, {"gamma": [0.61, 1.0, 1.7]}),
    (Prelec, {"alpha": [0.6, 1.0, 1.4], "beta": [1.0, 0.8, 2.0]}),
    (LinearInLogOdds, {"slope": [0.6, 1.0, 1.4], "elevation": [0.7, 2.0, 1.0]}),
    (PowerWeight, {"exponent": [0.6, 1.0, 1.4]}),
    (NeoAdditive, {"slope": [0.8, 1.0, 0.5], "intercept": [0.1, 0.0, 0.5]}),
    (ExponentialPower, {"alpha": [0.6, 1.0, 1.4], "beta": [-0.5, 0.0, 0.8]}),
    (HyperbolicLog, {"alpha": [0.6, 1.0, 1.4], "beta": [1.0, 0.8, 2.0]}),
]


@pytest.mark.parametrize(("family", "parameters"), ARRAYS, ids=lambda x: getattr(x, "__name__", ""))
@pytest.mark.parametrize("kind", [np.array, lambda x: torch.tensor(x, dtype=torch.float64)], ids=["numpy", "torch"])
def test_capacities_take_arrays_of_parameters(family, parameters, kind):
    """Arrays of parameters give, column for column, what each column's numbers give alone, in every function."""
    p = [0.0, 1e-9, 0.2, 0.5, 0.9, 1.0]
    together = family(**{name: kind(values) for name, values in parameters.items()})
    for column in range(3):
        alone = family(**{name: values[column] for name, values in parameters.items()})
        for call in (
            lambda c: c(kind(p)[:, None]),
            lambda c: c.derivative(kind(p)[:, None]),
            lambda c: c.inverse(kind(p)[:, None]),
            lambda c: c.log(kind([-700.0, -1.0, -1e-9])[:, None]),
            lambda c: c.partials(kind([-50.0, -1.0, -1e-9])[:, None])[0],
            *(lambda c, n=n: c.partials(kind([-50.0, -1.0, -1e-9])[:, None])[1][n] for n in parameters),
        ):
            both, own = np.asarray(call(together)), np.asarray(call(alone))
            np.testing.assert_allclose(both[:, column % both.shape[1]], own[:, 0], rtol=1e-10, atol=1e-300)
    assert together.is_monotone
    with pytest.raises(TypeError, match=r"the parameters of .* are arrays"):
        _ = together.fixed_point


@pytest.mark.parametrize("family", [PowerValue, ExponentialValue, LogarithmicValue, LogisticValue])
def test_value_functions_take_arrays_of_parameters(family):
    """Arrays of parameters give what each entry's numbers give alone."""
    z = np.array([-3.0, -1.0, 0.0, 2.0, 7.0])
    curvature, other, aversion = np.array([0.4, 1.0, 1.2]), np.array([0.5, 0.9, 1.0]), np.array([1.0, 2.0, 3.0])
    together = family(curvature, other, aversion)
    for column in range(3):
        alone = family(curvature[column], other[column], aversion[column])
        np.testing.assert_allclose(together(z[:, None])[:, column], alone(z), rtol=1e-14)
        np.testing.assert_allclose(together.inverse(together(z[:, None]))[:, column], z, rtol=1e-10, atol=1e-12)
        for name, each in together.partials(z[:, None])[1].items():
            np.testing.assert_allclose(each[:, column], alone.partials(z)[1][name], rtol=1e-13, atol=0)
    if family in (ExponentialValue, LogisticValue):
        with pytest.raises(ValueError, match="value must lie in the range of the function; got 1000000000"):
            together.inverse([[1e9]])
    with pytest.raises(TypeError, match="curvature must be one number here"):
        together.max_abs(0, 1)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: TverskyKahneman(np.array([0.5, -1.0])), "gamma must be > 0 and finite; got -1.0"),
        (lambda: PowerValue(np.array([0.5, np.nan])), "curvature must be > 0 and finite; got nan"),
        (lambda: NeoAdditive(np.array([0.5, 0.9]), 0.2), "slope . intercept must be <= 1"),
        (lambda: NeoAdditive(np.array([0.5, 0.9]), np.array([-0.1, 0.0])), "intercept must be >= 0 and finite"),
        (lambda: ExponentialPower(1.0, np.array([np.inf])), "beta must be finite"),
    ],
)
def test_wrong_entries_of_arrays_are_refused(make, said):
    """An entry that a number could not be is refused with its name and rule."""
    with pytest.raises(ValueError, match=said):
        make()


@pytest.mark.parametrize("gamma", [[0.5, 0.6], [[0.5], [0.6]]])
def test_weights_of_arrays_of_parameters_are_refused(gamma):
    """An axis of people is not taken for one of outcomes: it is said where such parameters go."""
    for weights in (decision_weights, separable_weights):
        with pytest.raises(TypeError, match=r"gain must have numbers as parameters here; .*for_groups"):
            weights([[1.0, 2.0], [3.0, 4.0]], [[0.5, 0.5], [0.2, 0.8]], gain=TverskyKahneman(np.array(gamma)))


def test_arrays_below_the_threshold_warn():
    """One gamma below .2792 among several is warned of, and the capacity is not monotone."""
    with pytest.warns(UserWarning, match=r"gamma=0\.2 is below"):
        assert not TverskyKahneman(np.array([0.61, 0.2])).is_monotone


def test_separable_weights_are_capacities_of_single_probabilities():
    """Each distinct outcome weighs the capacity of its probability; ties share theirs; a sure outcome weighs 1."""
    gain, loss = TverskyKahneman(0.61), Prelec(0.7)
    z, p = [5.0, -2.0, 5.0, 0.0, -7.0], [0.1, 0.2, 0.3, 0.15, 0.25]
    found = separable_weights(z, p, gain=gain, loss=loss)
    tied = gain(0.4)
    expected = [tied * 0.25, loss(0.2), tied * 0.75, gain(0.15), loss(0.25)]
    np.testing.assert_allclose(found, expected, rtol=1e-13)
    assert separable_weights([1.0, 1.0], [1 / 3, 2 / 3], gain=gain).sum() == 1.0
    # Next to 1 the rest is what is precise: 1 - Omega(1 - q) for q = 1e-18, which 1 - q rounds away.
    likely = separable_weights([1.0, 0.0], [1.0, 1e-18], gain=TverskyKahneman(0.3))[0]
    with mpmath.workdps(60):
        exact = 1 - oracles.tversky_kahneman(1 - mpf(1e-18), 0.3)
    np.testing.assert_allclose(1 - likely, float(exact), rtol=1e-9)
    with pytest.raises(ValueError, match="loss must be given"):
        separable_weights([-1.0, 1.0], [0.5, 0.5], gain=gain)


@pytest.mark.parametrize("family", [ExponentialValue, LogarithmicValue])
@pytest.mark.parametrize(
    ("dtype", "size"), [("float32", 1e20), ("float32", 1e30), ("float64", 1e160), ("float64", 1e300)]
)
def test_partials_of_outcomes_whose_square_is_too_large(family, dtype, size):
    """They are what mpmath has, as the values are; the square had made them infinite."""
    c, s = mpf(0.5), mpf(size)
    exact = {
        ExponentialValue: (c * s * mpmath.exp(-c * s) + mpmath.expm1(-c * s)) / c**2,
        LogarithmicValue: (c * s / (1 + c * s) - mpmath.log1p(c * s)) / c**2,
    }[family]
    outcomes = torch.tensor(size, dtype=getattr(torch, dtype))
    found = family(0.5).partials(outcomes)[1]["curvature"]
    assert float(found) == pytest.approx(float(exact), rel=1e-6)


def test_partials_of_outcomes_that_are_as_far_as_can_be():
    """A value that has reached its end hangs on the curvature no more; the logistic one's partial had been nan."""
    far = np.array([math.inf, -math.inf, 1e300])
    assert LogisticValue(1e-12, loss_aversion=2.0).partials(far)[1]["curvature"].tolist() == [0.0, 0.0, 0.0]
    assert LogisticValue(1.0).partials(torch.tensor(math.inf))[1]["curvature"] == 0
    assert ExponentialValue(0.5, loss_aversion=2.0).partials(far)[1]["curvature"].tolist() == [-4.0, 8.0, -4.0]


@pytest.mark.parametrize(("dtype", "curvature"), [("float32", 1e-20), ("float64", 1e-110)])
def test_partials_of_next_to_no_curvature_have_gradients(dtype, curvature):
    """Towards 0 the function is linear: the branch that is not taken divides by no square of the curvature."""
    for family in (ExponentialValue, LogarithmicValue):
        at = torch.tensor([1.0, 2.0], dtype=getattr(torch, dtype), requires_grad=True)
        found = family(curvature).partials(at)[1]["curvature"]
        found.sum().backward()
        assert found.tolist() == pytest.approx([-0.5, -2.0]) and at.grad.tolist() == pytest.approx([-1.0, -2.0])
