"""Prepared prospects: the utilities of the theory, and derivatives that hold in many digits."""

from __future__ import annotations

import dataclasses
from typing import Any

import mpmath
import numpy as np
import pytest
from mpmath import mpf

from humanline.fit import DataError, prepare
from humanline.theory import (
    ExponentialPower,
    ExponentialValue,
    HyperbolicLog,
    ImpliedCapacity,
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
    subjective_utility,
)
from tests import oracles

VALUES = [
    PowerValue(0.8, 0.7, 2.0),
    PowerValue(1.3, None, 2.25),
    ExponentialValue(0.03, 0.05, 1.5),
    LogarithmicValue(0.2, None, 2.0),
    LogisticValue(0.1, 0.07, 1.2),
]
CAPACITIES = [
    TverskyKahneman(0.61),
    Prelec(0.65, 1.1),
    LinearInLogOdds(0.61, 0.724),
    PowerWeight(0.7),
    NeoAdditive(0.7, 0.2),
    ExponentialPower(2.0, 0.5),
    ExponentialPower(1.2, -0.4),
    HyperbolicLog(1.0, 1.5),
]
REFERENCE = 2.0


def random_prospects(number: int, most: int = 9, seed: int = 0) -> tuple[Any, Any]:
    """Return prospects with ties, zeros, both signs, outcomes at the reference point and padding."""
    rng = np.random.default_rng(seed)
    z = rng.integers(-30, 40, (number, most)).astype(float)
    z[rng.random(z.shape) < 0.15] = REFERENCE
    z[rng.random(z.shape) < 0.2] += 0.25
    p = rng.random(z.shape) ** 3 * (np.arange(most) < rng.integers(1, most + 1, number)[:, None])
    p[rng.random(number) < 0.1, 0] = 1e-9
    return z, p / p.sum(-1, keepdims=True)


def test_utilities_equal_those_of_the_theory():
    """On 100 000 random prospects they differ from `subjective_utility` by at most 1e-12 of sum |w v|."""
    z, p = random_prospects(100_000)
    table, fewer = prepare(z, p, reference_point=REFERENCE), prepare(z[:3000], p[:3000], reference_point=REFERENCE)
    for value, gain, loss in zip(VALUES, CAPACITIES, CAPACITIES[1:], strict=False):
        value = dataclasses.replace(value, reference_point=REFERENCE)
        ours = table if value.curvature == 0.8 else fewer
        own, probs = z[: len(ours)], p[: len(ours)]
        expected = subjective_utility(own, probs, value=value, gain=gain, loss=loss)
        weights = decision_weights(own, probs, gain=gain, loss=loss, reference_point=REFERENCE)
        scale = (weights * np.abs(value(own))).sum(-1)
        found = ours.utilities(value=value, gain=gain, loss=loss)
        assert (np.abs(found - expected) <= 1e-12 * scale).all()
        np.testing.assert_allclose(ours.jacobian(value=value, gain=gain, loss=loss)[0], found, rtol=0, atol=1e-12)
    assert (table.lowest == np.where(p > 0, z, np.inf).min(-1)).all()
    assert (table.highest == np.where(p > 0, z, -np.inf).max(-1)).all()


def test_separable_utilities_equal_those_of_their_weights():
    """The same holds of separable weights, whose ties are one outcome."""
    z, p = random_prospects(5000, seed=1)
    table = prepare(z, p, reference_point=REFERENCE, weights="separable")
    value, gain, loss = PowerValue(0.8, 0.7, 2.0, REFERENCE), TverskyKahneman(0.61), Prelec(0.7)
    weights = separable_weights(z, p, gain=gain, loss=loss, reference_point=REFERENCE)
    scale = (weights * np.abs(value(z))).sum(-1)
    assert (
        np.abs(table.utilities(value=value, gain=gain, loss=loss) - (weights * value(z)).sum(-1)) <= 1e-12 * scale
    ).all()


def test_every_form_of_prospects_is_the_same():
    """Padded arrays, ragged lists and flat arrays with starts give the same bits; many parts give those of one."""
    z, p = random_prospects(200, seed=2)
    lists = [(a[b > 0], b[b > 0]) for a, b in zip(z, p, strict=True)]
    flat = np.concatenate([a for a, _ in lists]), np.concatenate([b for _, b in lists])
    start = np.cumsum([0, *(len(a) for a, _ in lists)])
    human = {"value": PowerValue(), "gain": TverskyKahneman(0.61), "loss": TverskyKahneman(0.69)}
    expected = prepare(z, p).utilities(**human)
    assert (prepare([a for a, _ in lists], [b for _, b in lists]).utilities(**human) == expected).all()
    assert (prepare(*flat, start=start).utilities(**human) == expected).all()


def test_parts_of_many_prospects_share_their_tables(monkeypatch):
    """Prospects sorted in small parts give the same bits as those sorted together."""
    z, p = random_prospects(500, seed=3)
    human = {"value": PowerValue(), "gain": TverskyKahneman(0.61), "loss": TverskyKahneman(0.69)}
    expected = prepare(z, p).utilities(**human)
    monkeypatch.setattr("humanline.fit.flat.ROWS", 7)
    assert (prepare(z, p).utilities(**human) == expected).all()


def test_orders_and_splits_change_nothing():
    """Outcomes in another order give the same bits, and an outcome split in two the same utility."""
    rng = np.random.default_rng(4)
    z, p = random_prospects(300, seed=4)
    human = {"value": PowerValue(), "gain": TverskyKahneman(0.61), "loss": TverskyKahneman(0.69)}
    expected = prepare(z, p).utilities(**human)
    order = rng.permuted(np.tile(np.arange(9), (300, 1)), axis=1)
    turned = prepare(np.take_along_axis(z, order, 1), np.take_along_axis(p, order, 1)).utilities(**human)
    np.testing.assert_allclose(turned, expected, rtol=0, atol=1e-12 * np.abs(expected).max())
    halves = np.concatenate([z, z], 1), np.concatenate([p * 0.25, p * 0.75], 1)
    np.testing.assert_allclose(prepare(*halves).utilities(**human), expected, atol=1e-12 * np.abs(expected).max())


HARD = [1e-300, 1e-20, 1e-3, 0.2, 0.5, 0.9, 1 - 1e-9]


def mp_utility(z: Any, p: Any, family: str, parameters: Any, value: Any) -> Any:
    """Def. 3.3 for gains of distinct outcomes, in many digits."""
    order = sorted(range(len(z)), key=lambda i: -z[i])
    total, last, found = mpf(0), mpf(0), mpf(0)
    for i in order:
        total += p[i]
        perceived = oracles.CAPACITIES[family](total, *parameters) if total < 1 else mpf(1)
        found += (perceived - last) * value(z[i])
        last = perceived
    return found


@pytest.mark.parametrize("capacity", CAPACITIES, ids=lambda c: f"{type(c).__name__}{tuple(vars(c).values())}")
@pytest.mark.parametrize("best", [1e-300, 1e-16, 0.3, 1 - 1e-16], ids=str)
def test_derivatives_of_utilities_in_many_digits(capacity, best):
    """Those in every parameter agree with mpmath to 1e-9, also where the cumulative probability is near 0 or 1."""
    family = type(capacity).__name__
    fields = [field.name for field in dataclasses.fields(capacity)]
    own = [getattr(capacity, name) for name in fields]
    value = PowerValue(0.8)
    # The cumulative probability of the better outcome is known from the precise end: 1 - 1e-16 from the other's 1e-16.
    low = 1 - best if best < 0.9 else 1e-16
    z, p = [7.0, 3.0], [best, low]
    with mpmath.workdps(400):
        exact = [mpf(best), 1 - mpf(best)] if best < 0.9 else [1 - mpf(1e-16), mpf(1e-16)]
        _, found = prepare([z], [p]).jacobian(value=value, gain=capacity)
        for k, name in enumerate(fields):

            def at(x, k=k):
                return mp_utility(z, exact, family, [*own[:k], x, *own[k + 1 :]], lambda y: mpf(y) ** mpf(0.8))

            expected = mpmath.diff(at, mpf(own[k]), h=mpf(10) ** -60)
            scale = max(abs(expected), mpf(1e-9) * abs(at(mpf(own[k]))))
            assert abs(found[f"gain.{name}"][0] - expected) <= 1e-9 * scale
        expected = mpmath.diff(
            lambda c: mp_utility(z, exact, family, own, lambda y: mpf(y) ** c), mpf(0.8), h=mpf(10) ** -60
        )
        assert abs(found["curvature"][0] - expected) <= 1e-9 * abs(expected)


def test_groups_have_their_own_parameters():
    """A table of groups gives each prospect the utility and the derivatives of its group's parameters."""
    z, p = random_prospects(60, seed=5)
    table = prepare(z, p)
    rng = np.random.default_rng(5)
    rows, group = rng.integers(60, size=500), rng.integers(3, size=500)
    ours = table.for_groups(rows, group, 3)
    curvature, aversion, gamma = np.array([0.7, 0.8, 1.1]), np.array([1.0, 2.0, 3.0]), np.array([0.5, 0.7, 1.0])
    alpha = np.array([0.6, 0.9, 1.0])
    utility, found = ours.jacobian(
        value=PowerValue(curvature, 0.9, aversion), gain=TverskyKahneman(gamma), loss=Prelec(alpha, 1.2)
    )
    for g in range(3):
        value = PowerValue(curvature[g], 0.9, aversion[g])
        expected, partials = table.jacobian(value=value, gain=TverskyKahneman(gamma[g]), loss=Prelec(alpha[g], 1.2))
        mine = group == g
        np.testing.assert_allclose(utility[mine], expected[rows[mine]], rtol=1e-12, atol=1e-12)
        assert partials.keys() == found.keys()
        for name, each in partials.items():
            np.testing.assert_allclose(found[name][mine], each[rows[mine]], rtol=1e-11, atol=1e-11, err_msg=name)
    with pytest.raises(ValueError, match="be numbers, since the prospects have no groups"):
        table.utilities(value=PowerValue(curvature), gain=TverskyKahneman(0.6), loss=TverskyKahneman(0.6))


def test_capacities_of_other_kinds_have_utilities():
    """A capacity without log or derivatives, such as a sampler's, gives utilities."""
    sampler = ImpliedCapacity(np.array([1.0, 2.0]), np.array([0.5, 0.5]), np.array([0.3, 0.7]))
    z, p = [[1.0, 2.0, 5.0]], [[0.2, 0.3, 0.5]]
    found = prepare(z, p).utilities(value=PowerValue(), gain=sampler)
    np.testing.assert_allclose(found, subjective_utility(z, p, value=PowerValue(), gain=sampler), rtol=1e-12)


def test_everything_wrong_is_said_at_once():
    """All faults of all prospects stand in one error; a sum near 100 is called percentages."""
    with pytest.raises(DataError) as caught:
        prepare([[1, np.nan], [1, 2], []], [[0.5, 0.5], [-0.5, 1.5], []])
    assert [(fault.row, fault.column) for fault in caught.value.faults] == [
        (0, "outcome"),
        (1, "probability"),
        (2, "outcome"),
    ]
    with pytest.raises(DataError, match="percentages are divided by 100 first") as caught:
        prepare([[1, 2], [1, 2]], [[50, 50], [0.5, 0.4]])
    assert len(caught.value.faults) == 2
    with pytest.raises(ValueError, match="loss must be given"):
        prepare([[-1.0]], [[1.0]]).utilities(value=PowerValue(), gain=TverskyKahneman(0.6))
    with pytest.raises(ValueError, match="reference point 0"):
        prepare([[1.0]], [[1.0]]).utilities(value=PowerValue(reference_point=1.0), gain=TverskyKahneman(0.6))
