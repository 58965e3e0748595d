"""Computing in bf16 over float32 weights: the bits of rounded weights, log-ratios of exactly 0, no other errors."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from humanline.train.policy.logprobs import LogprobModel
from humanline.train.step.reference import logprobs_pass
from tests.helpers.gpu import LENGTHS, block_on, model_on, policy_on

LAYOUTS = {"right": False, "packed": True}
EACH = [
    pytest.param(LAYOUTS[layout], checkpointing, id=f"{layout}-{'again' if checkpointing else 'kept'}")
    for layout, checkpointing in itertools.product(LAYOUTS, (False, True))
]


def gradients(policy: LogprobModel, logprobs: Tensor) -> list[Tensor]:
    probe = torch.linspace(-1, 2, logprobs.numel(), device=logprobs.device).view_as(logprobs)
    return list(torch.autograd.grad((logprobs * probe).sum(), list(policy.parameters())))


def relative_errors(found: list[Tensor], truth: list[Tensor]) -> list[float]:
    return [((a.double() - b).norm() / b.norm()).item() for a, b in zip(found, truth, strict=True)]


@pytest.mark.parametrize("compute", [torch.bfloat16, None], ids=["bf16", "float32"])
@pytest.mark.parametrize("packed,checkpointing", EACH)
def test_log_ratios_are_exactly_zero_while_weights_stand_still(device, packed, checkpointing, compute):
    """Scored as a reference is and trained on, rows of many lengths have the same log-probabilities, bit by bit.

    Together and a few at a time: kernels are chosen by shapes. Log-probabilities are float32.
    """
    policy = policy_on(device, packed=packed, checkpointing=checkpointing, compute=compute)
    score = logprobs_pass(policy)
    for lengths in (LENGTHS[device], LENGTHS[device][:1], LENGTHS[device][1:4], (2,)):
        block = block_on(device, lengths)
        scored, trained, again = score(block), policy(*block.inputs), score(block)
        assert trained.requires_grad and scored.dtype == trained.dtype == torch.float32
        assert torch.equal(scored, trained.detach()) and torch.equal(scored, again)
        assert torch.equal(scored != 0, block.mask)


@pytest.mark.parametrize("packed,checkpointing", EACH)
def test_weights_rounded_on_the_way_are_rounded_weights(device, packed, checkpointing):
    """A pass over float32 weights has the bits of a pass of a model whose weights were rounded before."""
    policy = policy_on(device, packed=packed, checkpointing=checkpointing, compute=torch.bfloat16)
    oracle = policy_on(device, packed=packed, checkpointing=checkpointing)
    for weight in oracle.parameters():
        weight.data = weight.data.bfloat16()
    block = block_on(device)
    found, expected = policy(*block.inputs), oracle(*block.inputs)
    assert torch.equal(found, expected)
    for mine, other in zip(gradients(policy, found), gradients(oracle, expected), strict=True):
        assert mine.dtype == torch.float32 and other.dtype == torch.bfloat16
        # Attention's backward pass may add up in whatever order its threads finish; one rounding to 9 bits may differ.
        assert (mine - other.float()).norm() <= 2**-7 * other.float().norm()


@pytest.mark.parametrize("packed,checkpointing", EACH)
def test_both_layouts_and_precisions_are_near_float64(device, packed, checkpointing):
    """Float32 is within 1e-4 of a float64 pass, gradients too; bf16 within what two layers of 9 bits lose.

    A GPU may multiply float32 numbers in pieces but not round them to 10 bits (TF32), which this would show.
    """
    block = block_on(device)
    oracle = LogprobModel(model_on(device, torch.float64)).train()
    truth = oracle(*block.inputs)
    expected = [truth.detach(), *gradients(oracle, truth)]
    for compute, most in ((None, 1e-4), (torch.bfloat16, 0.06)):
        policy = policy_on(device, packed=packed, checkpointing=checkpointing, compute=compute)
        found = policy(*block.inputs)
        assert max(relative_errors([found.detach(), *gradients(policy, found)], expected)) <= most, compute


@pytest.mark.parametrize("packed,checkpointing", EACH)
def test_gradients_have_the_same_bits_twice(device, packed, checkpointing):
    """A pass gives the same gradients whenever it is made, on which resuming bit for bit rests.

    Rows are longer than a block of keys, over which attention's backward pass sums in any order unless told not to.
    """
    policy = policy_on(device, packed=packed, checkpointing=checkpointing, compute=torch.bfloat16)
    block, found = block_on(device), []
    for _ in range(3):
        found.append(gradients(policy, policy(*block.inputs)))
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))
