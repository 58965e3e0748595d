"""The curves of Figure 2: implied capacities, the human curve and their distances."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr, ndtri

from humanline.theory import (
    Identity,
    TverskyKahneman,
    decision_weights,
    human_curve,
    implied_capacity,
    kl_divergence,
)
from tests import oracles
from tests.helpers import strategies

SETTINGS = settings(derandomize=True, deadline=None, max_examples=60)
GAIN, LOSS = TverskyKahneman(0.61), TverskyKahneman(0.69)
MP_GAIN, MP_LOSS, _ = oracles.medians()

PAD = "to make prospects equally long, pad with probability 0, and any finite outcome"


def gaussian(tilts, atoms):
    """Equally likely pieces of z ~ N(s**2/2, s**2) under the policy; samplers in proportion to policy * exp(eta z)."""
    x = np.linspace(0, 1, atoms + 1)
    y = ndtr(ndtri(x) - np.asarray(tilts)[..., None])
    return np.arange(atoms), np.diff(x), np.diff(y)


@SETTINGS
@given(case=strategies.samplers())
def test_points_are_cumulative_probabilities(case):
    """The points are P(Z <= z) under policy and sampler, from (0, 0) to (1, 1) exactly, ties merged."""
    z, policy, sampler = case
    implied = implied_capacity(z, policy, sampler)
    for ours, probs in ((implied.policy_cumulative, policy), (implied.sampler_cumulative, sampler)):
        assert (ours[0], ours[-1]) == (0, 1)
        assert np.all(np.diff(ours) >= 0)
        np.testing.assert_allclose(ours, [float(p) for p in oracles.curve_points(z, probs)], rtol=0, atol=1e-15)
    assert implied.outcomes.tolist() == sorted(set(z))


@SETTINGS
@given(case=strategies.samplers(), order=st.randoms(use_true_random=False))
def test_order_and_splitting_do_not_matter(case, order):
    """Shuffled outcomes give the same curve to the last bit, and an outcome listed twice with half of both the same."""
    z, policy, sampler = map(np.array, case)
    implied = implied_capacity(z, policy, sampler)
    shuffle = list(range(len(z)))
    order.shuffle(shuffle)
    shuffled = implied_capacity(z[shuffle], policy[shuffle], sampler[shuffle])
    np.testing.assert_array_equal(shuffled.policy_probs, implied.policy_probs)
    np.testing.assert_array_equal(shuffled.sampler_probs, implied.sampler_probs)
    split = implied_capacity(np.repeat(z, 2), np.repeat(policy, 2) / 2, np.repeat(sampler, 2) / 2)
    np.testing.assert_allclose(split.sampler_cumulative, implied.sampler_cumulative, rtol=0, atol=1e-15)


@SETTINGS
@given(case=strategies.samplers())
def test_the_implied_capacity_weighs_the_policy_into_the_sampler(case):
    """As the capacity of gains it makes decision weights of the policy's probabilities the sampler's probabilities."""
    z, policy, sampler = case
    lowest = min(z) - 1
    implied = implied_capacity(z, policy, sampler)
    if np.any((implied.policy_probs < 1e-8) & (implied.sampler_probs > 0)):  # what the policy never gives has no weight
        return
    weights = decision_weights(
        implied.outcomes, implied.policy_probs, gain=implied, loss=implied, reference_point=lowest
    )
    np.testing.assert_allclose(weights, implied.sampler_probs, rtol=0, atol=1e-7)


def test_curve_and_capacity_are_each_others_mirror():
    """The curve passes its points, is straight between them, and the capacity is 1 - curve(1 - p)."""
    implied = implied_capacity([3, 1, 2], [0.25, 0.5, 0.25], [0.5, 0.125, 0.375])
    np.testing.assert_allclose(implied.curve([0, 0.25, 0.5, 0.625, 0.75, 1]), [0, 0.0625, 0.125, 0.3125, 0.5, 1])
    x = np.linspace(0, 1, 101)
    np.testing.assert_allclose(implied(x), 1 - implied.curve(1 - x), atol=1e-15)
    assert implied.is_monotone
    assert implied.curve(0.5).shape == ()


def test_an_outcome_that_the_policy_never_gives_is_a_jump():
    """At a jump the curve is at its upper end, except at 0 and 1, and the capacity stays its mirror."""
    implied = implied_capacity([1, 2, 3, 4], [0.5, 0.0, 0.5, 0.0], [0.25, 0.25, 0.25, 0.25])
    assert implied.policy_cumulative.tolist() == [0, 0.5, 0.5, 1, 1]
    np.testing.assert_allclose(implied.curve([0.0, 0.25, 0.5, 0.75, 1.0]), [0, 0.125, 0.5, 0.625, 1])
    assert implied.curve(1 - 1e-12) == pytest.approx(0.75, abs=1e-11)
    x = np.linspace(0, 1, 101)
    np.testing.assert_allclose(implied(x), 1 - implied.curve(1 - x), atol=1e-15)
    worst = implied_capacity([1, 2], [0.0, 1.0], [0.5, 0.5])
    assert worst.curve([0.0, 1e-12]).tolist() == pytest.approx([0, 0.5])


def test_several_samplers_at_once():
    """Leading axes of the sampler are samplers: of the points, the curves and the distances."""
    rng = np.random.default_rng(0)
    z, policy, samplers = rng.integers(-2, 3, 6), rng.dirichlet(np.ones(6)), rng.dirichlet(np.ones(6), (2, 3))
    batch = implied_capacity(z, policy, samplers)
    assert batch.curve(np.zeros((4, 5))).shape == (2, 3, 4, 5)
    distances = batch.distances(gain=GAIN, loss=LOSS)
    for i in range(2):
        for j in range(3):
            single = implied_capacity(z, policy, samplers[i, j])
            np.testing.assert_array_equal(batch.sampler_cumulative[i, j], single.sampler_cumulative)
            np.testing.assert_array_equal(batch.curve([0.2, 0.7])[i, j], single.curve([0.2, 0.7]))
            np.testing.assert_array_equal(batch([0.2, 0.7])[i, j], single([0.2, 0.7]))
            for name, value in vars(single.distances(gain=GAIN, loss=LOSS)).items():
                assert getattr(distances, name)[i, j] == pytest.approx(value, rel=1e-13)


@pytest.mark.parametrize("gain_prob", [0.0, 0.25, 0.5, 0.71529, 1.0])
def test_human_curve_sums_the_decision_weights(gain_prob):
    """The curve is the oracle's at every x, ends at the mass of the weights, and is their running sum."""
    x = np.concatenate([[0, 1e-15, 1e-6], np.linspace(0.001, 0.999, 41), [1 - 1e-6, 1]])
    ours = human_curve(x, gain=GAIN, loss=LOSS, gain_prob=gain_prob)
    expected = [float(oracles.human_point(point, MP_GAIN, MP_LOSS, gain_prob)) for point in x]
    np.testing.assert_allclose(ours, expected, rtol=1e-13, atol=2e-15)
    assert ours[0] == 0
    assert ours[-1] == pytest.approx(float(oracles.total_mass(gain_prob)), abs=1e-15)

    probs = np.append(np.full(5, (1 - gain_prob) / 5), np.full(5, gain_prob / 5))
    weights = decision_weights(np.arange(-5, 5), probs, gain=GAIN, loss=LOSS)
    cumulative = np.minimum(np.cumsum(probs), 1)
    np.testing.assert_allclose(
        human_curve(cumulative, gain=GAIN, loss=LOSS, gain_prob=gain_prob), np.cumsum(weights), atol=1e-9
    )


def test_human_curve_of_gains_only():
    """For gains only it is 1 - Omega(1 - x), an inverse S from (0, 0) to (1, 1), and needs no capacity of losses."""
    x = np.linspace(0, 1, 201)
    curve = human_curve(x, gain=GAIN)
    np.testing.assert_allclose(curve, 1 - GAIN(1 - x), atol=1e-15)
    assert np.all(np.diff(curve) > 0)
    assert curve[10] > x[10]
    assert curve[190] < x[190]
    np.testing.assert_allclose(human_curve(x, gain=Identity()), x, atol=1e-15)
    assert human_curve(0.5, gain=GAIN).shape == ()


@SETTINGS
@given(case=strategies.samplers(), normalise=st.booleans(), z0=strategies.outcomes)
def test_distances_agree_with_the_oracle(case, normalise, z0):
    """Each distance is its definition, outcome by outcome; a divergence is infinite exactly outside the support."""
    z, policy, sampler = case
    ours = implied_capacity(z, policy, sampler).distances(gain=GAIN, loss=LOSS, reference_point=z0, normalise=normalise)
    expected = oracles.curve_distances(z, policy, sampler, MP_GAIN, MP_LOSS, z0, normalise)
    for name, value in expected.items():
        if "kl" in name and any(0 < p < 1e-6 for p in (*policy, *sampler)):
            continue  # such weights are right to 1e-16, not to their own size
        assert getattr(ours, name) == pytest.approx(float(value), rel=1e-8, abs=1e-14), name
    assert min(ours.kl, ours.reverse_kl) >= 0


def test_divergences_need_the_right_support():
    """KL(w || Q) is infinite where the sampler never gives what has weight, KL(Q || w) the other way round."""
    missing = implied_capacity([1, 2], [0.5, 0.5], [1.0, 0.0]).distances(gain=GAIN)
    assert missing.kl == math.inf
    assert missing.reverse_kl == pytest.approx(-math.log(1 - GAIN(0.5)))
    extra = implied_capacity([1, 2], [1.0, 0.0], [0.5, 0.5]).distances(gain=GAIN)
    assert extra.reverse_kl == math.inf
    assert extra.kl == pytest.approx(math.log(2))
    assert (extra.sup, extra.l1) == (0.5, 1.0)


def test_a_sampler_that_weighs_like_a_human_is_at_distance_zero():
    """The decision weights themselves, as a sampler, are at no distance; with gains and losses if normalised."""
    policy = np.random.default_rng(0).dirichlet(np.ones(7))
    for z in (np.arange(7), np.arange(7) - 3):
        weights = decision_weights(z, policy, gain=GAIN, loss=LOSS)
        human = implied_capacity(z, policy, weights / weights.sum())
        for value in vars(human.distances(gain=GAIN, loss=LOSS, normalise=True)).values():
            assert value == pytest.approx(0, abs=1e-15)
    unequal = human.distances(gain=GAIN, loss=LOSS)
    assert unequal.l1 == pytest.approx(1 - weights.sum())
    x = human.policy_cumulative
    gain_prob = policy[3:].sum()
    curve = human_curve(x, gain=GAIN, loss=LOSS, gain_prob=gain_prob)
    np.testing.assert_allclose(human.sampler_cumulative, curve / curve[-1], atol=1e-14)


def test_distances_of_the_gaussian_model():
    """Gains only at gamma .61: sup .19633, .26543, .42316 at tilts 0, -1, 1; KL tends to .33879, .57461, 1.10297."""
    sup = (0.19633, 0.26543, 0.42316)
    divergence = (0.33879, 0.57461, 1.10297)
    errors = []
    for atoms in (2000, 20_000, 200_000):
        z, policy, samplers = gaussian([0, -1, 1], atoms)
        distances = implied_capacity(z, policy, samplers).distances(gain=GAIN)
        np.testing.assert_allclose(distances.sup, sup, atol=6e-6)
        errors.append(np.array(divergence) - distances.kl)
    assert np.all(errors[0] > errors[1]) and np.all(errors[1] > errors[2])  # merging outcomes only loses divergence
    assert np.all(np.abs(errors[2]) < 4e-4)


def test_distances_of_the_gaussian_model_from_pieces_that_are_finer_at_the_ends():
    """Pieces of equal width in z give the same distances to five digits from 20 000 of them."""
    ends = np.concatenate([[-np.inf], np.linspace(-12, 12, 20_001), [np.inf]])

    def pieces(tilt):
        low, high = ends[:-1] - tilt, ends[1:] - tilt
        return np.where(high <= 0, ndtr(high) - ndtr(low), ndtr(-low) - ndtr(-high))

    samplers = np.stack([pieces(tilt) for tilt in (0, -1, 1)])
    distances = implied_capacity(np.arange(20_002), pieces(0), samplers).distances(gain=GAIN)
    np.testing.assert_allclose(distances.kl, (0.33879, 0.57461, 1.10297), atol=6e-6)
    np.testing.assert_allclose(distances.sup, (0.19633, 0.26543, 0.42316), atol=6e-6)


def test_on_policy_is_not_the_closest_for_gains_only():
    """A slightly worse sampler (tilt -.528 to 0) is closer in KL than on-policy sampling."""
    tilts = np.array([-0.6, -0.4, -0.25, -0.1, 0.0, 0.1])
    z, policy, samplers = gaussian(tilts, 20_000)
    kl = implied_capacity(z, policy, samplers).distances(gain=GAIN).kl
    assert np.all(kl[1:4] < kl[4])
    assert kl[0] > kl[4] and kl[5] > kl[4]


@pytest.mark.parametrize("gain_prob", [0.3, 0.5, 0.7])
def test_with_gains_and_losses_on_policy_is_nearly_the_closest(gain_prob):
    """In the mixed model the tilt of least KL is within .035 of on-policy, and that of least L1 is -.115 or so."""
    tilts = np.linspace(-0.3, 0.3, 121)
    z, policy, samplers = gaussian(tilts, 5000)
    distances = implied_capacity(z, policy, samplers).distances(
        gain=GAIN, loss=LOSS, reference_point=5000 * (1 - gain_prob)
    )
    assert abs(tilts[distances.kl.argmin()]) <= 0.0351
    assert tilts[distances.l1.argmin()] == pytest.approx(-0.115, abs=0.0051)
    assert distances.l1[60] - distances.l1.min() < 0.004


def test_worse_models_lie_above_the_diagonal():
    """A worse sampler's curve is above the diagonal, a better one's below, on-policy on it (statements 1 and 2)."""
    z, policy, samplers = gaussian([-1, 0, 1], 100)
    worse, same, better = implied_capacity(z, policy, samplers).sampler_cumulative
    x = implied_capacity(z, policy, policy).policy_cumulative
    assert np.all(worse[1:-1] > x[1:-1])
    assert np.all(better[1:-1] < x[1:-1])
    np.testing.assert_allclose(same, x, atol=1e-14)


def test_kl_is_that_of_kl_divergence_for_gains():
    """For gains only the distance is KL(w || Q) of the other module."""
    rng = np.random.default_rng(0)
    policy, sampler = rng.dirichlet(np.ones(5), 2)
    weights = decision_weights(np.arange(5), policy, gain=GAIN, loss=LOSS)
    distances = implied_capacity(np.arange(5), policy, sampler).distances(gain=GAIN)
    assert distances.kl == pytest.approx(kl_divergence(weights, sampler), rel=1e-13)
    assert distances.reverse_kl == pytest.approx(kl_divergence(sampler, weights), rel=1e-13)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1, 2], [0.5, 0.5], [0.5, 0.4]), "sampler_probs must sum to 1 within 1e-06 along the last axis; got 0.9"),
        (([1, 2], [0.5, 0.6], [0.5, 0.5]), "policy_probs must sum to 1 within 1e-06 along the last axis; got 1.1"),
        (([1, 2], [1.5, -0.5], [0.5, 0.5]), "policy_probs must be >= 0; got -0.5"),
        (([1, np.nan], [0.5, 0.5], [0.5, 0.5]), f"outcomes must be finite; got nan; {PAD}"),
        (([1, 2], [0.5, 0.5], [0.2, 0.3, 0.5]), "sampler_probs must have the shape of outcomes (2,); got (3,)"),
        (([1, 2, 3], [0.5, 0.5], [0.5, 0.5]), "policy_probs must have the shape of outcomes (3,); got (2,)"),
        (([[1, 2]], [0.5, 0.5], [0.5, 0.5]), "outcomes, policy_probs must have one axis; got (1, 2)"),
        (([], [], []), "outcomes must hold at least one outcome; got array([], dtype=float64)"),
    ],
)
def test_refuses_what_are_no_distributions(arguments, message):
    """Each way in which the three arrays fail to be a policy and a sampler has its own message."""
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        implied_capacity(*arguments)


def test_refuses_losses_without_their_capacity_and_probabilities_out_of_range():
    """Losses need a capacity; curves take only probabilities; a capacity below the threshold gives no weights."""
    implied = implied_capacity([-1, 1], [0.5, 0.5], [0.5, 0.5])
    with pytest.raises(ValueError, match=r"^loss must be given, since there are outcomes below the ref.*; got -1\.0$"):
        implied.distances(gain=GAIN)
    with pytest.raises(ValueError, match=r"^loss must be given, since gain_prob < 1; got None$"):
        human_curve(0.5, gain=GAIN, gain_prob=0.5)
    for call in (implied, implied.curve, lambda p: human_curve(p, gain=GAIN)):
        with pytest.raises(ValueError, match=r"^prob must lie in \[0, 1\]; got 1\.5$"):
            call([0.5, 1.5])
        with pytest.raises(ValueError, match=r"^prob must lie in \[0, 1\]; got nan$"):
            call(np.nan)
    with pytest.raises(ValueError, match=r"^gain_prob must lie in \[0, 1\]; got 2\.0$"):
        human_curve(0.5, gain=GAIN, loss=LOSS, gain_prob=2)
    with pytest.warns(UserWarning, match="below"):
        below = TverskyKahneman(0.2)
    with pytest.raises(ValueError, match=r"^gain must be monotone.*; got TverskyKahneman\(gamma=0\.2\)$"):
        implied.distances(gain=below, loss=LOSS)
    with pytest.raises(ValueError, match=r"^gain must map 0 to 0 and 1 to 1; got \[0\.5, 1\.0\]$"):
        human_curve(0.5, gain=lambda p: 0.5 + p / 2)
