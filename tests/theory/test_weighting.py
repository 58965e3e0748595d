"""Decision weights against Eq. 4 written as loops, published numbers, and what must not change them."""

from __future__ import annotations

import re
import warnings

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
    subjective_utility,
)
from tests import oracles
from tests.helpers import strategies

SETTINGS = settings(derandomize=True, deadline=None, max_examples=100)
GAIN, LOSS = TverskyKahneman(0.61), TverskyKahneman(0.69)
MEDIANS = {"gain": GAIN, "loss": LOSS}

PAD = "to make prospects equally long, pad with probability 0, and any finite outcome"


def both(capacity):
    """One capacity for gains and losses."""
    return {"gain": capacity, "loss": capacity}


@SETTINGS
@given(
    prospect=strategies.prospects(),
    gain=strategies.monotone_gammas,
    loss=strategies.monotone_gammas,
    z0=strategies.outcomes,
)
def test_agrees_with_the_equation(prospect, gain, loss, z0):
    """Summed over equal outcomes, the weights are those of Eq. 4 in many digits, also next to 0 and 1."""
    z, p = prospect
    weights = decision_weights(z, p, gain=TverskyKahneman(gain), loss=TverskyKahneman(loss), reference_point=z0)
    expected = oracles.decision_weights(
        z,
        p,
        lambda x: oracles.tversky_kahneman(x, gain),
        lambda x: oracles.tversky_kahneman(x, loss),
        z0,
    )
    for outcome, weight in expected.items():
        assert weights[np.array(z) == outcome].sum() == pytest.approx(float(weight), abs=2e-15)


@SETTINGS
@given(prospect=strategies.prospects(), gamma=strategies.monotone_gammas)
def test_weights_are_not_negative_above_the_threshold(prospect, gamma):
    """With monotone capacities no weight is below 0, not even by rounding, and probability 0 has weight 0."""
    z, p = prospect
    weights = decision_weights(z, p, **both(TverskyKahneman(gamma)))
    assert np.all(weights >= 0)
    assert np.all(weights[np.array(p) == 0] == 0)


@SETTINGS
@given(prospect=strategies.prospects(), z0=strategies.outcomes)
def test_weights_of_one_sign_sum_to_the_capacity_of_its_probability(prospect, z0):
    """The gains' weights sum to the capacity of P(gain), the losses' to that of P(loss)."""
    z, p = prospect
    weights = decision_weights(z, p, **MEDIANS, reference_point=z0)
    for side, gamma in ((np.array(z) >= z0, 0.61), (np.array(z) < z0, 0.69)):
        total = oracles.mpmath.fsum(oracles.mpf(x) for x, s in zip(p, side, strict=True) if s)
        total /= oracles.mpmath.fsum(oracles.mpf(x) for x in p)
        assert weights[side].sum() == pytest.approx(float(oracles.tversky_kahneman(total, gamma)), abs=4e-15)


@SETTINGS
@given(prospect=strategies.prospects(), order=st.randoms(use_true_random=False))
def test_order_does_not_matter(prospect, order):
    """Permuting the outcomes permutes the weights, to the last bit (equal pairs of outcome and probability alike)."""
    z, p = map(np.array, prospect)
    permutation = list(range(len(z)))
    order.shuffle(permutation)
    weights = decision_weights(z, p, **MEDIANS)
    np.testing.assert_array_equal(decision_weights(z[permutation], p[permutation], **MEDIANS), weights[permutation])


@SETTINGS
@given(prospect=strategies.prospects(), where=st.integers(0, 6), share=st.floats(0, 1))
def test_splitting_an_outcome_changes_nothing(prospect, where, share):
    """Listing an outcome twice with its probability divided keeps every outcome's summed weight."""
    z, p = map(np.array, prospect)
    where %= len(z)
    split_z = np.append(z, z[where])
    split_p = np.append(p, p[where] * share)
    split_p[where] = p[where] * (1 - share)
    weights, split = decision_weights(z, p, **MEDIANS), decision_weights(split_z, split_p, **MEDIANS)
    for outcome in np.unique(z):
        assert split[split_z == outcome].sum() == pytest.approx(weights[z == outcome].sum(), abs=2e-15)


def test_ties_share_in_proportion_to_probability():
    """Equal outcomes share their weight like their probabilities."""
    weights = decision_weights([1, 2, 1], [0.3, 0.4, 0.3 / 3 + 0.2], **MEDIANS)
    merged = decision_weights([1, 2], [0.6, 0.4], **MEDIANS)
    np.testing.assert_allclose(weights, [merged[0] / 2, merged[1], merged[0] / 2], rtol=1e-14)
    weights = decision_weights([1, 2, 1], [0.1, 0.4, 0.5], **MEDIANS)
    np.testing.assert_allclose(weights, [merged[0] / 6, merged[1], merged[0] * 5 / 6], rtol=1e-14)


@SETTINGS
@given(prospect=strategies.prospects(), where=st.integers(0, 6), share=st.floats(0, 1), scale=st.floats(0.01, 100))
def test_merging_and_scaling_change_nothing(prospect, where, share, scale):
    """Outcomes in another unit have the same weights, and merging all ties leaves each sum as it was."""
    z, p = map(np.array, prospect)
    weights = decision_weights(z, p, **MEDIANS)
    np.testing.assert_allclose(decision_weights(z * scale, p, **MEDIANS), weights, rtol=0, atol=1e-15)
    distinct, group = np.unique(z, return_inverse=True)
    merged = decision_weights(distinct, np.bincount(group, weights=p), **MEDIANS)
    np.testing.assert_allclose(merged, np.bincount(group, weights=weights), rtol=0, atol=4e-15)


@SETTINGS
@given(prospect=strategies.prospects(), source=st.integers(0, 6), target=st.integers(0, 6), share=st.floats(0, 1))
def test_dominance_in_probability(prospect, source, target, share):
    """Moving probability to a better outcome never lowers the utility (first-order stochastic dominance)."""
    z, p = prospect
    source, target = sorted((source % len(z), target % len(z)), key=lambda i: z[i])
    better = np.array(p)
    moved = share * better[source]
    better[source] -= moved
    better[target] += moved
    human = {"value": PowerValue(), **MEDIANS}
    assert subjective_utility(z, better, **human) >= subjective_utility(z, p, **human) - 1e-12


@SETTINGS
@given(prospect=strategies.prospects(), z0=strategies.outcomes)
def test_presorted_outcomes_skip_the_sort(prospect, z0):
    """On sorted outcomes the option changes nothing but the rounding among ties."""
    z, p = map(np.array, prospect)
    order = np.argsort(z)
    given = z[order], p[order]
    np.testing.assert_allclose(
        decision_weights(*given, **MEDIANS, reference_point=z0, presorted=True),
        decision_weights(*given, **MEDIANS, reference_point=z0),
        rtol=0,
        atol=2e-15,
    )


def test_presorted_is_checked():
    """Outcomes that fall somewhere, in any row, are refused; ties are fine; utilities take the option too."""
    with pytest.raises(ValueError, match=r"^outcomes must not fall along the last axis, if presorted; got 1\.0$"):
        decision_weights([[1, 2, 3], [2, 1, 3]], np.full((2, 3), 1 / 3), **MEDIANS, presorted=True)
    assert decision_weights([1, 1, 3], [0.5, 0.25, 0.25], **MEDIANS, presorted=True).sum() == pytest.approx(1)
    human = {"value": PowerValue(), **MEDIANS, "presorted": True}
    for function in (subjective_utility, certainty_equivalent):
        assert np.isfinite(function([-1, 2], [0.5, 0.5], **human))
        with pytest.raises(ValueError, match="presorted"):
            function([2, -1], [0.5, 0.5], **human)


def test_one_capacity_value_for_each_outcome():
    """A prospect of N distinct outcomes asks its capacities for N values, and ties and signs add none."""
    asked = []

    def counting(p):
        asked.append(np.size(p))
        return np.asarray(p)

    for z in ([1, 2, 3, 4], [-2, -1, 1, 2], [-2, -2, 1, 1]):
        asked.clear()
        decision_weights(z, [0.1, 0.2, 0.3, 0.4], **both(counting))
        assert sum(asked) - 4 == len(set(z))  # four for the ends 0 and 1 of both


@SETTINGS
@given(prospect=strategies.prospects(), where=st.integers(0, 6), rise=st.floats(0, 5), gamma=strategies.monotone_gammas)
def test_a_better_outcome_is_never_worth_less(prospect, where, rise, gamma):
    """Raising one outcome does not lower the utility (dominance), also across the reference point."""
    z, p = prospect
    better = list(z)
    better[where % len(z)] += rise
    human = {"value": PowerValue(), **both(TverskyKahneman(gamma))}
    assert subjective_utility(better, p, **human) >= subjective_utility(z, p, **human) - 1e-12


@pytest.mark.parametrize("gamma", [0.1, 0.2, 0.25, 0.27, 0.279])
def test_some_weight_is_negative_below_the_threshold(gamma):
    """Below the threshold there is a three-outcome prospect with a negative weight, and dominance fails there."""
    with pytest.warns(UserWarning, match="below"):
        capacity = TverskyKahneman(gamma)
    best = np.linspace(0, 0.99, 1000)
    middle = np.full_like(best, 0.001)
    probs = np.stack([1 - best - middle, middle, best], -1)
    weights = decision_weights([1.0, 2.0, 3.0], probs, **both(capacity), allow_negative=True)
    assert weights.min() < 0
    worst = probs[np.argmin(weights[:, 1])]
    human = {"value": PowerValue(1.0), **both(capacity), "allow_negative": True}
    assert subjective_utility([1.0, 2.5, 3.0], worst, **human) < subjective_utility([1.0, 2.0, 3.0], worst, **human)


def test_negative_weights_of_the_known_example():
    """At gamma .25 probabilities (.7638, .2207, .0155) from worst to best give the published negative weight."""
    with pytest.warns(UserWarning, match="below"):
        capacity = TverskyKahneman(0.25)
    weights = decision_weights([1, 2, 3], [0.7638, 0.2207, 0.0155], **both(capacity), allow_negative=True)
    np.testing.assert_allclose(weights, [0.90172, -0.00829, 0.10656], atol=5e-6)


def test_published_weights():
    """Weights in Wakker (2010), at gamma .5, and at the medians."""
    sqrt = decision_weights([80, 30, 20], [1 / 6, 1 / 2, 1 / 3], **both(np.sqrt))
    np.testing.assert_allclose(sqrt, [0.40825, 0.40825, 0.18350], atol=5e-6)
    assert sqrt @ [80, 30, 20] == pytest.approx(48.577, abs=5e-4)
    half = decision_weights([70, 50, 30], [0.2, 0.6, 0.2], **both(TverskyKahneman(0.5)))
    np.testing.assert_allclose(half, [0.24845, 0.24845, 0.50310], atol=5e-6)
    mixed = decision_weights([36, 25, -9, -16], [0.7, 0.1, 0.1, 0.1], **MEDIANS)
    np.testing.assert_allclose(mixed, [0.53382, 0.07362, 0.08688, 0.17015], atol=5e-6)


def test_weights_of_other_implementations():
    """Weights that two other packages give for textbook prospects come out to their last digit."""
    # The tests of the R package pt by G. Au (github.com/gary-au/pt) show its weights for Wakker (2010), Prospect
    # Theory: example 5.6.1, exercises 5.6.1 b and 5.6.2, all with p**2; assignment 9.3.5 a; exercise 9.3.7 a, c, d,
    # where c is rank-dependent utility, which knows no sign.
    square = both(np.square)
    no_sign = {**MEDIANS, "reference_point": -np.finfo(float).max}
    for z, p, how, printed in (
        ([80, 50, 10], [0.2, 0.3, 0.5], square, [0.04, 0.21, 0.75]),
        ([80, 60, 40, 20], [1 / 12, 1 / 4, 1 / 6, 1 / 2], square, [0.0069444, 0.1041667, 0.1388889, 0.75]),
        ([80, 30, 20], [1 / 6, 1 / 2, 1 / 3], square, [0.027778, 0.416667, 0.555556]),
        ([12, 7, -2, -5], [0.15, 0.35, 0.3, 0.2], MEDIANS, [0.2269, 0.1937, 0.1970, 0.2570]),
        ([80, 60, 30, -30], [0.01, 0.35, 0.35, 0.29], MEDIANS, [0.05527, 0.29444, 0.19070, 0.32091]),
        ([80, 60, 30, -30], [0.01, 0.35, 0.35, 0.29], no_sign, [0.05527, 0.29444, 0.19070, 0.45959]),
        ([80, 60, 30, -30], [0.01, 0.35, 0.35, 0.29], both(GAIN), [0.05527, 0.29444, 0.19070, 0.31298]),
        # The same tests, for Wakker (2003), Management Science 49, p. 980
        ([1600, 1200, -200, -1600], [0.25] * 4, MEDIANS, [0.2907, 0.1299, 0.1605, 0.2935]),
        # Birnbaum's online calculator, as quoted in the tests of UtilityModels.jl
        (
            [10, 3, -2, -1],
            [0.3, 0.2, 0.3, 0.2],
            {"gain": TverskyKahneman(0.6), "loss": TverskyKahneman(0.7)},
            [0.3165, 0.0992, 0.3281, 0.1293],
        ),
    ):
        digits = max(len(str(weight).split(".")[1]) for weight in printed)
        np.testing.assert_allclose(decision_weights(z, p, **how), printed, rtol=0, atol=0.5001 * 10.0**-digits)


def test_the_papers_gamble():
    """With .8 perceived as .8 and .2 as .3, +$50 and +$100 weigh .5 and .3; at gamma .61 .346676 and .260763."""

    def given_capacity(p):
        return np.interp(p, [0, 0.2, 0.8, 1], [0, 0.3, 0.8, 1])

    gamble = [50, 100, -100], [0.6, 0.2, 0.2]
    np.testing.assert_allclose(decision_weights(*gamble, **both(given_capacity))[:2], [0.5, 0.3], rtol=1e-14)
    np.testing.assert_allclose(decision_weights(*gamble, **MEDIANS)[:2], [0.346676, 0.260763], atol=5e-7)


def test_summing_over_outputs_counts_ties_twice():
    """The sum over outputs in the proof of Prop. 3.4 gives p = (.3, .3, .4), z = (1, 1, 2) a mass of 1.62998, not 1."""
    z, p = [1, 1, 2], [0.3, 0.3, 0.4]
    weights = decision_weights(z, p, **MEDIANS)
    assert weights.sum() == pytest.approx(1, abs=1e-15)
    per_outcome = {outcome: weights[np.array(z) == outcome].sum() for outcome in z}
    assert sum(per_outcome[outcome] for outcome in z) == pytest.approx(1.62998, abs=5e-6)


def test_the_reference_point_itself_is_a_gain():
    """Outcomes at the reference point carry the gains' capacity, so that right after a sync the mass is 1."""
    np.testing.assert_allclose(decision_weights([2.0, 2.0], [0.4, 0.6], **MEDIANS, reference_point=2.0).sum(), 1)
    weights = decision_weights([0.0, -0.0, -1.0], [0.25, 0.25, 0.5], **MEDIANS)
    np.testing.assert_allclose(weights, [GAIN(0.5) / 2, GAIN(0.5) / 2, LOSS(0.5)], rtol=1e-14)


@pytest.mark.parametrize("gamma", [0.3, 0.61])
@pytest.mark.parametrize("sign", [1, -1])
def test_no_mass_is_lost_to_rounding(gamma, sign):
    """Sums that end at 1 - 2**-53, or hide an outcome of 1e-20, still give a total weight of 1."""
    drifting = np.full(10, 0.1)
    assert np.cumsum(drifting)[-1] == 1 - 2**-53
    for p in (drifting, np.append(np.full(9, 1 / 9), 1e-20), np.append(1e-20, np.full(9, 1 / 9))):
        weights = decision_weights(sign * np.arange(1, len(p) + 1.0), p, **both(TverskyKahneman(gamma)))
        assert weights.sum() == pytest.approx(1, abs=1e-15)


@pytest.mark.parametrize("p", [1e-20, 1e-16, 3e-17, 1e-10])
def test_the_least_likely_outcome_is_weighed_precisely(p):
    """An outcome of tiny probability gets the weight 1 - Omega(1 - p), whichever end of the prospect it is."""
    expected = float(1 - oracles.tversky_kahneman(1 - oracles.mpf(p), 0.3))
    weights = decision_weights([1, 2], [p, 1 - p], **both(TverskyKahneman(0.3)))
    assert weights[0] == pytest.approx(expected, abs=1e-15)
    assert weights[1] == pytest.approx(1 - expected, abs=1e-15)
    np.testing.assert_allclose(
        decision_weights([-1, -2], [p, 1 - p], **both(TverskyKahneman(0.3))), weights, atol=1e-15
    )


@SETTINGS
@given(prospect=strategies.prospects())
def test_identity_gives_probabilities_back(prospect):
    """Without distortion the weights are the probabilities."""
    z, p = prospect
    np.testing.assert_allclose(decision_weights(z, p, **both(Identity())), p, atol=2e-15)


def test_batches_are_rows():
    """Leading axes are independent prospects, and an (N,) operand is shared by all of them."""
    rng = np.random.default_rng(0)
    z = rng.integers(-3, 4, (4, 5, 6)).astype(float)
    p = rng.dirichlet(np.ones(6), (4, 5))
    batch = decision_weights(z, p, **MEDIANS)
    assert batch.shape == (4, 5, 6)
    for i in range(4):
        for j in range(5):
            np.testing.assert_array_equal(batch[i, j], decision_weights(z[i, j], p[i, j], **MEDIANS))
    np.testing.assert_array_equal(
        decision_weights(z[0, 0], p, **MEDIANS), decision_weights(np.broadcast_to(z[0, 0], p.shape), p, **MEDIANS)
    )
    np.testing.assert_array_equal(
        decision_weights(z, p[0, 0], **MEDIANS), decision_weights(z, np.broadcast_to(p[0, 0], z.shape), **MEDIANS)
    )
    assert decision_weights(np.empty((0, 3)), np.empty((0, 3)), **MEDIANS).shape == (0, 3)


def test_inputs_are_left_alone_and_integers_and_float32_accepted():
    """Arguments are not written to, and the result is float64."""
    z, p = np.array([1, -1]), np.array([0.5, 0.5], dtype=np.float32)
    z.flags.writeable = p.flags.writeable = False
    assert decision_weights(z, p, **MEDIANS).dtype == np.float64


def test_probabilities_within_the_tolerance_are_normalised():
    """A sum off by rounding of float32 is accepted and divided out."""
    p = np.array([0.2, 0.3, 0.5])
    np.testing.assert_allclose(
        decision_weights([1, 2, 3], p * (1 + 9e-7), **MEDIANS), decision_weights([1, 2, 3], p, **MEDIANS), rtol=1e-14
    )


@pytest.mark.parametrize(
    ("outcomes", "probs", "message"),
    [
        ([1, 2, 3], [0.5, 0.5], "probs must have the shape of outcomes (3,); got (2,)"),
        ([[1, 2]] * 2, [[0.5, 0.5]] * 3, "probs must have the shape of outcomes (2, 2); got (3, 2)"),
        ([1, 2, 3], [[0.5, 0.5]], "outcomes must have the shape of probs (2,); got (3,)"),
        (1.0, 1.0, "outcomes must have an axis of outcomes; got 1.0"),
        ([], [], "outcomes must hold at least one outcome; got array([], dtype=float64)"),
        ([1, np.inf], [0.5, 0.5], "outcomes must be finite; got inf"),
        ([1, 2], [0.5, np.nan], f"probs must be finite; got nan; {PAD}"),
        ([1, 2], [1.5, -0.5], "probs must be >= 0; got -0.5"),
        ([1, 2], [0.5, 0.499], "probs must sum to 1 within 1e-06 along the last axis; got 0.999"),
        ([1, 2], [[0.5, 0.5], [0.5, 0.75]], "probs must sum to 1 within 1e-06 along the last axis; got 1.25"),
    ],
)
def test_refuses_what_is_no_prospect(outcomes, probs, message):
    """Each way in which outcomes and probabilities fail to be a prospect has its own message."""
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        decision_weights(outcomes, probs, **MEDIANS)


def test_refuses_capacities_that_are_not_monotone():
    """A family below its threshold is refused by name, an unknown function when a weight is negative."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        below = TverskyKahneman(0.2)
    for name in ("gain", "loss"):
        with pytest.raises(ValueError, match=rf"^{name} must be monotone.*allow_negative; got TverskyKahneman"):
            decision_weights([1, -1], [0.5, 0.5], **{**MEDIANS, name: below})

    def hump(p):
        return p + 0.9 * np.sin(2 * np.pi * p)

    gamble = [1, 2, 3], [0.25, 0.5, 0.25]
    with pytest.raises(ValueError, match=r"^gain, loss must give no negative decision weight, unless allow_negative"):
        decision_weights(*gamble, **both(hump))
    assert decision_weights(*gamble, **both(hump), allow_negative=True).min() < -0.1


def test_refuses_what_is_no_capacity():
    """A function that does not fix 0 and 1 is a ValueError, a number a TypeError."""
    with pytest.raises(ValueError, match=r"^gain must map 0 to 0 and 1 to 1; got \[0\.1, 1\.0\]$"):
        decision_weights([1], [1.0], gain=lambda p: 0.1 + 0.9 * p, loss=LOSS)
    with pytest.raises(TypeError, match=r"^loss must be a capacity function; got 0\.61$"):
        decision_weights([1], [1.0], gain=GAIN, loss=0.61)
    with pytest.raises(ValueError, match=r"^reference_point must be finite; got nan$"):
        decision_weights([1], [1.0], **MEDIANS, reference_point=float("nan"))
