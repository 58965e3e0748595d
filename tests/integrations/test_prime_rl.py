"""The custom loss for prime-rl, on its data classes where it is installed and else on stand-ins with the same fields.

The stand-ins follow prime-rl's page on algorithms, section "Custom Loss", and `compute_loss` of its trainer, both of
autumn 2026 (the source that has the losses `ipo` and `icepop`).
"""

from __future__ import annotations

import importlib.util
import math
import sys
import types
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from humanline.integrations.prime_rl import humanline_loss


@dataclass
class LossInputs:
    trainer_logprobs: Tensor
    inference_logprobs: Tensor
    ref_logprobs: Tensor | None
    advantages: Tensor
    loss_mask: Tensor
    loss_weights: Tensor | None = None


@dataclass
class LossOutputs:
    loss: Tensor
    metrics: dict[str, Tensor]


@pytest.fixture
def classes(monkeypatch):
    """Return prime-rl's two data classes, or stand-ins in its place."""
    if importlib.util.find_spec("prime_rl") is None:
        for name in ("prime_rl", "prime_rl.trainer", "prime_rl.trainer.rl", "prime_rl.trainer.rl.loss"):
            monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
        loss = sys.modules["prime_rl.trainer.rl.loss"]
        loss.LossInputs, loss.LossOutputs = LossInputs, LossOutputs
    from prime_rl.trainer.rl import loss

    return loss


def sequence(classes, seed: int, *, weighted: bool = False):
    """Return one sequence whose log-ratios reach beyond every range used here."""
    draw = torch.Generator().manual_seed(seed)
    count = seed % 13
    reference = -3 * torch.rand(count, generator=draw, dtype=torch.float64)
    return classes.LossInputs(
        trainer_logprobs=(reference + 2 * torch.randn(count, generator=draw, dtype=torch.float64)).requires_grad_(),
        inference_logprobs=reference,
        ref_logprobs=None,
        advantages=torch.randn(count, generator=draw, dtype=torch.float64),
        loss_mask=torch.rand(count, generator=draw) < 0.7,
        loss_weights=torch.rand(count, generator=draw, dtype=torch.float64) if weighted else None,
    )


def by_hand(inputs, low: float, high: float, eps: float) -> tuple[float, list[float]]:
    """Return the loss and its gradient, token by token, from the formula."""
    loss, gradient = 0.0, []
    for at, counts in enumerate(inputs.loss_mask.tolist()):
        z = float(inputs.trainer_logprobs[at].detach() - inputs.inference_logprobs[at])
        weight = 1.0 if inputs.loss_weights is None else float(inputs.loss_weights[at])
        advantage, ratio = float(inputs.advantages[at]), math.exp(min(max(z, low), high))
        inner = min(max(ratio, 1 - eps), 1 + eps)
        moves = low <= z <= high and ratio * advantage <= inner * advantage
        loss -= weight * min(ratio * advantage, inner * advantage) if counts else 0.0
        gradient.append(-weight * ratio * advantage if counts and moves else 0.0)
    return loss, gradient


@pytest.mark.parametrize("weighted", [False, True])
def test_value_and_gradient_are_those_of_the_formula(classes, weighted):
    """100 sequences of 0 to 12 tokens, with and without weights of tokens."""
    for seed in range(100):
        inputs = sequence(classes, seed, weighted=weighted)
        low, high, eps = -0.2 * (seed % 9), 0.15 * (seed % 7), 0.1 + 0.2 * (seed % 4)
        output = humanline_loss(inputs, log_eps_low=low, log_eps_high=high, clip_eps=eps)
        loss, gradient = by_hand(inputs, low, high, eps)
        assert isinstance(output, classes.LossOutputs)
        assert float(output.loss.detach()) == pytest.approx(loss, abs=1e-12)
        (found,) = torch.autograd.grad(output.loss, inputs.trainer_logprobs)
        assert found.tolist() == pytest.approx(gradient, abs=1e-12)


def compute_loss(classes, sequences: list, scale: float, *, packed: bool) -> Tensor:
    """Add up a micro-batch as prime-rl's trainer does: sequence by sequence, or once over all of them packed."""
    if packed:
        names = ("trainer_logprobs", "inference_logprobs", "advantages", "loss_mask", "loss_weights")
        joined = {name: torch.cat([getattr(one, name) for one in sequences]) for name in names}
        sequences = [classes.LossInputs(ref_logprobs=None, **joined)]
    total = sequences[0].trainer_logprobs.sum() * 0.0
    for one in sequences:
        counts = one.loss_mask & (one.loss_weights != 0)
        given = {**vars(one), "loss_mask": counts}
        total = total + humanline_loss(classes.LossInputs(**given), log_eps_low=-0.7, log_eps_high=0.4).loss
    return total / scale


def test_packed_sequences_are_the_same_as_one_by_one(classes):
    """Prime-rl has called a custom loss in both ways; 12 sequences, one empty and one masked throughout, agree."""
    sequences = [sequence(classes, seed, weighted=True) for seed in range(12)]
    sequences[5].loss_mask[:] = False
    sequences[7].loss_weights[::2] = 0.0
    one_by_one, packed = (compute_loss(classes, sequences, 31.0, packed=way) for way in (False, True))
    assert one_by_one.item() == pytest.approx(packed.item(), abs=1e-12) != 0.0
    leaves = [one.trainer_logprobs for one in sequences]
    for a, b in zip(torch.autograd.grad(one_by_one, leaves), torch.autograd.grad(packed, leaves), strict=True):
        assert a.tolist() == pytest.approx(b.tolist(), abs=1e-12)


def test_masked_tokens_may_hold_anything(classes):
    """Not a number under the mask, in each of the tensors, changes neither value nor gradient nor metrics."""
    clean, spoilt = (sequence(classes, 12, weighted=True) for _ in range(2))
    assert not clean.loss_mask.all()
    spoilt.trainer_logprobs = torch.where(clean.loss_mask, clean.trainer_logprobs, torch.nan).detach().requires_grad_()
    for name in ("inference_logprobs", "advantages", "loss_weights"):
        setattr(spoilt, name, torch.where(clean.loss_mask, getattr(clean, name), torch.nan))
    found = [humanline_loss(inputs) for inputs in (clean, spoilt)]
    gradients = [
        torch.autograd.grad(output.loss, inputs.trainer_logprobs)[0]
        for output, inputs in zip(found, (clean, spoilt), strict=True)
    ]
    assert torch.equal(found[0].loss, found[1].loss) and torch.equal(*gradients)
    assert found[0].metrics == found[1].metrics


def test_a_sequence_masked_throughout_still_has_a_gradient(classes):
    """Of zeros: every process runs the backward pass, and none waits for another."""
    inputs = sequence(classes, 12)
    inputs.loss_mask[:] = False
    (gradient,) = torch.autograd.grad(humanline_loss(inputs).loss, inputs.trainer_logprobs)
    assert gradient.tolist() == [0.0] * 12


def test_metrics_count_the_tokens_that_are_clipped(classes):
    """Of the tokens that count; a sequence without any gives zeros and not nan."""
    logprobs = torch.tensor([-9.0, -1.0, 2.0, 3.0, 50.0])
    mask = torch.tensor([True, True, True, True, False])
    inputs = classes.LossInputs(logprobs, torch.zeros(5), None, torch.ones(5), mask, None)
    told = humanline_loss(inputs).metrics
    assert float(told["humanline/clipped_low"]) == 0.25
    assert float(told["humanline/clipped_high"]) == 0.5
    assert float(told["humanline/log_ratio_rms"]) == pytest.approx(math.sqrt((81 + 1 + 4 + 9) / 4))
    nothing = classes.LossInputs(logprobs, torch.zeros(5), None, torch.ones(5), torch.zeros(5, dtype=torch.bool), None)
    assert {float(value) for value in humanline_loss(nothing).metrics.values()} == {0.0}


def test_wrong_settings_are_refused(classes):
    """A range that leaves out 0, a clip of GRPO's that is none, and weights that turn an advantage round."""
    inputs = sequence(classes, 12, weighted=True)
    with pytest.raises(ValueError, match="low must be <= 0"):
        humanline_loss(inputs, log_eps_low=0.5)
    with pytest.raises(ValueError, match="clip_eps"):
        humanline_loss(inputs, clip_eps=0.0)
    inputs.loss_weights = -inputs.loss_weights
    with pytest.raises(ValueError, match="loss_weights must be >= 0"):
        humanline_loss(inputs)
    with pytest.raises(TypeError, match="log_eps_hi"):
        humanline_loss(inputs, log_eps_hi=1.0)


@pytest.mark.parametrize("weighted", [False, True])
def test_no_value_is_waited_for_on_a_device(classes, weighted):
    """On a device without values whatever asks for one is an error: loss, gradient and metrics ask for none."""
    inputs = sequence(classes, 12, weighted=weighted)
    there = {name: None if one is None else one.detach().to("meta") for name, one in vars(inputs).items()}
    there["trainer_logprobs"].requires_grad_()
    output = humanline_loss(classes.LossInputs(**there))
    (gradient,) = torch.autograd.grad(output.loss, there["trainer_logprobs"])
    assert gradient.shape == (12,) and all(value.device.type == "meta" for value in output.metrics.values())


def test_negative_weights_are_refused_on_a_device_too(classes, monkeypatch):
    """There the question is put to the device, which answers when it comes to it, in place of the caller."""
    asked = []
    monkeypatch.setattr(torch, "_assert_async", lambda holds, said: asked.append((holds.device.type, said)))
    inputs = sequence(classes, 12, weighted=True)
    humanline_loss(classes.LossInputs(**{n: None if t is None else t.to("meta") for n, t in vars(inputs).items()}))
    assert asked == [("meta", "loss_weights must be >= 0 on tokens that count")]
    humanline_loss(inputs)
    assert len(asked) == 1
