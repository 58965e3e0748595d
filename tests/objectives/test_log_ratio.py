"""Log-ratios, detaching against clamping, and what the transforms count."""

from __future__ import annotations

import math

import pytest
import torch

from humanline.objectives import (
    clip_marks,
    detach_rejected,
    dpo_loss,
    grpo_loss,
    rejection_marks,
    token_log_ratio,
)
from humanline.theory import BetaRejection, BetaShape, ClipRange

CLIP = ClipRange(-1.5, 1.5)
SHARP = BetaRejection(BetaShape(1, 1), BetaShape(1, 1), policy_ratio_bound=2.0, ref_ratio_bound=2.0)


def draws_that_reject(log_ratio: torch.Tensor, rejected: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Draws under which exactly the given tokens are rejected: 1 rejects a ratio below its bound, 0 keeps any."""
    return torch.where(rejected & (log_ratio < math.log(2)), 1.0, 0.0), torch.where(rejected, 1.0, 0.0)


def test_the_reference_carries_no_gradient():
    """Only the policy's log-probabilities receive a gradient, and masked tokens none at all."""
    policy, ref = torch.randn(2, 3, requires_grad=True), torch.randn(2, 3, requires_grad=True)
    mask = torch.tensor([[True, True, False], [True, False, False]])
    log_ratio = token_log_ratio(policy, ref, mask)
    assert torch.equal(log_ratio, torch.where(mask, policy - ref, 0.0))
    log_ratio.sum().backward()
    assert ref.grad is None and torch.equal(policy.grad, mask.float())


def test_masked_infinities_give_zero_and_unmasked_ones_stay():
    """-inf minus -inf is 0 under a False mask and nan under a True one."""
    values = torch.full((1, 2), -math.inf)
    log_ratio = token_log_ratio(values, values, torch.tensor([[False, True]]))
    assert log_ratio[0, 0] == 0 and log_ratio[0, 1].isnan()


def test_detaching_keeps_values_and_cuts_gradients():
    """A rejected token keeps its value and loses its gradient; a kept one keeps both."""
    values = torch.tensor([[0.5, -0.5, 0.2]], requires_grad=True)
    rejected = torch.tensor([[False, True, False]])
    result = detach_rejected(values, SHARP, *draws_that_reject(values, rejected))
    assert torch.equal(result, values)
    result.sum().backward()
    assert values.grad.tolist() == [[1.0, 0.0, 1.0]]


def test_detaching_and_clamping_differ_for_dpo():
    """For DPO, (6, .2, -.4) against (-5, .1): margin 1.07, token weight .02554 detached; .27, .04329 clamped."""
    chosen = torch.tensor([[6.0, 0.2, -0.4]], dtype=torch.float64)
    rejected = torch.tensor([[-5.0, 0.1]], dtype=torch.float64)
    found = {}
    for how in ("detached", "clamped"):
        c, r = chosen.clone().requires_grad_(), rejected.clone().requires_grad_()
        if how == "clamped":
            both = CLIP.clip(c), CLIP.clip(r)
        else:
            both = tuple(detach_rejected(x, SHARP, *draws_that_reject(x, x.abs() > 1.5)) for x in (c, r))
        masks = {"chosen_mask": torch.ones(1, 3, dtype=torch.bool), "rejected_mask": torch.ones(1, 2, dtype=torch.bool)}
        loss, metrics = dpo_loss(*both, **masks, beta=0.1)
        loss.backward()
        assert c.grad[0, 0] == 0 and r.grad[0, 0] == 0
        found[how] = (metrics["margin"].item(), -c.grad[0, 1].item(), r.grad[0, 1].item())
    assert found["detached"] == pytest.approx((1.07, 0.02554, 0.02554), abs=5e-6)
    assert found["clamped"] == pytest.approx((0.27, 0.04329, 0.04329), abs=5e-6)


def test_detaching_and_clamping_agree_for_token_sums():
    """In GRPO, a sum over tokens, the live tokens' gradients are the same either way."""
    values = torch.tensor([[6.0, 0.05, -0.04, -5.0]], dtype=torch.float64)
    grads = []
    for how in ("detached", "clamped"):
        x = values.clone().requires_grad_()
        y = CLIP.clip(x) if how == "clamped" else detach_rejected(x, SHARP, *draws_that_reject(x, x.abs() > 1.5))
        options = {"mask": torch.ones(1, 4, dtype=torch.bool), "kl_log_ratio": None, "clip_eps": 0.2, "kl_coef": 0.0}
        grpo_loss(y, advantages=torch.tensor([-1.0], dtype=torch.float64), **options)[0].backward()
        grads.append(x.grad)
    assert torch.equal(grads[0], grads[1]) and grads[0][0, 1] != 0


@pytest.mark.parametrize("advantage", [1.0, -1.0, 0.0])
@pytest.mark.parametrize("log_ratio", [200.0, -200.0])
def test_a_ratio_beyond_its_type_never_gives_a_nan_gradient(log_ratio, advantage):
    """GRPO's gradient is never nan, though exp(200) is infinite in float32."""
    x = torch.tensor([[log_ratio]], requires_grad=True)
    mask = torch.ones(1, 1, dtype=torch.bool)
    options = {"kl_log_ratio": None, "clip_eps": 0.2, "kl_coef": 0.0}
    loss, _ = grpo_loss(x, mask=mask, advantages=torch.tensor([advantage]), **options)
    loss.backward()
    assert not x.grad.isnan().any()
    if not (advantage < 0 < log_ratio):  # there the loss itself is infinite, and a run stops
        assert loss.isfinite() and x.grad.item() == 0


def test_clip_marks_tell_the_sides_apart():
    """Tokens strictly below and strictly above are marked, those on a bound and masked ones are not."""
    values = torch.tensor([[-2.0, -1.5, 0.0, 1.5, 2.0, 3.0]])
    mask = torch.tensor([[True, True, True, True, True, False]])
    marks = clip_marks(values, mask, CLIP)
    assert marks["clipped_low"].tolist() == [[True, False, False, False, False, False]]
    assert marks["clipped_high"].tolist() == [[False, False, False, False, True, False]]


def test_rejection_marks_detached_and_above_bound():
    """Detached tokens and ratios above either bound are marked under the mask."""
    values = torch.tensor([[0.0, 0.0, 1.0, -1.0, 1.0]])
    mask = torch.tensor([[True, True, True, True, False]])
    rejected = torch.tensor([[True, False, False, False, True]])
    marks = rejection_marks(values, mask, SHARP, *draws_that_reject(values, rejected))
    assert marks["detached"].tolist() == [[True, False, False, False, False]]
    assert marks["above_bound"].tolist() == [[False, False, True, True, False]]


@pytest.mark.wrong_shapes
@pytest.mark.parametrize("which", ["ref_logprobs", "policy_draws", "ref_draws", "mask"])
def test_shapes_that_differ_are_named(which):
    """No operand is broadcast; the one that does not fit is named."""
    good, bad, mask = torch.zeros(2, 3), torch.zeros(2, 1), torch.ones(2, 3, dtype=torch.bool)
    with pytest.raises(ValueError, match=f"{which} must have the shape of"):
        if which == "ref_logprobs":
            token_log_ratio(good, bad, mask)
        elif which == "mask":
            token_log_ratio(good, good, mask[:, :1])
        else:
            detach_rejected(good, SHARP, **{"policy_draws": good, "ref_draws": good, which: bad})
