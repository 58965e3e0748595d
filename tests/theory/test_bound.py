"""Distances between measures, and Proposition 3.4: where it fails and the repair."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from humanline.theory import (
    PowerValue,
    TverskyKahneman,
    decision_weights,
    distance_for_gap,
    kl_divergence,
    total_variation,
    utility_gap_bound,
)
from tests import oracles

SETTINGS = settings(derandomize=True, deadline=None, max_examples=60)
CAPACITIES = {"gain": TverskyKahneman(0.61), "loss": TverskyKahneman(0.69)}
RULES = ("trivial", "pinsker", "bretagnolle-huber", "unnormalised")
ALL_RULES = {*RULES, "as-printed", "total-variation"}


# ---- distances ------------------------------------------------------------------------------------------------------


def test_divergence_of_measures():
    """KL agrees with mpmath for measures of any mass, counts 0 ln 0 as 0 and is infinite outside the support."""
    rng = np.random.default_rng(0)
    for _ in range(50):
        p, q = rng.gamma(0.5, size=(2, 5))
        p[0] = 0
        assert kl_divergence(p, q) == pytest.approx(float(oracles.kl(p, q)), rel=1e-13, abs=1e-14)
    assert kl_divergence([0.5, 0.5], [1.0, 0.0]) == np.inf
    assert kl_divergence([1.0, 0.0], [0.5, 0.5]) == pytest.approx(math.log(2))
    assert kl_divergence([0.0, 1.0], [0.0, 1.0]) == 0
    assert kl_divergence([0.1, 0.1], [0.5, 0.5]) < 0


def test_total_variation_is_half_the_l1_norm():
    """Disjoint distributions are at distance 1, equal ones at 0, and rows are independent."""
    assert total_variation([1.0, 0.0], [0.0, 1.0]) == 1
    np.testing.assert_allclose(total_variation([[0.5, 0.5], [1.0, 0.0]], [0.5, 0.5]), [0, 0.5])


@pytest.mark.parametrize("distance", [kl_divergence, total_variation])
def test_distances_refuse_what_is_no_measure(distance):
    """Entries must be finite and not negative, shapes equal."""
    with pytest.raises(ValueError, match=r"^q must be >= 0; got -0\.5$"):
        distance([0.5, 0.5], [1.5, -0.5])
    with pytest.raises(ValueError, match=r"^p must be finite; got nan$"):
        distance([np.nan, 0.5], [0.5, 0.5])
    with pytest.raises(ValueError, match=r"^q must have the shape of p \(2,\); got \(3,\)$"):
        distance([0.5, 0.5], [0.5, 0.25, 0.25])


# ---- Proposition 3.4 ------------------------------------------------------------------------------------------------


def test_mass_of_mixed_prospects():
    """The weights' mass is .8746269 at 50/50, at least .8613110 (at .71529), and above 1 only below .0107907."""

    def mass(gain_probability):
        return decision_weights([1, -1], [gain_probability, 1 - gain_probability], **CAPACITIES).sum()

    assert mass(0.5) == pytest.approx(0.8746269, abs=5e-8)
    grid = np.linspace(0.001, 0.999, 99_801)
    masses = decision_weights([1, -1], np.stack([grid, 1 - grid], -1), **CAPACITIES).sum(-1)
    assert masses.min() == pytest.approx(0.8613110, abs=5e-8)
    assert grid[masses.argmin()] == pytest.approx(0.71529, abs=2e-5)
    assert grid[masses > 1].max() == pytest.approx(0.0107907, abs=1.1e-5)
    for x in (0.0107907, 0.5, 0.71529):
        assert mass(x) == pytest.approx(float(oracles.total_mass(str(x))), abs=1e-13)
    assert oracles.total_mass("0.01079065") > 1 > oracles.total_mass("0.01079075")


@pytest.mark.parametrize(("values", "gap"), [((-1.0, 1.0), 0.482958), ((-2.25, 1.0), 0.863166)])
def test_counterexample_to_the_proposition_as_printed(values, gap):
    """With gains and losses KL(omega || Q) can be 0 while the utilities differ; the corrected bound covers the gap."""
    weights = decision_weights([-1, 1], [0.5, 0.5], **CAPACITIES)
    candidate = np.array([1 - 0.2418467042, 0.2418467042])
    assert kl_divergence(weights, candidate) == pytest.approx(0, abs=1e-9)
    assert abs((weights - candidate) @ values) == pytest.approx(gap, abs=5e-7)
    assert utility_gap_bound(weights, candidate, values).value >= gap


def test_the_proposition_as_printed_fails_in_mixed_prospects_only():
    """With losses the printed bound is often undefined or violated; with gains only it never is."""
    rng = np.random.default_rng(0)
    outcomes = rng.normal(size=(5000, 4))
    p, q = rng.dirichlet(np.ones(4), (2, 5000))
    for shift, fails in ((0.0, True), (10.0, False)):
        z = outcomes + shift
        weights = decision_weights(z, p, **CAPACITIES)
        values = PowerValue()(z)
        gap = np.abs(((weights - q) * values).sum(-1))
        divergence = kl_divergence(weights, q)
        holds = gap <= np.abs(values).max(-1) * np.sqrt(2 * np.maximum(divergence, 0)) + 1e-12
        assert (np.mean(divergence < 0) > 0.02) == fails
        assert (np.mean(~holds) > 0.02) == fails
        assert fails or holds.all()


def random_triples(count):
    """Weights of random prospects with a candidate and values: ties, zeros, near and far, any mass; one batch per N."""
    rng = np.random.default_rng(20250924)
    for n in (2, 3, 5, 8):
        rows = count // 4
        z = rng.normal(rng.normal(size=(rows, 1)), 1, (rows, n))
        tied = rng.random(rows) < 0.3
        z[tied] = np.round(z[tied])
        p = rng.dirichlet(np.full(n, 0.5), rows)
        weights = decision_weights(z, p, **CAPACITIES)
        weights *= rng.choice([1.0, 1.0, 0.1, 3.0], (rows, 1))
        normalised = weights / weights.sum(-1, keepdims=True)
        far, sparse = rng.dirichlet(np.ones(n), rows), rng.dirichlet(np.full(n, 0.05), rows)
        sparse = np.where(sparse < 1e-3, 0.0, sparse)
        near = normalised + rng.choice([0.0, 1e-12, 1e-9, 1e-4, 1e-2], (rows, 1)) * far
        candidates = np.stack([p, far, sparse / sparse.sum(-1, keepdims=True), near / near.sum(-1, keepdims=True)])
        q = candidates[rng.integers(0, 4, rows), np.arange(rows)]
        yield weights, q, PowerValue()(z) + rng.choice([0.0, 5.0], (rows, 1))


def few_triples(count, step):
    """Some rows of the above at which the divergence is finite, with the candidate summing to 1 in many digits."""
    for batch in random_triples(count):
        for weights, candidate, values in list(zip(*batch, strict=True))[::step]:
            if (candidate > 0).all() and weights.sum() > 0:
                exact = [oracles.mpf(x) for x in candidate]
                yield weights, candidate, values, [x / sum(exact) for x in exact]


def test_corrected_bound_is_never_violated():
    """In 100 000 random prospects no gap exceeds any rule (up to rounding), and each rule is the smallest in some."""
    chosen = set()
    for weights, candidate, values in random_triples(100_000):
        bound = utility_gap_bound(weights, candidate, values)
        gap = np.abs(((weights - candidate) * values).sum(-1))
        scale = np.abs(values).max(-1) * (1 + weights.sum(-1))
        assert np.all(gap <= bound.value + 1e-13 * scale)
        assert np.all(bound.value <= scale * (1 + 1e-14))
        for rule in (*RULES, "total-variation"):
            applies = bound.all[rule].applies
            assert np.all(gap[applies] <= bound.all[rule].value[applies] + 1e-13 * scale[applies]), rule
            assert np.all(np.isnan(bound.all[rule].value) == ~applies)
        assert np.all(bound.all["total-variation"].value <= bound.value + 1e-13 * scale)
        chosen |= set(bound.rule)
    assert chosen == set(RULES)


def test_printed_bound_holds_for_one_sign():
    """In 100 000 random prospects of gains only or losses only the printed bound applies and is never violated."""
    rng = np.random.default_rng(1)
    for sign in (1, -1):
        z = sign * (rng.integers(0, 5, (50_000, 5)) + (sign < 0))
        p, q = rng.dirichlet(np.full(5, 0.5), (2, 50_000))
        q = np.where(q < 1e-3, 0.0, q)
        q /= q.sum(-1, keepdims=True)
        gamma = TverskyKahneman(rng.uniform(0.3, 1.5))
        weights, values = decision_weights(z, p, gain=gamma, loss=gamma), PowerValue()(z)
        bound = utility_gap_bound(weights, q, values)
        gap = np.abs(((weights - q) * values).sum(-1))
        printed = bound.all["as-printed"]
        finite = np.all((q > 0) | (weights == 0), -1)
        assert np.all(printed.applies == finite) and finite.mean() > 0.1
        assert np.all(gap[finite] <= printed.value[finite] + 1e-13 * np.abs(values).max())
        assert np.all(bound.all["pinsker"].value[finite] <= printed.value[finite] * (1 + 1e-12))
        direct = np.abs(values).max(-1)[finite] * np.sqrt(2 * np.maximum(kl_divergence(weights, q)[finite], 0))
        np.testing.assert_allclose(printed.value[finite], direct, rtol=1e-6, atol=1e-7)


def test_printed_bound_does_not_apply_to_gains_and_losses():
    """At mass .8746 it is listed as not applying, with nan and the reason; the rest apply."""
    weights = decision_weights([-1, 1], [0.5, 0.5], **CAPACITIES)
    bound = utility_gap_bound(weights, [0.5, 0.5], [-2.25, 1])
    assert set(bound.all) == ALL_RULES
    assert not bound.all["as-printed"].applies
    assert math.isnan(bound.all["as-printed"].value)
    assert "sum to 1" in bound.all["as-printed"].condition
    assert all(bound.all[rule].applies for rule in ALL_RULES - {"as-printed"})
    assert bound.value == min(bound.all[rule].value for rule in RULES) == bound.all[bound.rule].value


def test_batches_of_bounds_are_rows():
    """Every row of a batch has the bound, rule, reason and list of its own; an (N,) operand is shared."""
    for batch in random_triples(400):
        bounds = utility_gap_bound(*batch)
        for i, row in enumerate(zip(*batch, strict=True)):
            single = utility_gap_bound(*row)
            assert isinstance(single.value, float) and isinstance(single.rule, str)
            assert bounds.value[i] == pytest.approx(single.value, rel=1e-13)
            assert bounds.all[single.rule].value[i] == pytest.approx(bounds.value[i], rel=1e-12, abs=1e-15)
            if bounds.rule[i] == single.rule:  # rules that tie may change places by a rounding
                assert bounds.reason[i] == single.reason
            for rule, found in single.all.items():
                assert bounds.all[rule].applies[i] == found.applies
                assert bounds.all[rule].value[i] == pytest.approx(found.value, rel=1e-12, nan_ok=True)
    shared = utility_gap_bound([[0.2, 0.8], [0.5, 0.5]], [0.5, 0.5], [1.0, 2.0])
    assert shared.value.shape == shared.rule.shape == shared.all["pinsker"].applies.shape == (2,)


def test_unnormalised_rule_is_the_usual_winner():
    """For the weights of random mixed prospects and a random candidate it is the smallest in over nine of ten."""
    rng = np.random.default_rng(0)
    z = rng.normal(size=(50_000, 4))
    p, q = rng.dirichlet(np.ones(4), (2, 50_000))
    mixed = (z.min(-1) < 0) & (z.max(-1) >= 0)
    bound = utility_gap_bound(decision_weights(z, p, **CAPACITIES)[mixed], q[mixed], PowerValue()(z[mixed]))
    assert np.mean(bound.rule == "unnormalised") > 0.9


def test_bound_agrees_with_the_oracle():
    """Value and rule are those of the formulas in many digits, with the centred values."""
    for weights, candidate, values, exact in few_triples(4_000, 40):
        norms = oracles.norm_bounds(weights, exact)
        norms["total-variation"] = sum(abs(oracles.mpf(w) - x) for w, x in zip(weights, exact, strict=True))
        bound = utility_gap_bound(weights, candidate, values)
        mass = oracles.mpmath.fsum(oracles.mpf(w) for w in weights)
        for rule, norm in norms.items():
            expected = float(oracles.gap_bound(rule, norm, mass, values))
            assert bound.all[rule].value == pytest.approx(expected, rel=1e-7, abs=1e-13)
        best = float(min(oracles.gap_bound(rule, norms[rule], mass, values) for rule in RULES))
        assert bound.value == pytest.approx(best, rel=1e-7, abs=1e-13)
        assert bound.rule in bound.reason


def test_every_rule_bounds_the_norm():
    """Each of the four rules alone is at least sum |w - Q|, in many digits."""
    for weights, _, _, exact in few_triples(4_000, 20):
        norm = sum(abs(oracles.mpf(w) - x) for w, x in zip(weights, exact, strict=True))
        assert all(bound >= norm * (1 - 1e-15) for bound in oracles.norm_bounds(weights, exact).values())


def test_inequality_behind_the_unnormalised_rule():
    """For u > 0, u ln u - u + 1 >= 3 (u - 1)**2 / (2 (u + 2))."""
    with oracles.mp.workdps(40):
        for exponent in range(-300, 301):
            for u in (oracles.mpf(10) ** (exponent / 10), 1 + oracles.mpf(exponent) / 400):
                gap = u * oracles.mpmath.log(u) - u + 1 - 3 * (u - 1) ** 2 / (2 * (u + 2))
                assert gap >= -(oracles.mpf(10) ** -35)


def test_at_mass_one_the_bound_is_pinsker_with_half_the_range():
    """For distributions the unnormalised rule is Pinsker's, and only half the range of the values counts."""
    p, q, v = np.array([0.2, 0.5, 0.3]), np.array([0.3, 0.4, 0.3]), np.array([7.0, 8.0, 9.5])
    bound = utility_gap_bound(p, q, v)
    assert bound.value == pytest.approx(math.sqrt(2 * kl_divergence(p, q)) * 1.25, rel=1e-12)
    assert bound.value < 0.2 * 9.5 * math.sqrt(2 * kl_divergence(p, q))


def test_bretagnolle_huber_takes_over_from_pinsker():
    """2 sqrt(1 - exp(-K)) is below sqrt(2 K) from K = 1.59362426 on."""
    with oracles.mp.workdps(30):
        crossing = oracles.mpmath.findroot(
            lambda k: 2 * oracles.mpmath.sqrt(1 - oracles.mpmath.exp(-k)) - (2 * k) ** 0.5, 1.6
        )
    assert float(crossing) == pytest.approx(1.59362426, abs=5e-9)

    def rule(k):  # a sure outcome that the candidate gives exp(-K)
        return utility_gap_bound([1.0, 0.0], [math.exp(-k), -math.expm1(-k)], [0.0, 1.0]).rule

    assert rule(1.5936) in ("pinsker", "unnormalised")  # equal at mass 1
    assert rule(1.5937) == "bretagnolle-huber"


def test_bound_is_zero_for_the_same_distribution_and_trivial_without_common_support():
    """Equal distributions have bound 0; disjoint ones 1 + m times half the range; no weights at all 1."""
    assert utility_gap_bound([0.25, 0.75], [0.25, 0.75], [1.0, 2.0]).value == 0
    disjoint = utility_gap_bound([1.0, 0.0], [0.0, 1.0], [-1.0, 1.0])
    assert (disjoint.value, disjoint.rule) == (2.0, "trivial")
    assert utility_gap_bound([0.0, 0.0], [0.5, 0.5], [-1.0, 1.0]).value == 1
    assert utility_gap_bound([0.0, 0.0], [0.5, 0.5], [3.0, 3.0]).value == 3


def test_bound_is_precise_for_nearly_equal_measures():
    """Where the closed form of the divergence cancels, the bound still covers a gap of 1e-9, within 2x."""
    p, v = np.full(4, 0.25), np.array([1.0, -1.0, 1.0, -1.0])
    q = p - 0.25e-9 * v
    assert 1e-9 <= utility_gap_bound(p, q, v).value * (1 + 1e-6) <= 2e-9


@pytest.mark.parametrize(
    ("weights", "candidate", "values", "message"),
    [
        ([0.5, -0.1], [0.5, 0.5], [1, 2], "weights must be >= 0; got -0.1"),
        ([0.5, 0.5], [1.5, -0.5], [1, 2], "candidate must be >= 0; got -0.5"),
        ([0.5, 0.5], [0.5, 0.25], [1, 2], "candidate must sum to 1 within 1e-06 along the last axis; got 0.75"),
        ([0.5, 0.5], [0.5, 0.5], [1, np.inf], "values must be finite; got inf"),
        ([0.5, 0.5], [0.5, 0.5], [1], "values must have the shape of weights (2,); got (1,)"),
        ([[0.5, 0.5]] * 2, [[0.5, 0.5]] * 3, [1, 2], "candidate must have the shape of weights (2, 2); got (3, 2)"),
        ([0.5, np.nan], [0.5, 0.5], [1, 2], "weights must be finite; got nan"),
        (0.5, 1.0, 2.0, "weights must have an axis of outcomes; got 0.5"),
        ([], [], [], "weights must hold at least one outcome; got array([], dtype=float64)"),
    ],
)
def test_bound_refuses_what_it_does_not_cover(weights, candidate, values, message):
    """Each argument outside its domain has its own message."""
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        utility_gap_bound(weights, candidate, values)


# ---- tightness, and how close is close enough -----------------------------------------------------------------------


def test_total_variation_is_attained():
    """No bound of w, Q, mid and half range beats ``total-variation``: values at the two ends reach it, for any mass."""
    for weights, candidate, values in random_triples(4_000):
        middle, half = (values.max(-1) + values.min(-1)) / 2, (values.max(-1) - values.min(-1)) / 2
        side = np.sign(middle * (weights.sum(-1) - 1))
        side = np.where(side == 0, 1, side)[:, None] * np.where(weights >= candidate, 1, -1)
        worst = middle[:, None] + half[:, None] * side
        gap = np.abs(((weights - candidate) * worst).sum(-1))
        bound = utility_gap_bound(weights, candidate, values).all["total-variation"].value
        np.testing.assert_allclose(gap, bound, rtol=1e-9, atol=1e-13)


def test_bounds_are_attained_or_approached():
    """Trivial is reached by disjoint supports; pinsker and unnormalised in the limit of two equally likely outcomes."""
    assert utility_gap_bound([1.0, 0.0], [0.0, 1.0], [-3.0, 3.0]).value == 6.0
    for shift in (1e-2, 1e-3, 1e-4):
        bound = utility_gap_bound([0.5 + shift, 0.5 - shift], [0.5, 0.5], [-1.0, 1.0])
        for rule in ("pinsker", "unnormalised"):
            ratio = 2 * shift / bound.all[rule].value
            assert 1 - shift**2 < ratio <= 1 + 1e-9


@SETTINGS
@given(
    gap=st.floats(0.0, 12.0),
    mass=st.one_of(st.just(1.0), st.floats(0.3, 1.6)),
    low=st.floats(-3, 3),
    width=st.floats(0.01, 4),
)
def test_distance_agrees_with_bisection_of_the_bound(gap, mass, low, width):
    """By each rule it is the largest divergence at which the bound, in many digits, is at most the gap."""
    values = [low, low + width]
    found = distance_for_gap(gap, values, mass=mass)
    for rule in (*RULES, "as-printed"):
        if rule == "as-printed" and mass != 1:
            assert not found.all[rule].applies
            continue
        ends = [float(oracles.gap_bound(rule, oracles.norm_at(rule, k, mass), mass, values)) for k in (0, 1000)]
        if any(gap == pytest.approx(end, rel=1e-9) for end in ends):
            continue  # at the ends a rounding decides
        expected = oracles.largest_divergence(rule, gap, values, mass)
        ours = found.all[rule].value
        if expected is None:
            assert math.isnan(ours)
        elif expected == oracles.mpmath.inf:
            assert ours > 999
        else:
            assert ours == pytest.approx(float(expected), rel=1e-6, abs=1e-12)


def test_distance_inverts_the_bound():
    """The distance for a gap equal to a rule's bound of some weights and candidate is their own distance."""
    for weights, candidate, values, exact in few_triples(2_000, 20):
        mass = weights.sum()
        if values.min() == values.max():
            continue  # any candidate will do
        divergence = float(oracles.kl([oracles.mpf(w) / oracles.mpmath.fsum(weights) for w in weights], exact))
        bound = utility_gap_bound(weights, candidate, values)
        for rule in ("pinsker", "bretagnolle-huber", "unnormalised"):
            back = distance_for_gap(bound.all[rule].value, values, mass=mass).all[rule].value
            far = divergence > 8  # there 1 - exp(-K) keeps few digits of K
            assert back == pytest.approx(divergence, rel=0.2 if far else 1e-8, abs=1e-12), rule
        gap = bound.all["total-variation"].value
        back = distance_for_gap(gap, values, mass=mass).total_variation
        assert back == pytest.approx(total_variation(weights, candidate), rel=1e-9, abs=1e-12)
        back = distance_for_gap(bound.all["trivial"].value, values, mass=mass).all["trivial"]
        assert (back.applies, back.value) == (True, math.inf)


@SETTINGS
@given(gap=st.floats(0.01, 5), mass=st.floats(0.5, 1.5), tilt=st.floats(0, 1), share=st.floats(0.01, 0.99))
def test_a_candidate_this_close_keeps_the_gap(gap, mass, tilt, share):
    """Whatever divergence is allowed, a candidate at it has a gap no larger than asked."""
    values = np.array([-1.0, 2.0])
    allowed = distance_for_gap(gap, values, mass=mass)
    weights = mass * np.array([share, 1 - share])
    candidate = np.array([share + tilt * (1 - share), (1 - share) * (1 - tilt)])
    if math.isnan(allowed.divergence):
        assert allowed.rule == "none" and "close enough" in allowed.reason
        return
    actual = abs((weights - candidate) @ values)
    if kl_divergence(weights / mass, candidate) <= allowed.divergence:
        assert actual <= gap * (1 + 1e-12) + 1e-12
    if total_variation(weights, candidate) <= allowed.total_variation:
        assert actual <= gap * (1 + 1e-12) + 1e-12


def test_distance_as_the_paper_prints_it():
    """At mass 1 ``as-printed`` is gap**2 / (2 max|v|**2); half the range allows more, at values 7 to 9 81 times."""
    found = distance_for_gap(0.5, [7.0, 9.0])
    assert found.all["as-printed"].value == pytest.approx(0.25 / (2 * 81))
    assert found.divergence == pytest.approx(0.125)
    assert found.divergence == pytest.approx(81 * found.all["as-printed"].value)
    assert (found.rule, found.total_variation) == ("pinsker", 0.25)
    assert isinstance(found.divergence, float) and isinstance(found.rule, str)


def test_distance_when_none_is_close_enough_or_any_will_do():
    """Missing mass leaves a gap that no candidate closes; a gap of the full range needs nothing; constants are easy."""
    floor = (1.0 + 0.5) * 0.2  # half range, mid and missing mass of values -.5 to 1.5 at mass .8
    none = distance_for_gap(floor * 0.99, [-0.5, 1.5], mass=0.8)
    assert math.isnan(none.divergence) and math.isnan(none.total_variation)
    assert none.rule == "none"
    some = distance_for_gap(floor, [-0.5, 1.5], mass=0.8)
    assert some.divergence == pytest.approx(0, abs=1e-13)
    assert some.total_variation == pytest.approx(0.1)
    anything = distance_for_gap(2.0, [-1.0, 1.0])
    assert (anything.divergence, anything.rule, anything.total_variation) == (math.inf, "trivial", 1.0)
    assert distance_for_gap(0.0, [3.0, 3.0]).divergence == math.inf
    assert math.isnan(distance_for_gap(0.1, [3.0, 3.0], mass=0.9).divergence)
    assert distance_for_gap(0.31, [3.0, 3.0], mass=0.9).divergence == math.inf
    assert distance_for_gap(0.0, [1.0, 2.0]).divergence == 0
    assert distance_for_gap(0.0, [0.0, 0.0]).all["as-printed"].value == math.inf


def test_distances_for_many_gaps():
    """Gaps and masses are broadcast; each entry is what it is alone; a larger gap never allows less."""
    gaps, masses = np.linspace(0, 4, 30), np.array([[0.8], [1.0], [1.1]])
    many = distance_for_gap(gaps, [-1.0, 2.0], mass=masses)
    assert many.divergence.shape == many.rule.shape == many.all["pinsker"].applies.shape == (3, 30)
    for i in range(3):
        for j in range(30):
            one = distance_for_gap(gaps[j], [-1.0, 2.0], mass=masses[i, 0])
            assert many.divergence[i, j] == pytest.approx(one.divergence, nan_ok=True)
            assert many.total_variation[i, j] == pytest.approx(one.total_variation, nan_ok=True)
            assert (many.rule[i, j], many.reason[i, j]) == (one.rule, one.reason)
        row = np.nan_to_num(many.divergence[i], nan=-1.0, posinf=1e9)
        assert np.all(np.diff(row) >= 0)


@pytest.mark.parametrize(
    ("gap", "values", "mass", "message"),
    [
        (-0.1, [1, 2], 1.0, "gap must be >= 0; got -0.1"),
        (np.nan, [1, 2], 1.0, "gap must be finite; got nan"),
        (0.1, [1, 2], 0.0, "mass must be > 0; got 0.0"),
        (0.1, [1, 2], np.inf, "mass must be finite; got inf"),
        (0.1, [1, np.inf], 1.0, "values must be finite; got inf"),
        (0.1, [[1, 2]], 1.0, "values must have one axis; got (1, 2)"),
        (0.1, [], 1.0, "values must hold at least one outcome; got array([], dtype=float64)"),
    ],
)
def test_distance_refuses_what_it_cannot_answer(gap, values, mass, message):
    """Each argument outside its domain has its own message."""
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        distance_for_gap(gap, values, mass=mass)
