"""Recorded kernels against the functions that ran them, and what is not recorded."""

from __future__ import annotations

import pytest
import torch
from torch.func import vmap

from humanline.objectives import dpo_loss
from humanline.schedule import BeforeStep
from humanline.sim import slope
from humanline.sim.bandit import Bandit
from humanline.sim.objectives import Dpo, Grpo, Kto
from humanline.sim.recorded import recorded
from humanline.sim.run import Fixed, Rollouts, Run, simulate
from humanline.sim.sequence import Sequences
from humanline.theory import BetaRejection, ClipRange

NEAR = BetaRejection.near(ClipRange(-1.0, 1.0), 8, policy_ratio_bound=4, ref_ratio_bound=4)


def slope_of_dpo(chosen, rejected):
    """Return the gradient of each seed's DPO loss, (S, B, T), in both arguments, and the metrics' mean."""
    chosen, rejected = chosen.detach().requires_grad_(), rejected.detach().requires_grad_()
    mask = torch.ones_like(chosen, dtype=torch.bool)

    def loss(chosen, rejected, mask):
        return dpo_loss(chosen, rejected, chosen_mask=mask, rejected_mask=mask, beta=0.3)

    losses, metrics = vmap(loss)(chosen, rejected, mask)
    return *torch.autograd.grad(losses.sum(), (chosen, rejected)), metrics["margin"].detach()


def test_a_recording_gives_the_bits_of_the_function_for_arguments_it_was_not_made_with():
    """The gradient of a loss under vmap is replayed exactly, for contiguous arguments and others."""
    torch.manual_seed(0)
    example = torch.randn(7, 5, 3), torch.randn(7, 5, 3)
    replay = recorded(slope_of_dpo, example)
    assert replay is not None
    for given in ((torch.randn(7, 5, 3), torch.randn(7, 5, 3)), (torch.randn(5, 7, 3).transpose(0, 1), example[0])):
        for found, expected in zip(replay(*given), slope_of_dpo(*given), strict=True):
            assert torch.equal(found, expected)


def test_arguments_that_are_one_tensor_when_recorded_stay_two():
    """A reference that is the start policy at the first step is another table later."""
    one, other = torch.tensor([1.0, 2.0]), torch.tensor([5.0, 7.0])
    replay = recorded(lambda a, b: (a - 2 * b,), (one, one))
    assert replay is not None
    assert replay(one, other)[0].tolist() == [-9.0, -12.0]


KEPT = torch.tensor([1.0, 2.0])


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x * float(x.sum()),),
        lambda x: (x if x[0] > 0 else -x,),
        lambda x: (x + torch.rand(2),),
        lambda x: (x.clone().mul_(2),),
        lambda x: (x + KEPT,),
        lambda x: (x[x > 0],),
        lambda x: (x[torch.where(x > 0)[0]],),
        lambda x: (KEPT,),
    ],
    ids=["number", "branch", "random", "in place", "unnamed", "bool index", "where", "unnamed result"],
)
def test_what_may_give_other_results_at_the_next_call_is_not_recorded(function):
    """A list of kernels is refused where it would not say everything."""
    assert recorded(function, (torch.tensor([1.0, -2.0]),)) is None


def test_kernels_with_lists_and_several_results_are_recorded():
    """A list of tensors is an argument, and each part of a result is one."""
    replay = recorded(lambda x: (torch.cat([x, x.sort().values]), x.sort().indices), (torch.tensor([3.0, 1.0]),))
    assert replay is not None
    assert [found.tolist() for found in replay(torch.tensor([2.0, 5.0]))] == [[2.0, 5.0, 2.0, 5.0], [0, 1]]


def test_a_tensor_that_is_named_may_be_read():
    """Tables of the problem are constants of a recording."""
    replay = recorded(lambda x: (x + KEPT,), (torch.zeros(2),), [KEPT])
    assert replay is not None
    assert replay(torch.ones(2))[0].tolist() == [2.0, 3.0]


@pytest.mark.parametrize("objective", [Dpo(0.7), Kto(0.8, 1.3, 0.9), Grpo(0.15, 0.1)], ids=["dpo", "kto", "grpo"])
def test_runs_are_recorded_and_keep_their_bits(objective, monkeypatch):
    """Every objective with every transform is recorded, and replayed steps leave the trace of steps that are not."""
    made = []

    def watched(*arguments):
        made.append(recorded(*arguments))
        return made[-1]

    bandit, sequences = Bandit(contexts=3, arms=5, features=4), Sequences(vocab=3, length=3, contexts=2)
    clip = ClipRange(-0.3, 0.4)
    combinations = (
        (bandit, None, Fixed()),
        (bandit, clip, Rollouts(3)),
        (sequences, NEAR, Rollouts(3)),
        (sequences, clip, Fixed()),
    )
    for task, transform, source in combinations:
        run = Run(task, objective, source, BeforeStep(every=2), transform, 0.3, steps=7, groups=4, group_size=3)
        monkeypatch.setattr(slope, "recorded", watched)
        found = simulate(run, [0, 3])
        monkeypatch.setattr(slope, "recorded", lambda *_: None)
        expected = simulate(run, [0, 3])
        for name in ("params", "policy", "reference", "scores", "outside", "saturation"):
            one, other = getattr(found, name), getattr(expected, name)
            assert one.numpy().tobytes() == other.numpy().tobytes(), f"{name} of {run}"
    assert len(made) == len(combinations)
    assert None not in made
