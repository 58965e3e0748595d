"""Utilities and certainty equivalents of the literature, and Proposition 3.4: where it fails and the repair."""

from __future__ import annotations

import math
import re
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from humanline.theory import (
    Identity,
    PowerValue,
    TverskyKahneman,
    certainty_equivalent,
    decision_weights,
    kl_divergence,
    subjective_utility,
    total_variation,
    utility_gap_bound,
)
from tests import oracles, strategies

SETTINGS = settings(derandomize=True, deadline=None, max_examples=60)
CAPACITIES = {"gain": TverskyKahneman(0.61), "loss": TverskyKahneman(0.69)}
HUMAN = {"value": PowerValue(), **CAPACITIES}
RULES = ("trivial", "pinsker", "bretagnolle-huber", "unnormalised")


@pytest.mark.parametrize(
    ("outcomes", "probs", "utility"),
    [
        ([36, 25, -9, -16], ["0.7", "0.1", "0.1", "0.1"], 8.008447),
        ([-3000, 4500], ["0.5", "0.5"], -482.625),
        ([1600, 1200, -200, -1600], ["0.25"] * 4, -215.698),
    ],
)
def test_published_utilities(outcomes, probs, utility):
    """Utilities of mixed prospects at the medians, in the literature and in the oracle."""
    ours = subjective_utility(outcomes, [float(p) for p in probs], **HUMAN)
    assert ours == pytest.approx(float(oracles.utility(outcomes, probs, *oracles.medians())), rel=1e-13)
    assert ours == pytest.approx(utility, abs=10.0 ** -len(str(utility).split(".")[1]) / 2)


@pytest.mark.parametrize(
    ("outcomes", "probs", "sure"),
    [
        ([36, 25, -9, -16], ["0.7", "0.1", "0.1", "0.1"], 10.63554),
        ([100, 50], ["0.85", "0.15"], 82.2346),
        ([100, 0], ["0.05", "0.95"], 9.9828),
        ([100, 0], ["0.25", "0.75"], 24.567),
        ([100, 0], ["0.5", "0.5"], 37.3788),
        ([100, 0], ["0.75", "0.25"], 52.6118),
        ([100, 0], ["0.95", "0.05"], 76.8528),
    ],
)
def test_published_certainty_equivalents(outcomes, probs, sure):
    """Certainty equivalents at the medians, as published and by bisection in the oracle."""
    ours = certainty_equivalent(outcomes, [float(p) for p in probs], **HUMAN)
    assert ours == pytest.approx(float(oracles.certainty_equivalent(outcomes, probs)), rel=1e-12)
    assert ours == pytest.approx(sure, abs=10.0 ** -len(str(sure).split(".")[1]) * 0.51)


def test_equivalents_scale_with_the_outcomes():
    """With one exponent, twice the outcomes are worth twice as much: (200, .71; 0) is 99.3815, twice (100, .71; 0)."""
    sure = certainty_equivalent([[100, 0], [200, 0]], [0.71, 0.29], **HUMAN)
    assert sure[1] == pytest.approx(2 * sure[0], rel=1e-14)
    assert sure[1] == pytest.approx(99.3815, abs=5e-5)
    assert sure[1] == pytest.approx(float(oracles.certainty_equivalent([200, 0], ["0.71", "0.29"])), rel=1e-13)


@SETTINGS
@given(prospect=strategies.prospects(), gain=strategies.monotone_gammas, loss=strategies.monotone_gammas)
def test_utility_agrees_with_the_definition(prospect, gain, loss):
    """The utility is the sum over distinct outcomes of Def. 3.3."""
    z, p = prospect
    ours = subjective_utility(z, p, value=PowerValue(), gain=TverskyKahneman(gain), loss=TverskyKahneman(loss))
    expected = oracles.utility(
        z,
        p,
        lambda x: oracles.tversky_kahneman(x, gain),
        lambda x: oracles.tversky_kahneman(x, loss),
        lambda x: oracles.power_value(x, 0.88, 0.88, 2.25),
    )
    assert ours == pytest.approx(float(expected), rel=1e-13, abs=1e-12)


@SETTINGS
@given(z=st.floats(-50, 50), z0=st.floats(-5, 5))
def test_a_sure_outcome_is_its_own_equivalent(z, z0):
    """The certainty equivalent of a sure thing is that thing, whatever the reference point."""
    sure = certainty_equivalent([z], [1.0], value=PowerValue(reference_point=z0), **CAPACITIES)
    assert sure == pytest.approx(z, rel=1e-12, abs=1e-11)


def test_the_reference_point_is_that_of_the_value_function():
    """Shifting outcomes and reference point together changes nothing; shifting one does."""
    z, p = np.array([3.0, -1.0, 0.5]), [0.2, 0.5, 0.3]
    shifted = subjective_utility(z + 2, p, value=PowerValue(reference_point=2.0), **CAPACITIES)
    assert shifted == pytest.approx(subjective_utility(z, p, **HUMAN), rel=1e-14)
    assert abs(subjective_utility(z, p, value=PowerValue(reference_point=2.0), **CAPACITIES) - shifted) > 1


def test_without_distortion_utility_is_expected_value():
    """Identity capacities and a linear value function give the mean."""
    plain = {"value": PowerValue(1.0, None, 1.0), "gain": Identity(), "loss": Identity()}
    assert subjective_utility([3, -1], [0.25, 0.75], **plain) == pytest.approx(0, abs=1e-15)
    assert certainty_equivalent([3, -1], [0.5, 0.5], **plain) == pytest.approx(1, rel=1e-14)


def test_utilities_of_batches():
    """Each row of a batch has its own utility; shared outcomes are broadcast."""
    p = np.random.default_rng(0).dirichlet(np.ones(3), (2, 4))
    batch = subjective_utility([1, 2, -3], p, **HUMAN)
    assert batch.shape == (2, 4)
    np.testing.assert_allclose(batch[1, 2], subjective_utility([1, 2, -3], p[1, 2], **HUMAN), rtol=1e-14)
    assert certainty_equivalent([1, 2, -3], p, **HUMAN).shape == (2, 4)


def test_allow_negative_is_passed_on():
    """Capacities below the threshold are refused unless asked for."""
    with pytest.warns(UserWarning, match="below"):
        below = TverskyKahneman(0.2)
    with pytest.raises(ValueError, match="allow_negative"):
        subjective_utility([1, 2], [0.5, 0.5], value=PowerValue(), gain=below, loss=below)
    assert np.isfinite(
        subjective_utility([1, 2], [0.5, 0.5], value=PowerValue(), gain=below, loss=below, allow_negative=True)
    )


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
    """Weights of random prospects with a candidate and values: near and far, sparse and dense, any mass."""
    rng = np.random.default_rng(20250924)
    for n in (2, 3, 5, 8):
        rows = count // 4
        z = rng.normal(rng.normal(), 1, (rows, n))
        p = rng.dirichlet(np.full(n, 0.5), rows)
        weights = decision_weights(z, p, **CAPACITIES)
        weights *= rng.choice([1.0, 1.0, 0.1, 3.0], (rows, 1))
        normalised = weights / weights.sum(-1, keepdims=True)
        far, sparse = rng.dirichlet(np.ones(n), rows), rng.dirichlet(np.full(n, 0.05), rows)
        near = normalised + rng.choice([0.0, 1e-12, 1e-9, 1e-4, 1e-2], (rows, 1)) * far
        candidates = np.stack([p, far, sparse, near / near.sum(-1, keepdims=True)])
        q = candidates[rng.integers(0, 4, rows), np.arange(rows)]
        yield from zip(weights, q, PowerValue()(z) + rng.choice([0.0, 5.0], (rows, 1)), strict=True)


def test_corrected_bound_is_never_violated():
    """In 20 000 random prospects no gap exceeds its bound (up to rounding), and each rule is needed in some."""
    rules = Counter()
    for weights, candidate, values in random_triples(20_000):
        bound = utility_gap_bound(weights, candidate, values)
        gap = abs((weights - candidate) @ values)
        scale = np.abs(values).max()
        assert gap <= bound.value + 1e-13 * scale
        assert bound.value <= scale * (1 + weights.sum()) * (1 + 1e-14)
        rules[bound.rule] += 1
    assert set(rules) == set(RULES)


def test_unnormalised_rule_is_the_usual_winner():
    """For the weights of random mixed prospects and a random candidate it is the smallest in over nine of ten."""
    rng = np.random.default_rng(0)
    z = rng.normal(size=(2000, 4))
    p, q = rng.dirichlet(np.ones(4), (2, 2000))
    mixed = (z.min(-1) < 0) & (z.max(-1) >= 0)
    weights = decision_weights(z, p, **CAPACITIES)
    wins = [
        utility_gap_bound(w, c, v).rule == "unnormalised"
        for w, c, v in zip(weights[mixed], q[mixed], z[mixed], strict=True)
    ]
    assert np.mean(wins) > 0.9


def test_bound_agrees_with_the_oracle():
    """Value and rule are those of the four formulas in many digits, with the centred values."""
    for weights, candidate, values in list(random_triples(4_000))[::40]:
        if (candidate <= 0).any() or weights.sum() == 0:
            continue
        exact = [oracles.mpf(x) for x in candidate]
        exact = [x / sum(exact) for x in exact]
        norms = oracles.norm_bounds(weights, exact)
        half, middle = (max(values) - min(values)) / 2, (max(values) + min(values)) / 2
        expected = float(min(norms.values())) * half + abs(middle * (weights.sum() - 1))
        bound = utility_gap_bound(weights, candidate, values)
        assert bound.value == pytest.approx(expected, rel=1e-7, abs=1e-13)
        assert float(norms[bound.rule]) == pytest.approx(float(min(norms.values())), rel=1e-7, abs=1e-13)
        assert bound.rule in bound.reason


def test_every_rule_bounds_the_norm():
    """Each of the four rules alone is at least sum |w - Q|, in many digits."""
    for weights, candidate, _ in list(random_triples(4_000))[::20]:
        if (candidate <= 0).any() or weights.sum() == 0:
            continue
        exact = [oracles.mpf(x) for x in candidate]
        exact = [x / sum(exact) for x in exact]
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
        ([0.5, 0.5], [0.5, 0.25], [1, 2], "candidate must sum to 1 within 1e-06; got 0.75"),
        ([0.5, 0.5], [0.5, 0.5], [1, np.inf], "values must be finite; got inf"),
        ([0.5, 0.5], [0.5, 0.5], [1], "values must have the shape of weights (2,); got (1,)"),
        ([[0.5, 0.5]], [0.5, 0.5], [1, 2], "weights must have one axis; got (1, 2)"),
        ([], [], [], "weights must hold at least one outcome; got array([], dtype=float64)"),
    ],
)
def test_bound_refuses_what_it_does_not_cover(weights, candidate, values, message):
    """Each argument outside its domain has its own message."""
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        utility_gap_bound(weights, candidate, values)
