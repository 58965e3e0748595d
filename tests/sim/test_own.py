"""Losses and transforms of one's own in the simulator, held against those of the house written as such functions."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn.functional import logsigmoid

from humanline.schedule import BeforeStep
from humanline.sim.bandit import Bandit
from humanline.sim.objectives import Dpo, Grpo, Kto
from humanline.sim.own import Own
from humanline.sim.run import Run, simulate
from humanline.sim.sequence import Sequences
from humanline.theory import ClipRange

TIES = Sequences(verifiable=0.3)  # scores of 0 and 1: many groups whose answers score alike
RUN = Run(TIES, Dpo(0.7), schedule=BeforeStep(every=3), learning_rate=0.2, steps=8, groups=6, group_size=3)
SEEDS = [0, 3]


def written_out_dpo(chosen, rejected, *, chosen_mask, rejected_mask):
    assert chosen_mask.all() and rejected_mask.all() and chosen_mask.dtype == torch.bool
    margin = 0.7 * (chosen.sum(1) - rejected.sum(1))
    return -logsigmoid(margin), {"margin": margin}


def written_out_grpo(log_ratio, *, mask, advantages):
    assert mask.shape == log_ratio.shape
    ratio = log_ratio.exp()
    advantages = advantages[:, None]
    return -torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)


def assert_same(run: Run, other: Run) -> None:
    found, expected = simulate(run, SEEDS), simulate(other, SEEDS)
    assert expected.scores[:, 0] != pytest.approx(expected.scores[:, -1], abs=1e-3)  # something was learned
    torch.testing.assert_close(found.policy, expected.policy, rtol=0, atol=1e-10)
    torch.testing.assert_close(found.outside, expected.outside, rtol=0, atol=0)


def test_a_loss_of_pairs_written_out_trains_as_that_of_the_house():
    """DPO's loss, one number a pair, gives the run of DPO: means are taken for it, and ties teach it nothing."""
    assert_same(replace(RUN, objective=Own(written_out_dpo)), RUN)


def test_a_loss_of_groups_written_out_trains_as_that_of_the_house():
    """GRPO's loss, one number a token, gives the run of GRPO."""
    assert_same(replace(RUN, objective=Own(written_out_grpo, "groups")), replace(RUN, objective=Grpo(0.2, 0.0)))


def test_a_loss_of_examples_sees_the_best_and_the_worst_answer():
    """A linear loss of examples is half that of pairs, whose mean is over half as many units."""

    def of_pairs(chosen, rejected, *, chosen_mask, rejected_mask):
        return rejected.sum(1) - chosen.sum(1)

    def of_examples(log_ratio, *, mask, desirable):
        return torch.where(desirable, -1.0, 1.0) * log_ratio.sum(1)

    run = replace(RUN, objective=Own(of_pairs), optimizer="sgd")
    assert_same(replace(run, objective=Own(of_examples, "examples"), learning_rate=0.4), run)


def test_a_transform_written_out_acts_as_that_of_the_house():
    """Clamping as a function gives the run of a clip range, and the share of tokens that it touched."""

    def clamp(log_ratio, *, mask):
        assert mask.all() and mask.shape == log_ratio.shape
        return log_ratio.clamp(-0.1, 0.2)

    clipped = replace(RUN, transform=ClipRange(-0.1, 0.2))
    assert simulate(clipped, SEEDS).outside.min() > 0
    assert_same(replace(RUN, transform=clamp), clipped)


def test_what_is_no_loss_is_refused():
    """What cannot be called, another word, no tensor and a mean that was taken already are refused."""
    with pytest.raises(TypeError, match="loss must be callable"):
        Own("hinge")
    with pytest.raises(ValueError, match="of must be"):
        Own(written_out_dpo, "pair")
    with pytest.raises(TypeError, match="must return a tensor"):
        simulate(replace(RUN, objective=Own(lambda *values, **masks: 0.0)), [0])
    with pytest.raises(ValueError, match=r"the loss of pairs must have the shape \(6,\); got \(\)"):
        simulate(replace(RUN, objective=Own(lambda chosen, rejected, **masks: chosen.sum())), [0])


def test_what_is_no_transform_is_refused():
    """Numbers, results of another shape, and any function beside Kto, whose reference point would not know it."""
    with pytest.raises(TypeError, match="transform must be a ClipRange, a BetaRejection, a function or None"):
        Run(transform=1.5)
    with pytest.raises(ValueError, match="of the shape that it is given"):
        simulate(replace(RUN, transform=lambda log_ratio, mask: log_ratio.sum()), [0])
    with pytest.raises(ValueError, match="Kto's reference point"):
        Run(Bandit(), Kto(), transform=torch.tanh)
