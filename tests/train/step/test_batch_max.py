"""Ratio bounds that are the largest of a step (`batch_max`): what they are, and what happens where there are none."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from humanline.objectives import rejection_marks
from humanline.train.config.objective import BetaTransform, NllObjective
from humanline.train.loop import take_steps
from humanline.train.run.processes import NonFiniteError
from humanline.train.setup import set_up
from humanline.train.step.loss import ObjectiveStep
from tests.helpers.support import REJECT, config

SHAPES = {"policy": {"a": 1.0, "b": 0.2}, "ref": {"a": 1.0, "b": 0.2}}  # much of their mass is next to 1
BOUNDS = {"policy_ratio_bound": "batch_max", "ref_ratio_bound": "batch_max"}
TRANSFORM = BetaTransform.model_validate(SHAPES | BOUNDS)


def bounds_of(*log_ratios: torch.Tensor):
    step = ObjectiveStep(NllObjective(), TRANSFORM, 0, torch.device("cpu"))
    return TRANSFORM.build(*step._largest_ratios(list(log_ratios), lambda value, how: value))


def marked(log_ratio: torch.Tensor, rejection) -> dict[str, int]:
    draws = np.random.default_rng(0).beta(1.0, 0.2, size=(2, *log_ratio.shape))
    mask = torch.ones_like(log_ratio, dtype=torch.bool)
    marks = rejection_marks(log_ratio, mask, rejection, *torch.from_numpy(draws).float())
    return {name: int(one.sum()) for name, one in marks.items()}


def test_right_after_a_sync_every_token_is_kept():
    """All ratios are 1, and so is the largest: a bound of 1.000001 had detached one token in eight of these shapes."""
    log_ratio = torch.zeros(10, 1000)
    assert marked(log_ratio, bounds_of(log_ratio)) == {"detached": 0, "above_bound": 0}


@pytest.mark.parametrize("size", [1e-6, 1e-3, 0.1, 1.0, 10.0])
def test_the_largest_ratio_is_kept_and_is_not_above_itself(size):
    """It is its own bound to the last bit: rounded to float32 it had lain below, where some of its draws reject."""
    largest = size * (1 + torch.rand(50, generator=torch.Generator().manual_seed(3)))
    for one in largest:
        rejection = bounds_of(torch.stack([one, one / 2, torch.zeros(())])[None])
        policy_test, log_ratio = rejection.policy_test, one.expand(1, 2000)
        draws = torch.from_numpy(np.random.default_rng(0).beta(1.0, 0.2, size=(1, 2000))).float()
        assert bool(policy_test.keeps(log_ratio, draws).all())
        assert marked(log_ratio, rejection)["above_bound"] == 0


def test_ratios_that_float32_cannot_hold_have_a_bound():
    """A token that the policy has left by 95 nats, or by more than a float holds: an error about a bound of inf."""
    assert bounds_of(torch.tensor([[0.0, -95.0]])).ref_ratio_bound == pytest.approx(math.exp(95), rel=1e-9)
    beyond = bounds_of(torch.tensor([[0.0, -2000.0]]))
    assert math.isfinite(beyond.ref_ratio_bound)
    assert marked(torch.tensor([[-2000.0]]), beyond)["above_bound"] == 1


def test_a_policy_that_is_not_finite_is_named_as_without_bounds(toy, tmp_path):
    """The examples are named, with exit code 3, and not a bound of nan."""
    given = config(toy, tmp_path / "run", transform=REJECT | BOUNDS)
    with (
        pytest.raises(NonFiniteError, match="not finite: log-probabilities of"),
        set_up(given, show_progress=False) as ready,
    ):
        ready.references[0].begin_step(0, lambda: None)  # while the policy is whole
        with torch.no_grad():
            next(ready.trained.policy.parameters()).fill_(math.nan)
        take_steps(ready)
