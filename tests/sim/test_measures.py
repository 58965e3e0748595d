"""Exact values of a policy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mpf

from humanline.sim.measures import GAIN, LOSS, VALUE, perceive, utility_gap, win_rate
from humanline.sim.sequence import Sequences
from humanline.theory import Identity, PowerValue, TverskyKahneman, decision_weights
from tests import oracles
from tests.helpers import strategies


def logs(*rows) -> torch.Tensor:
    """One seed's laws, a context a row, as log-probabilities."""
    return torch.tensor([rows], dtype=torch.float64).log()


def medians():
    """The medians, with capacities of sums that rounding leaves above 1."""
    gain, loss, value = oracles.medians()
    return lambda p: gain(min(p, mpf(1))), lambda p: loss(min(p, mpf(1))), value


def random_laws(rng, *shape: int) -> torch.Tensor:
    return torch.from_numpy(rng.normal(scale=rng.uniform(0.1, 4), size=shape)).log_softmax(-1)


# ---- win rate -------------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(strategies.samplers())
def test_the_win_rate_is_that_of_all_pairs(sampler):
    """Sorting gives the sum over all pairs of responses, ties half, zero probabilities and equal scores included."""
    scores, mine, theirs = sampler
    pairs = sum(
        p * q * ((s > t) + (s == t) / 2)
        for s, p in zip(scores, mine, strict=True)
        for t, q in zip(scores, theirs, strict=True)
    )
    found = win_rate(logs(mine), logs(theirs), torch.tensor([[scores]], dtype=torch.float64))
    assert float(found) == pytest.approx(pairs, abs=1e-12)


def test_win_rates_of_two_policies_sum_to_one():
    """w(a, b) + w(b, a) = 1 and w(a, a) = 1/2, for graded scores, for 0 and 1, and where all scores tie."""
    rng = np.random.default_rng(0)
    for scores in (rng.normal(size=(5, 3, 40)), rng.integers(0, 2, (5, 3, 40)), np.zeros((5, 3, 40))):
        a, b, s = random_laws(rng, 5, 3, 40), random_laws(rng, 5, 3, 40), torch.from_numpy(scores).double()
        half = torch.full((5,), 0.5, dtype=torch.float64)
        torch.testing.assert_close(win_rate(a, b, s) + win_rate(b, a, s), 2 * half)
        torch.testing.assert_close(win_rate(a, a, s), half)


def test_win_rates_average_contexts_of_each_seed():
    """Contexts count alike, and seeds do not mix."""
    scores = torch.tensor([[[0.0, 1.0], [0.0, 1.0]]]).double().expand(2, 2, 2)
    best, worst = logs([0.0, 1.0], [0.0, 1.0]), logs([1.0, 0.0], [1.0, 0.0])
    mixed = logs([0.0, 1.0], [1.0, 0.0])
    assert win_rate(torch.cat([best, mixed]), torch.cat([worst, worst]), scores).tolist() == [1.0, 0.75]


# ---- perception -----------------------------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(strategies.laws(4, size=5))
def test_perception_is_that_of_plain_loops(rows):
    """Surprisals, weights, utility and mass are those of the definitions, for each of two contexts."""
    law, reference = logs(*rows[:2]), logs(*rows[2:])
    found = perceive(law, reference)
    gain, loss, value = medians()
    for x in range(2):
        np.testing.assert_allclose(found.surprisal[0, x], law[0, x] - reference[0, x], rtol=0, atol=1e-10)
        surprisal = found.surprisal[0, x].tolist()
        probs = [float(p) for p in law[0, x].exp()]
        weights = oracles.decision_weights(surprisal, probs, gain, loss)
        for z, weight in weights.items():
            mine = found.weights[0, x][found.surprisal[0, x] == z].sum()
            assert mine == pytest.approx(float(weight), abs=1e-9)
        assert found.utility[0, x] == pytest.approx(
            float(oracles.utility(surprisal, probs, gain, loss, value)), abs=1e-8
        )
        assert found.mass[0, x] == pytest.approx(float(sum(weights.values())), abs=1e-9)


def test_perception_takes_the_value_and_the_capacities_that_it_is_given():
    """With undistorted capacities and a linear value the utility is the divergence from the reference, in nats."""
    rng = np.random.default_rng(1)
    law, reference = random_laws(rng, 2, 3, 7), random_laws(rng, 2, 3, 7)
    linear = PowerValue(curvature=1.0, loss_aversion=1.0)
    found = perceive(law, reference, value=linear, gain=Identity(), loss=Identity())
    np.testing.assert_allclose(found.weights, law.exp().numpy(), atol=1e-12)
    np.testing.assert_allclose(found.utility, (law.exp() * (law - reference)).sum(-1).numpy(), atol=1e-12)
    # gains and losses have capacities of their own
    swapped = perceive(law, reference, gain=LOSS, loss=GAIN)
    assert (np.abs(swapped.mass - perceive(law, reference).mass) > 1e-4).any()
    mass = float(oracles.tversky_kahneman(1, 0.5))
    assert perceive(law, law, gain=TverskyKahneman(0.5)).mass[0, 0] == pytest.approx(mass)


def test_a_shifted_reference_point_divides_gains_from_losses_there():
    """The value function's own reference point is the one of the weights."""
    law, reference = logs([0.2, 0.3, 0.5]), logs([0.5, 0.3, 0.2])
    value = PowerValue(reference_point=0.5)
    found = perceive(law, reference, value=value)
    want = decision_weights(found.surprisal[0, 0], law[0, 0].exp().numpy(), gain=GAIN, loss=LOSS, reference_point=0.5)
    np.testing.assert_allclose(found.weights[0, 0], want)


def test_a_policy_that_is_its_reference_has_utility_0_and_mass_1():
    """Right after a sync every outcome is 0: utility 0, all weight on gains, weights the probabilities."""
    for task in (Sequences(), Sequences(order=None)):
        world = task.draw([0, 1])
        law = world.law(world.table(world.start))
        found = perceive(law, law)
        assert (found.surprisal == 0).all()
        assert (found.utility == 0).all()
        np.testing.assert_allclose(found.mass, 1, atol=1e-12)
        np.testing.assert_allclose(found.weights, law.exp().numpy(), atol=1e-12)


def test_splitting_a_response_into_equals_changes_neither_utility_nor_mass():
    """Responses of equal surprisal weigh together what one response of their summed probability weighs."""
    law, reference = logs([0.2, 0.3, 0.5]), logs([0.4, 0.3, 0.3])
    parts = torch.tensor([0.25, 0.75], dtype=torch.float64).log()
    split = [torch.cat([x[..., :1] + parts, x[..., 1:]], -1) for x in (law, reference)]
    one, two = perceive(law, reference), perceive(*split)
    np.testing.assert_allclose(two.utility, one.utility, atol=1e-12)
    np.testing.assert_allclose(two.mass, one.mass, atol=1e-12)
    np.testing.assert_allclose(two.weights[..., :2].sum(-1), one.weights[..., 0], atol=1e-12)


def test_the_mass_is_one_when_all_is_gain_and_that_of_both_capacities_otherwise():
    """The mass is Omega+(P(z >= 0)) + Omega-(P(z < 0))."""
    law, reference = logs([0.1, 0.6, 0.3]), logs([0.2, 0.4, 0.4])
    gain, loss, _ = medians()
    want = float(gain(mpf("0.6")) + loss(mpf("0.4")))
    assert perceive(law, reference).mass[0, 0] == pytest.approx(want, abs=1e-12)


# ---- the utility gap ------------------------------------------------------------------------------------------------


def test_the_bound_is_never_below_the_gap_and_the_distance_within_its_range():
    """On random laws, near and far, gap <= bound, and the distance lies in [|m - 1| / 2, (1 + m) / 2]."""
    rng = np.random.default_rng(2)
    for _ in range(60):
        law, reference, source = (random_laws(rng, 2, 3, 12) for _ in range(3))
        perception = perceive(law, reference)
        found = utility_gap(perception, source)
        assert (found.gap <= found.bound * (1 + 1e-12) + 1e-12).all()
        assert (found.distance >= np.abs(perception.mass - 1) / 2 - 1e-12).all()
        assert (found.distance <= (1 + perception.mass) / 2 + 1e-12).all()


@settings(max_examples=25, deadline=None)
@given(strategies.laws(3, size=5))
def test_gap_and_distance_are_those_of_plain_loops(rows):
    """Distance is half the L1 distance of weights and source; the gap is the difference of their utilities."""
    perception = perceive(logs(rows[0]), logs(rows[1]))
    found = utility_gap(perception, logs(rows[2]))
    weights, values = perception.weights[0, 0], [float(VALUE(z)) for z in perception.surprisal[0, 0]]
    assert found.distance[0, 0] == pytest.approx(
        math.fsum(abs(w - q) for w, q in zip(weights, rows[2], strict=True)) / 2, abs=1e-12
    )
    gap = abs(math.fsum((w - q) * v for w, q, v in zip(weights, rows[2], values, strict=True)))
    assert found.gap[0, 0] == pytest.approx(gap, abs=1e-10)


@settings(max_examples=15, deadline=None)
@given(strategies.laws(3, size=5))
def test_the_bound_is_the_least_of_the_corrected_ones(rows):
    """The bound is the smallest that the four rules give for these weights, this source and these values."""
    perception = perceive(logs(rows[0]), logs(rows[1]))
    weights, values = perception.weights[0, 0].tolist(), VALUE(perception.surprisal[0, 0]).tolist()
    total = math.fsum(rows[2])
    norms = oracles.norm_bounds(weights, [q / total for q in rows[2]])
    mass = math.fsum(weights)
    least = min(float(abs(oracles.gap_bound(rule, norm, mass, values))) for rule, norm in norms.items())
    assert utility_gap(perception, logs(rows[2])).bound[0, 0] == pytest.approx(least, rel=1e-5, abs=1e-6)


def test_the_gap_takes_the_value_that_it_is_given():
    """With another value function the same weights leave another gap."""
    perception = perceive(logs([0.2, 0.8]), logs([0.5, 0.5]))
    source = logs([0.5, 0.5])
    linear = PowerValue(curvature=1.0, loss_aversion=1.0)
    want = abs(((perception.weights - 0.5) * perception.surprisal).sum())
    assert utility_gap(perception, source, value=linear).gap[0, 0] == pytest.approx(want)
    assert utility_gap(perception, source).gap[0, 0] != pytest.approx(want)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**16))
def test_a_source_equal_to_the_weights_leaves_no_gap(seed):
    """Where the weights are a distribution, data from it cost nothing."""
    rng = np.random.default_rng(seed)
    law = random_laws(rng, 1, 1, 6)
    perception = perceive(law, law)  # all gains: the weights are the probabilities
    found = utility_gap(perception, law)
    assert found.gap[0, 0] == 0
    assert found.distance[0, 0] == pytest.approx(0, abs=1e-12)


def test_responses_that_tie_weigh_in_proportion_although_rounding_parts_them():
    """A policy that moved at one last node only has few distinct surprisals, and the weights of plain ties."""
    world = Sequences(vocab=4, length=5, contexts=1).draw([0])
    moved = world.start.clone()
    moved[0, 0, -1] += 1.0
    law, reference = world.law(world.table(moved)), world.law(world.table(world.start))
    exact = np.round(world.law(world.table(moved) - world.table(world.start)).numpy(), 12)
    want = decision_weights(exact, law.exp().numpy(), gain=GAIN, loss=LOSS)
    np.testing.assert_allclose(perceive(law, reference).weights, want, atol=1e-9)
