"""Contextual bandits."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from humanline.sim.bandit import Bandit
from humanline.sim.run import Run, simulate
from humanline.sim.world import expected


def test_the_score_has_mean_0_and_variance_1():
    """True scores are standardised over contexts and arms, whatever the misfit."""
    for misfit in (0.0, 0.3, 1.0):
        quality = Bandit(misfit=misfit).draw(range(5)).quality
        torch.testing.assert_close(quality.mean((1, 2)), torch.zeros(5, dtype=torch.float64))
        torch.testing.assert_close(quality.square().mean((1, 2)), torch.ones(5, dtype=torch.float64))


def test_without_misfit_the_score_is_linear_in_the_features():
    """With misfit 0 least squares on features and a constant explain the score; with misfit 1 little of it."""
    left = {}
    for misfit in (0.0, 0.2, 1.0):
        world = Bandit(misfit=misfit).draw(range(8))
        rest = []
        for features, quality in zip(world.features, world.quality, strict=True):
            x = np.hstack([features.flatten(0, 1).numpy(), np.ones((160, 1))])
            y = quality.flatten().numpy()
            rest.append(((y - x @ np.linalg.lstsq(x, y, rcond=None)[0]) ** 2).mean())
        left[misfit] = np.mean(rest)
    assert left[0.0] < 1e-20
    # misfit s^2 of noise, of which 13 of 160 directions are explained; 8 seeds, and 160 numbers a seed
    assert abs(left[0.2] - 0.2 * 147 / 160) < 0.05
    assert abs(left[1.0] - 147 / 160) < 0.05


def test_sharpness_is_the_spread_of_the_starts_logits():
    """The start's logits, less the mean of each context, have this standard deviation; 0 is the uniform policy."""
    for sharpness in (0.5, 1.0, 4.0):
        world = Bandit(sharpness=sharpness).draw(range(4))
        table = world.table(world.start)
        centred = table - table.mean(-1, keepdim=True)
        spread = centred.square().mean((1, 2)).sqrt()
        torch.testing.assert_close(spread, torch.full((4,), sharpness, dtype=torch.float64))
    world = Bandit(sharpness=0.0).draw([0])
    torch.testing.assert_close(world.table(world.start).exp(), torch.full((1, 16, 10), 0.1, dtype=torch.float64))


def test_alignment_orders_the_starts_from_worst_to_best():
    """With more alignment the start policy's expected score rises, from below the mean to above, on average."""
    means = []
    for alignment in (-1.0, -0.5, 0.0, 0.5, 1.0):
        world = Bandit(alignment=alignment).draw(range(24))
        means.append(float(expected(world.law(world.table(world.start)), world.scores).mean()))
    assert means == sorted(means)
    assert means[0] < -0.3 < 0.3 < means[-1]


def test_full_alignment_and_no_misfit_start_in_the_order_of_the_scores():
    """At alignment 1 and misfit 0 the start's logits are an increasing linear function of the scores."""
    world = Bandit(alignment=1.0, misfit=0.0).draw([0, 1])
    table = world.table(world.start)
    for s in range(2):
        for x in range(16):
            slope = np.polyfit(world.scores[s, x].numpy(), table[s, x].numpy(), 1)
            np.testing.assert_allclose(np.polyval(slope, world.scores[s, x].numpy()), table[s, x].numpy(), atol=1e-9)
            assert slope[0] > 0


def test_verifiable_changes_the_scores_alone():
    """A verifiable bandit has the features, the start and the graded quality of the one that is not."""
    plain, graded = Bandit(verifiable=0.3).draw([0, 1]), Bandit().draw([0, 1])
    for name in ("features", "start", "quality"):
        assert torch.equal(getattr(plain, name), getattr(graded, name))
    assert torch.equal(graded.scores, graded.quality)


def test_training_raises_the_expected_score():
    """256 steps of DPO with the settings of the documentation end above their start, for every seed."""
    scores = simulate(Run(), range(8)).scores
    assert (scores[:, -1] > scores[:, 0] + 0.1).all()


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"arms": 1}, ValueError),
        ({"arms": 2.5}, TypeError),
        ({"arms": True}, TypeError),
        ({"contexts": 0}, ValueError),
        ({"contexts": "4"}, TypeError),
        ({"features": 0}, ValueError),
        ({"alignment": 1.1}, ValueError),
        ({"alignment": -1.1}, ValueError),
        ({"alignment": math.nan}, ValueError),
        ({"sharpness": -0.1}, ValueError),
        ({"sharpness": math.inf}, ValueError),
        ({"misfit": -0.1}, ValueError),
        ({"misfit": 1.1}, ValueError),
        ({"misfit": "a"}, TypeError),
        ({"verifiable": 0.0}, ValueError),
        ({"verifiable": 1.0}, ValueError),
        ({"verifiable": True}, TypeError),
    ],
)
def test_parameters_out_of_range_are_named(change, error):
    """A parameter out of its range is refused with its name, where the bandit is described."""
    with pytest.raises(error, match=next(iter(change))):
        Bandit(**change)


def test_too_many_features_are_refused_with_size_and_limit():
    """A table of more than 2^28 numbers is refused before it is drawn."""
    with pytest.raises(ValueError, match=r"268,435,4\d\d .* limit|320,000,000 .* 268,435,456"):
        Bandit(contexts=1000, arms=1000, features=320).draw([0])


def test_the_smallest_bandit_can_be_trained():
    """One context, two arms and one feature are enough."""
    assert torch.isfinite(simulate(Run(Bandit(1, 2, 1), steps=4, groups=1), [0]).scores).all()
