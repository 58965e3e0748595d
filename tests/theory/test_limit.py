"""Clipping as a limit (Theorem 4.3): exact errors, their bounds, the concentration needed and the rates."""

from __future__ import annotations

import itertools
import math
import re

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from mpmath import mp
from scipy.integrate import quad
from scipy.stats import beta, norm

from humanline.theory import ClipLimit, ClipRange
from tests import oracles

SETTINGS = settings(derandomize=True, deadline=None, max_examples=60)
GRID = np.array([-50.0, -8.0, -2.2, -1.6, -1.4, -0.3, 0.0, 0.7, 1.3, 1.7, 2.5, 8.0, 50.0])
HALF = -1.5 - math.log(2)  # half of eps_P = exp(-1.5)


def family(bound=6.0, low=-1.5, high=1.5, other=None):
    """The paper's clip range with both ratio bounds equal."""
    return ClipLimit(ClipRange(low, high), policy_ratio_bound=bound, ref_ratio_bound=bound if other is None else other)


LIMITS = st.builds(family, st.floats(1.2, 60), st.floats(-3, -0.05), st.floats(0.05, 3), st.floats(1.2, 60))


# ---- exact acceptance and error -------------------------------------------------------------------------------------


def test_published_acceptance():
    """Thm 4.3 at concentration 64, bounds 6 and +-1.5: the four published acceptance probabilities."""
    ours = family().acceptance_probability(np.log([0.15, 0.3, 1.0, 4.0]), 64)
    np.testing.assert_allclose(ours, [0.355801, 0.755088, 0.999387, 0.650131], atol=5e-7)


@settings(SETTINGS, max_examples=40)
@given(limit=LIMITS, x=st.floats(-50, 50), k=st.floats(0.5, 200))
def test_acceptance_and_error_agree_with_the_integral(limit, x, k):
    """Acceptance and error are the incomplete beta integrals, small errors included, up to rounding of the inputs."""
    clip, bounds = limit.clip, (limit.policy_ratio_bound, limit.ref_ratio_bound)
    assume(all(abs(s * x - math.log(m)) > 1e-3 for s, m in ((1, bounds[0]), (-1, bounds[1]))))
    shapes = oracles.theorem_shapes(clip.low, clip.high, k, bounds)
    accept = oracles.acceptance(x, *shapes, bounds, "either")
    error = float(oracles.clip_error(x, clip.low, clip.high, k, bounds))
    tolerance = 1e-12 + 1e-15 * k * (1 + abs(x))  # a relative change of the ratio moves ln A by up to k times it
    assert limit.acceptance_probability(x, k) == pytest.approx(float(accept), rel=tolerance, abs=1e-290)
    assert limit.error(x, k) == pytest.approx(error, rel=100 * tolerance, abs=1e-30)
    assert limit.rejection(k).acceptance_probability(x) == pytest.approx(float(accept), rel=tolerance, abs=1e-290)


def test_extreme_ratios_and_concentrations():
    """From e**-50 to e**50 and concentrations of 1e-3 to 1e9 nothing warns, overflows or becomes nan; nan stays nan."""
    with np.errstate(all="raise", under="ignore"):
        error = family().error(GRID, np.logspace(-3, 9, 13)[:, None])
    assert error.shape == (13, 13)
    assert ((error >= 0) & (error <= 1)).all()
    assert error[-1].max() < 1e-300
    assert np.isnan(family().error(np.nan, 64)) and np.isnan(family().error_bound(np.nan, 64))


def test_the_limit_is_the_clip():
    """Thm 4.3: off the ends the error vanishes; on an end it tends to 1/2, and to 3/4 where both ends are 0."""
    limit = family()
    errors = limit.error(GRID, np.array([[1e2], [1e4], [1e6]]))
    assert (np.diff(errors, axis=0) <= 1e-300).all() and errors[-1].max() < 1e-9
    for end in (-1.5, 1.5):
        assert abs(limit.error(end, 1e8) - 0.5) < 1e-4
    assert limit.limiting_error([-1.5, 1.5, 0.0, -1.5000001]).tolist() == [0.5, 0.5, 0.0, 0.0]
    closed = family(low=0.0, high=0.0)
    assert closed.limiting_error(0.0) == 0.75
    assert abs(closed.error(0.0, 1e8) - 0.75) < 1e-3


# ---- bounds and the concentration needed ----------------------------------------------------------------------------


@SETTINGS
@given(limit=LIMITS, x=st.floats(-6, 6), k=st.floats(0.1, 1e5))
def test_both_tails_bound_the_error(limit, x, k):
    """The error is at most exp(-k kl) and at most exp(-2 (k + 1) d**2), added up where both tests matter."""
    error = limit.error(x, k)
    for tail in ("entropy", "gaussian"):
        assert error <= limit.error_bound(x, k, tail=tail) * (1 + 1e-9) + 1e-300
    means = limit.means
    ys = min(1.0, math.exp(x) / limit.policy_ratio_bound), min(1.0, math.exp(-x) / limit.ref_ratio_bound)
    inside = limit.clip.low <= x <= limit.clip.high
    fires = (True, True) if inside else (x < limit.clip.low, x > limit.clip.high)
    gaussian = entropy = 0.0
    for mean, y, matters in zip(means, ys, fires, strict=True):
        if matters and y < 1:
            gaussian += math.exp(-2 * (k + 1) * (y - mean) ** 2)
            entropy += math.exp(-k * float(oracles.relative_entropy(mean, y)))
    assert limit.error_bound(x, k, tail="gaussian") == pytest.approx(min(1, gaussian), rel=1e-9, abs=1e-300)
    assert limit.error_bound(x, k) == pytest.approx(min(1, entropy), rel=1e-8, abs=1e-290)


@pytest.mark.parametrize(
    ("bound", "exact", "entropy", "gaussian"),
    [(6, 677.095143, 938.541327, 9988.710107), (100, 11561.1396, 16005.2577, 2774918.47)],
)
def test_concentration_for_one_in_a_thousand(bound, exact, entropy, gaussian):
    """For an error of 1e-3 at eps_P/2: exactly, by relative entropy, by the sub-Gaussian tail; 678 is the integer."""
    limit = family(bound)
    for by, expected in (("exact", exact), ("entropy", entropy), ("gaussian", gaussian)):
        assert limit.needed_concentration(HALF, 1e-3, by=by) == pytest.approx(expected, rel=1e-8)
    error = [
        float(oracles.clip_error(oracles.mpf(-1.5) - oracles.mpmath.log(2), "-1.5", "1.5", k, (bound, bound)))
        for k in (math.floor(exact), math.ceil(exact))
    ]
    assert error[0] > 1e-3 > error[1]


@SETTINGS
@given(limit=LIMITS, x=st.floats(-6, 6), exponent=st.floats(-12, -0.3))
def test_the_concentration_needed_is_enough_and_not_more(limit, x, exponent):
    """From it on the error stays below the target, just below it it does not, and no bound asks for less."""
    clip = limit.clip
    assume(min(abs(x - clip.low), abs(x - clip.high)) > 1e-3)
    target = 10.0**exponent
    exact, entropy, gaussian = (limit.needed_concentration(x, target, by=by) for by in ("exact", "entropy", "gaussian"))
    assert exact <= min(entropy, gaussian) * (1 + 1e-9)
    if exact > 0:
        assert limit.error(x, exact * 0.999) > target > limit.error(x, exact * 1.001)
        beyond = limit.error(x, exact * np.geomspace(1.001, 1e4, 200))
        assert (beyond <= target).all()
    for by, k in (("entropy", entropy), ("gaussian", gaussian)):
        if k > 0:
            assert limit.error_bound(x, k, tail=by) == pytest.approx(target, rel=1e-6)


@pytest.mark.parametrize("side", [-1, 1])
@pytest.mark.parametrize(("distance", "target"), [(1e-4, 0.55), (1e-6, 0.51), (1e-6, 0.6)])
def test_the_concentration_needed_next_to_an_end(side, distance, target):
    """Draws are skewed, so that next to an end the root is far below the bound: it was given as 0."""
    limit, x = family(), side * (1.5 + distance)
    needed = limit.needed_concentration(x, target)
    assert 0 < needed < 1e-6 * limit.needed_concentration(x, target, by="entropy")
    assert limit.error(x, needed * 0.99) > target > limit.error(x, needed * 1.01)


def test_the_concentration_grows_with_the_ratio_bound():
    """It grows in proportion to M, by the sub-Gaussian tail in proportion to M**2; at an end none is enough."""
    needed = {
        by: [family(m).needed_concentration(HALF, 1e-3, by=by) for m in (1e2, 1e4)] for by in ("exact", "gaussian")
    }
    assert needed["exact"][1] / needed["exact"][0] == pytest.approx(100, rel=0.02)
    assert needed["gaussian"][1] / needed["gaussian"][0] == pytest.approx(1e4, rel=0.02)
    assert family().needed_concentration(-1.5, 0.1) == family().needed_concentration(1.5, 0.6) == math.inf
    assert (
        ClipLimit(ClipRange(-1, 9), policy_ratio_bound=6, ref_ratio_bound=6).needed_concentration(-math.inf, 0.1) == 0
    )


# ---- mean disagreement and its rates --------------------------------------------------------------------------------


def test_disagreement_is_the_sum_over_atoms():
    """For finitely many ratios it is the weighted sum of errors, and a plain mean without weights."""
    x, p = [-3.0, -1.5, -1.0, 0.5, 4.0], [0.1, 0.2, 0.3, 0.3, 0.1]
    expected = sum(q * float(oracles.clip_error(v, "-1.5", "1.5", 50, (6, 6))) for v, q in zip(x, p, strict=True))
    assert family().mean_disagreement(x, 50, probs=p) == pytest.approx(expected, rel=1e-11)
    assert family().mean_disagreement(x, [50, 500]).tolist() == pytest.approx(
        [family().error(x, k).mean() for k in (50, 500)], rel=1e-13
    )


@SETTINGS
@given(limit=LIMITS, x=st.lists(st.floats(-5, 5), min_size=1, max_size=6))
def test_discrete_spread_falls_exponentially(limit, x):
    """Without an atom on an end, ln(disagreement) falls by the exponent times the concentration, up to ln k / 2."""
    ends = limit.clip.low, limit.clip.high
    assume(all(abs(v - end) > 0.05 for v in x for end in ends))
    exponent = limit.decay_exponent(x)
    assume(exponent < math.inf)
    k = np.array([200.0, 400.0]) / exponent
    logs = np.log(limit.mean_disagreement(x, k))
    assert abs((logs[0] - logs[1]) / 200 - 1) < 0.02
    assert (logs <= -exponent * k + math.log(2) + 1e-6).all()


def test_atoms_on_an_end_keep_one_half():
    """An atom on an end leaves half of its probability, so the exponent is 0; atoms of probability 0 do not count."""
    limit = family()
    assert limit.decay_exponent([-1.5, 0.0]) == 0
    assert limit.decay_exponent([-1.5, 0.0], probs=[0, 1]) > 0
    assert limit.mean_disagreement([-1.5, 0.0], 1e8, probs=[0.3, 0.7]) == pytest.approx(0.15, abs=1e-4)


@pytest.mark.parametrize("width", [0.5, 1.5])
def test_continuous_spread_falls_as_the_root(width):
    """For a normal spread sqrt(k) times the disagreement tends to C, with an error that falls with k."""
    limit = family(low=-1.0, high=1.5)
    constant = limit.disagreement_constant(norm.pdf(-1.0, scale=width), norm.pdf(1.5, scale=width))
    k = np.array([1e3, 1e5, 1e7])
    exact = limit.mean_disagreement_of_density(lambda x: norm.pdf(x, scale=width), k, support=(-8 * width, 8 * width))
    off = np.abs(exact * np.sqrt(k) / constant - 1)
    assert off[2] < 1e-4 and (np.diff(off) < 0).all()


def test_disagreement_of_a_jump_and_outside_the_support():
    """Where the density jumps on an end the mean of both sides counts; with no density there it vanishes faster."""
    limit = family()
    k = 1e7
    uniform = limit.mean_disagreement_of_density(lambda x: np.full_like(x, 1 / 3), k, support=(-1.5, 1.5))
    constant = limit.disagreement_constant(1 / 6, 1 / 6)
    assert uniform * math.sqrt(k) == pytest.approx(constant, rel=1e-2)
    away = limit.mean_disagreement_of_density(lambda x: np.full_like(x, 1.0), k, support=(-0.5, 0.5))
    assert away < 1e-30


@pytest.mark.parametrize("k", [20, 3000, 1e6])
def test_quadrature_agrees_with_a_fine_grid(k):
    """The quadrature agrees with adaptive quadrature of scipy's Beta laws, taken apart at both ends."""
    limit = family(low=-1.0, high=0.8, other=9.0)
    laws = [beta(k * mean, k * (1 - mean)) for mean in limit.means]

    def weighted(x, inside):
        policy, ref = laws[0].sf(math.exp(x) / 6), laws[1].sf(math.exp(-x) / 9)
        return norm.pdf(x) * (policy + ref - policy * ref if inside else (1 - policy) * (1 - ref))

    width = 12 / math.sqrt(k)
    cuts = sorted({-9.0, -1 - width, -1.0, -1 + width, 0.8 - width, 0.8, 0.8 + width, math.log(6), 9.0})
    expected = sum(
        quad(weighted, low, high, args=(low >= -1 and high <= 0.8,), epsabs=1e-15, epsrel=1e-12, limit=200)[0]
        for low, high in itertools.pairwise(cuts)
    )
    ours = limit.mean_disagreement_of_density(norm.pdf, k, support=(-9, 9))
    assert ours == pytest.approx(expected, rel=1e-9)


def test_samples_agree_with_the_density():
    """The mean over sampled ratios lies within Hoeffding's bound, at a chance of 1e-9, of the integral."""
    limit, count = family(), 50_000
    x = np.random.default_rng(2).normal(0.2, 1.2, count)
    exact = limit.mean_disagreement_of_density(lambda v: norm.pdf(v, 0.2, 1.2), 300, support=(-10, 10))
    assert abs(limit.mean_disagreement(x, 300) - exact) <= math.sqrt(math.log(2 / 1e-9) / (2 * count))
    draws = np.random.default_rng(3)
    member = limit.rejection(300)
    kept = member.keeps(x, member.policy.sample(draws, count), member.ref.sample(draws, count))
    assert abs((kept != limit.clip.contains(x)).mean() - exact) <= math.sqrt(math.log(2 / 1e-9) / (2 * count))


# ---- errors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: family(1.0), "policy_ratio_bound must be > 1; got 1.0"),
        (lambda: family(low=-math.inf), "clip.low must be finite; got -inf"),
        (
            lambda: family(low=-800),
            "clip.low must leave the mean of its Beta draw, exp(-|clip.low|) / 6, at 2.2e-308 or more; got -800.0",
        ),
        (lambda: family().error(0.0, 0), "concentration must be > 0; got 0.0"),
        (lambda: family().acceptance_probability([0.0, 1.0], [1.0, -2.0]), "concentration must be > 0; got -2.0"),
        (lambda: family().error_bound(0.0, math.inf), "concentration must be finite; got inf"),
        (lambda: family().rejection(0), "concentration must be > 0; got 0"),
        (lambda: family().error_bound(0.0, 1, tail="exact"), "tail must be one of 'entropy', 'gaussian'; got 'exact'"),
        (
            lambda: family().needed_concentration(0.0, 0.1, by="chernoff"),
            "by must be one of 'exact', 'entropy', 'gaussian'; got 'chernoff'",
        ),
        (lambda: family().needed_concentration(0.0, 1.0), "error must be < 1; got 1.0"),
        (lambda: family().needed_concentration(0.0, 0), "error must be > 0; got 0"),
        (lambda: family().needed_concentration(math.nan, 0.1), "log_ratio must not be nan; got nan"),
        (
            lambda: family().mean_disagreement([0.0, 1.0], 9, probs=[0.5, 0.4]),
            "probs must sum to 1 within 1e-06 along the last axis; got 0.9",
        ),
        (lambda: family().mean_disagreement([0.0, 1.0], 9, probs=[1.5, -0.5]), "probs must be >= 0; got -0.5"),
        (
            lambda: family().mean_disagreement([0.0, 1.0], 9, probs=[1.0]),
            "probs must have the shape of log_ratio (2,); got (1,)",
        ),
        (lambda: family().mean_disagreement([[0.0, 1.0]], 9), "log_ratio must have one axis; got (1, 2)"),
        (lambda: family().mean_disagreement([np.inf], 9), "log_ratio must be finite; got inf"),
        (
            lambda: family().mean_disagreement_of_density(np.ones_like, 9, support=(0.0, 2.0)),
            "density must integrate to 1 over the support within 1e-06; got ",
        ),
        (
            lambda: family().mean_disagreement_of_density(np.ones_like, 9, support=(1.0, 1.0)),
            "support must be an interval of positive length; got (1.0, 1.0)",
        ),
        (
            lambda: family().mean_disagreement_of_density(lambda x: -np.ones_like(x), 9, support=(0.0, 1.0)),
            "density(x) must be >= 0; got -1.0",
        ),
        (lambda: family().disagreement_constant(-1.0, 0.0), "density_at_low must be >= 0; got -1.0"),
    ],
)
def test_refuses_what_lies_outside_its_domain(call, message):
    """Every wrong argument is a ValueError that names it, its rule and the value."""
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        call()


def test_refuses_a_tuple_as_range():
    """A tuple in place of a clip range is a TypeError."""
    with pytest.raises(TypeError, match=r"^clip must be a ClipRange; got \(-1, 1\)$"):
        ClipLimit((-1, 1), policy_ratio_bound=2, ref_ratio_bound=2)


@pytest.mark.parametrize("by", ["exact", "entropy", "gaussian"])
def test_needed_concentration_at_the_middle_of_a_symmetric_range(by):
    """Where both tests err alike the root is met up to rounding, for every target."""
    limit = ClipLimit(ClipRange(-1.5, 1.5), policy_ratio_bound=6, ref_ratio_bound=6)
    for error in (0.9, 0.3, *(10.0**-j for j in range(1, 13)), 1e-100, 1e-300):
        needed = limit.needed_concentration(0.0, error, by=by)
        assert np.isfinite(needed) and needed >= 0
        if needed > 1:
            assert limit.error(0.0, needed) <= error * (1 + 1e-6)


@pytest.mark.parametrize("side", [-1, 1])
@pytest.mark.parametrize("distance", [1e-3, 1e-6, 1e-7, 3e-8, 1e-9, 1e-12])
def test_exponents_next_to_an_end(side, distance):
    """Close to an end the decay exponent is the relative entropy of mpmath, and the bound holds."""
    limit = ClipLimit(ClipRange(-1.5, 1.5), policy_ratio_bound=6, ref_ratio_bound=6)
    x = side * (1.5 + distance)
    gap = abs(x) - 1.5  # as floats have it
    with mp.workdps(60):
        mean = mp.exp(mp.mpf("-1.5")) / 6
        y = mean * mp.exp(-mp.mpf(gap))
        exact = mean * mp.log(mean / y) + (1 - mean) * mp.log((1 - mean) / (1 - y))
    assert limit.decay_exponent(np.array([x])) == pytest.approx(float(exact), rel=1e-9)
    concentration = 2.0 / float(exact)
    assert limit.error(x, concentration) <= limit.error_bound(x, concentration) * (1 + 1e-9)
