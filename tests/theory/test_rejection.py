"""Beta rejection: verdicts, exact acceptance, and clipping as its limit."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from humanline.theory import (
    BetaRejection,
    BetaShape,
    ClipRange,
)
from tests import oracles
from tests.helpers.optional import torch

SETTINGS = settings(derandomize=True, deadline=None, max_examples=60)
CLIP = ClipRange(-1.5, 1.5)
LOG_RATIOS = np.array([-8.0, -2.2, -1.6, -1.5, -1.4, -0.3, 0.0, 0.7, 1.5, 1.7, 2.5, 8.0])


def rejection(policy=(2.0, 3.0), ref=(1.5, 0.7), bounds=(4.0, 5.0), rule="either"):
    """A rejection rule from plain numbers."""
    return BetaRejection(
        BetaShape(*policy), BetaShape(*ref), policy_ratio_bound=bounds[0], ref_ratio_bound=bounds[1], rule=rule
    )


def near(concentration, bound=6.0):
    """The member of Theorem 4.3's family with both ratio bounds equal."""
    return BetaRejection.near(CLIP, concentration, policy_ratio_bound=bound, ref_ratio_bound=bound)


# ---- verdicts -------------------------------------------------------------------------------------------------------


@SETTINGS
@given(
    x=st.floats(-20, 20),
    policy_draw=st.floats(0, 1),
    ref_draw=st.floats(0, 1),
    rule=st.sampled_from(["either", "both"]),
)
def test_verdict_is_that_of_the_criteria(x, policy_draw, ref_draw, rule):
    """A token is rejected if r < M_P B_P or (rule both: and) 1/r < M_R B_R, decided in many digits."""
    r = oracles.mpmath.exp(oracles.mpf(x))
    fires = r < 4 * oracles.mpf(policy_draw), 1 / r < 5 * oracles.mpf(ref_draw)
    rejected = any(fires) if rule == "either" else all(fires)
    assert bool(rejection(rule=rule).keeps(x, policy_draw, ref_draw)) == (not rejected)


def test_extreme_log_ratios_neither_overflow_nor_warn():
    """Ratios beyond every float get a verdict; one above its bound passes that test whatever the draw."""
    with np.errstate(over="raise", invalid="raise"):
        assert rejection().keeps([1e5, -1e5, np.inf, -np.inf], 1.0, 1.0).tolist() == [False] * 4
        assert rejection(rule="both").keeps([1e5, -1e5, np.inf, -np.inf], 1.0, 1.0).tolist() == [True] * 4
        assert rejection().keeps([math.log(4.001)], [1.0], [0.0]).tolist() == [True]
        assert np.isfinite(rejection().acceptance_probability([1e5, -1e5, np.inf, -np.inf])).all()


@pytest.mark.parametrize("rule", ["either", "both"])
def test_nan_is_not_kept(rule):
    """A log-ratio of nan is never kept, and its acceptance probability is nan."""
    assert not rejection(rule=rule).keeps(np.nan, 0.0, 0.0)
    assert np.isnan(rejection(rule=rule).acceptance_probability(np.nan))


@pytest.mark.parametrize("rule", ["either", "both"])
def test_numpy_torch_and_vmap_agree(rule):
    """The verdicts are the same for arrays, tensors and mapped tensors, and carry no gradient."""
    rng = np.random.default_rng(0)
    x, draws = rng.normal(0, 1.5, (50, 8)), rng.beta(0.5, 0.5, (2, 50, 8))
    rule = rejection(rule=rule)
    expected = rule.keeps(x, *draws)
    assert expected.dtype == np.bool_
    assert 0 < expected.mean() < 1
    tensors = [torch.tensor(a) for a in (x, *draws)]
    np.testing.assert_array_equal(rule.keeps(tensors[0].requires_grad_(), *tensors[1:]).numpy(), expected)
    np.testing.assert_array_equal(torch.func.vmap(rule.keeps)(*tensors).numpy(), expected)
    assert rule.keeps(*(torch.empty(3, device="meta") for _ in range(3))).shape == (3,)
    assert rule.keeps(*(t.float() for t in tensors)).dtype == torch.bool


def test_kinds_are_not_mixed():
    """Draws of another array kind than the log-ratio are a TypeError."""
    with pytest.raises(TypeError):
        rejection().keeps(torch.zeros(2), np.zeros(2), np.zeros(2))


# ---- acceptance -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", ["either", "both"])
@pytest.mark.parametrize(
    ("policy", "ref"),
    [
        ((2.0, 3.0), (1.5, 0.7)),
        ((0.61, 1.0), (0.69, 1.0)),
        ((1.037, 0.1975), (1.13, 0.363)),
        ((0.3, 20.0), (5.0, 0.05)),
    ],
)
def test_acceptance_agrees_with_the_integral(policy, ref, rule):
    """Exact acceptance is the product (or its complement) of incomplete beta integrals, to 1e-12."""
    ours = rejection(policy, ref, rule=rule).acceptance_probability(LOG_RATIOS)
    expected = [float(oracles.acceptance(x, policy, ref, (4, 5), rule)) for x in LOG_RATIOS]
    np.testing.assert_allclose(ours, expected, rtol=1e-12)


def test_acceptance_is_precise_next_to_the_bound():
    """Just below the bound, with b small, the shortfall from 1 survives in full precision."""
    rule = rejection((2.0, 0.05), (2.0, 0.05), (1.1, 1e30), rule="both")
    gap = 1e-12
    x = math.log(1.1) - gap
    expected = 1 - oracles.beta_cdf(oracles.mpmath.exp(oracles.mpf(x) - oracles.mpf(math.log(1.1))), 2.0, 0.05)
    assert 1 - rule.acceptance_probability(x) == pytest.approx(float(expected), rel=1e-12)


@pytest.mark.parametrize("rule", ["either", "both"])
@pytest.mark.parametrize("family", [((2.0, 3.0), (1.5, 0.7)), ((0.61, 1.0), (0.69, 1.0))])
def test_acceptance_agrees_with_sampling(family, rule):
    """Kept fractions of 100 000 draws lie within Hoeffding's bound at 1e-9 of the exact probability."""
    policy, ref = family
    count = 100_000
    rng = np.random.default_rng(7)
    draws = rng.beta(*policy, count), rng.beta(*ref, count)
    law = rejection(policy, ref, rule=rule)
    tolerance = math.sqrt(math.log(2 * len(LOG_RATIOS) / 1e-9) / (2 * count))
    for x in LOG_RATIOS:
        assert abs(law.keeps(np.full(count, x), *draws).mean() - law.acceptance_probability(x)) <= tolerance


@SETTINGS
@given(g_policy=st.floats(0.1, 3), g_ref=st.floats(0.1, 3), share=st.floats(0, 1))
def test_power_shapes_give_a_power_of_the_ratio(g_policy, g_ref, share):
    """With b = 1 acceptance is r**(gP - gR) / (M_P**gP M_R**gR) within the bounds: more gP favours the policy."""
    x = -math.log(5.0) + share * math.log(20.0)
    ours = rejection((g_policy, 1.0), (g_ref, 1.0)).acceptance_probability(x)
    assert ours == pytest.approx(math.exp(x * (g_policy - g_ref)) / (4.0**g_policy * 5.0**g_ref), rel=1e-12)


def test_equal_power_shapes_have_no_effect():
    """With gP = gR and b = 1 the rule keeps every token within the bounds with the same probability."""
    grid = np.linspace(-math.log(5.0), math.log(4.0), 101)
    ours = rejection((0.61, 1.0), (0.61, 1.0)).acceptance_probability(grid)
    np.testing.assert_allclose(ours, 20**-0.61, rtol=1e-13)
    tilted = rejection((0.69, 1.0), (0.61, 1.0)).acceptance_probability(grid)
    assert np.all(np.diff(tilted) > 0)


# ---- Theorem 4.3 ----------------------------------------------------------------------------------------------------


def test_family_of_the_theorem():
    """Means are eps_P / M_P and 1 / (eps_R M_R), a + b is the concentration, and the variance that of the theorem."""
    law = BetaRejection.near(ClipRange(-1.0, 2.0), 64, policy_ratio_bound=6, ref_ratio_bound=9)
    for shape, mean in ((law.policy, math.exp(-1.0) / 6), (law.ref, math.exp(-2.0) / 9)):
        assert shape.mean == pytest.approx(mean, rel=1e-14)
        assert shape.a + shape.b == pytest.approx(64, rel=1e-14)
        assert shape.variance == pytest.approx(mean * (1 - mean) / 65, rel=1e-13)
    threshold, bound = math.exp(-1.0), 6  # the variance of M_P B_P
    assert bound**2 * law.policy.variance == pytest.approx(threshold * (bound - threshold) / 65, rel=1e-13)
    assert law.rule == "either"


def test_published_acceptance():
    """Exact acceptance at concentration 64, bounds 6 and a clip range of +-1.5."""
    ours = near(64).acceptance_probability(np.log([0.15, 0.3, 1.0, 4.0]))
    np.testing.assert_allclose(ours, [0.355801, 0.755088, 0.999387, 0.650131], atol=5e-7)
    shapes = oracles.theorem_shapes("-1.5", "1.5", 64, (6, 6))
    for r, value in zip((0.15, 0.3, 1.0, 4.0), ours, strict=True):
        expected = oracles.acceptance(oracles.mpmath.log(oracles.mpf(r)), *shapes, (6, 6), "either")
        assert value == pytest.approx(float(expected), rel=1e-12)


def test_clipping_is_the_limit():
    """Off the bounds, acceptance tends to the clip's verdict: below 1e-9 wrong at concentration 1e6."""
    x = LOG_RATIOS[np.abs(np.abs(LOG_RATIOS) - 1.5) > 1e-9]
    for concentration, error in ((1e2, 0.7), (1e4, 0.15), (1e6, 1e-9)):
        ours = near(concentration).acceptance_probability(x)
        assert np.abs(ours - CLIP.contains(x)).max() < error


@pytest.mark.parametrize("concentration", [1e2, 1e4, 1e6, 1e8])
@pytest.mark.parametrize("end", [-1.5, 1.5])
def test_on_a_bound_acceptance_tends_to_one_half(end, concentration):
    """Exactly on a clip bound the acceptance is 1/2 + O(concentration**-1/2), not the clip's 1."""
    assert abs(near(concentration).acceptance_probability(end) - 0.5) < concentration**-0.5


@pytest.mark.parametrize(("bound", "exact", "entropy", "gaussian"), [(6, 677, 939, 9989), (100, 1.16e4, 1.60e4, 2.8e6)])
def test_concentration_needed_for_a_small_error(bound, exact, entropy, gaussian):
    """For an error below 1e-3 at r = eps_P / 2: exactly, by the relative-entropy tail, by the sub-Gaussian tail."""
    mean = math.exp(-1.5) / bound
    x = mean / 2
    divergence = mean * math.log(mean / x) + (1 - mean) * math.log((1 - mean) / (1 - x))
    assert math.ceil(math.log(1000) / divergence) == pytest.approx(entropy, rel=5e-3)
    assert math.ceil(math.log(1000) / (2 * (mean - x) ** 2) - 1) == pytest.approx(gaussian, rel=2e-2)
    accepts = [near(k, bound).acceptance_probability(math.log(x * bound)) for k in (exact * 0.995 - 1, exact * 1.005)]
    assert accepts[0] > 1e-3 > accepts[1]


def test_smallest_concentration():
    """At M = 6 the exact concentration is 677.095; 939 and 9989 are the smallest integers of the two bounds."""
    x = math.log(math.exp(-1.5) / 2)
    assert near(677.095).acceptance_probability(x) > 1e-3 > near(677.096).acceptance_probability(x)
    mean = math.exp(-1.5) / 6
    divergence = mean * math.log(2) + (1 - mean) * math.log((1 - mean) / (1 - mean / 2))
    assert math.ceil(math.log(1000) / divergence) == 939
    assert math.ceil(2 * math.log(1000) / mean**2 - 1) == 9989


@SETTINGS
@given(k=st.floats(5, 5000), share=st.floats(0.02, 0.98), bound=st.floats(1.5, 50))
def test_tail_bounds_hold(k, share, bound):
    """Below eps_P acceptance is at most exp(-k kl(eps_P/M || r/M)), which is at most exp(-2 k d**2)."""
    law = near(k, bound)
    mean = math.exp(-1.5) / bound
    x = share * mean
    divergence = mean * math.log(mean / x) + (1 - mean) * math.log((1 - mean) / (1 - x))
    tail = math.exp(-k * divergence)
    assert law.acceptance_probability(math.log(x * bound)) <= tail * (1 + 1e-9)
    assert tail <= math.exp(-2 * k * (mean - x) ** 2) * (1 + 1e-12)
    assert law.acceptance_probability(math.log(x * bound)) <= math.exp(-2 * (k + 1) * (mean - x) ** 2) * (1 + 1e-9)


# ---- errors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: BetaShape(0, 1), "a must be > 0; got 0"),
        (lambda: BetaShape(1, math.inf), "b must be finite; got inf"),
        (lambda: rejection(bounds=(1.0, 5.0)), "policy_ratio_bound must be > 1; got 1.0"),
        (lambda: rejection(bounds=(4.0, math.inf)), "ref_ratio_bound must be finite; got inf"),
        (lambda: rejection(rule="any"), "rule must be one of 'either', 'both'; got 'any'"),
        (lambda: near(0), "concentration must be > 0; got 0"),
        (lambda: near(math.inf), "concentration must be finite; got inf"),
        (lambda: near(64, 1.0), "policy_ratio_bound must be > 1; got 1.0"),
        (
            lambda: BetaRejection.near(ClipRange(-math.inf, 1), 64, policy_ratio_bound=6, ref_ratio_bound=6),
            "clip.low must be finite; got -inf",
        ),
        (
            lambda: BetaRejection.near(ClipRange(-1, math.inf), 64, policy_ratio_bound=6, ref_ratio_bound=6),
            "clip.high must be finite; got inf",
        ),
        (
            lambda: BetaRejection.near(ClipRange(-800, 1), 64, policy_ratio_bound=6, ref_ratio_bound=6),
            "clip.low must leave the mean of its Beta draw, exp(-|clip.low|) / 6, at 2.2e-308 or more; got -800.0",
        ),
        (  # exp(-740) / 6 is above 0, with one binary digit left
            lambda: BetaRejection.near(ClipRange(-1, 740), 64, policy_ratio_bound=6, ref_ratio_bound=6),
            "clip.high must leave the mean of its Beta draw, exp(-|clip.high|) / 6, at 2.2e-308 or more; got 740.0",
        ),
        (
            lambda: BetaRejection.near(ClipRange(-1, 1), 1e-310, policy_ratio_bound=6, ref_ratio_bound=6),
            "concentration must leave both shapes of each Beta draw at 2.2e-308 or more; got 1e-310",
        ),
    ],
)
def test_refuses_parameters_outside_their_domain(build, message):
    """Every parameter outside its domain is a ValueError that names it."""
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        build()


def test_refuses_shapes_and_ranges_of_another_type():
    """Tuples in place of shapes, or of a clip range, are a TypeError."""
    with pytest.raises(TypeError, match=r"^policy must be a BetaShape; got \(1, 2\)$"):
        BetaRejection((1, 2), BetaShape(1, 1), policy_ratio_bound=2, ref_ratio_bound=2)
    with pytest.raises(TypeError, match=r"^clip must be a ClipRange; got \(-1, 1\)$"):
        BetaRejection.near((-1, 1), 64, policy_ratio_bound=2, ref_ratio_bound=2)
