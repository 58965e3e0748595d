"""A custom loss for prime-rl: `import_path = "humanline.integrations.prime_rl.humanline_loss"`.

prime-rl hands one sequence to the loss, or a micro-batch of packed ones, and adds up what comes back. The loss is a sum
over tokens, so that both are the same. `docs/inside-others.md` says how to name it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from humanline import _checks
from humanline.objectives import grpo_loss
from humanline.theory import ClipRange


def humanline_loss(inputs: Any, *, log_eps_low: float = -1.5, log_eps_high: float = 1.5, clip_eps: float = 0.2) -> Any:
    """Compute the GRPO loss of humanline-clipped log-ratios, summed over the tokens of a sequence or of packed ones.

    ``sum of -min(r A, clip(r, 1 - eps, 1 + eps) A)``, ``log r = clip(log pi_trainer - log pi_inference, low, high)``

    Parameters
    ----------
    inputs : prime_rl.trainer.rl.loss.LossInputs
        Tensors of shape (T,): log-probabilities (nats) of the policy and of the server that sampled, advantages,
        the mask, and weights of tokens, >= 0, or None. Masked tokens may hold anything.
    log_eps_low, log_eps_high : float, low <= 0 <= high
        The humanline range, nats.
    clip_eps : float, > 0
        GRPO's own clip.

    Returns
    -------
    prime_rl.trainer.rl.loss.LossOutputs
        The sum, which prime-rl divides by the count of tokens of the step, or the sum of their weights; as metrics the
        shares of tokens clipped at each bound and the root mean square of the log-ratio (nats).

    Raises
    ------
    ValueError
        If low > 0, high < 0, clip_eps <= 0, or a token that counts has a negative weight. On a GPU, which
        this does not wait for, such a weight ends the process instead: a device-side assert that says so.

    Notes
    -----
    Source: arXiv 2509.24207, Eq. 1 and section 5.1. The reference is the policy that sampled, as in prime-rl's own
    losses: a custom loss sees no model, so there is no syncing before a step.
    """
    from prime_rl.trainer.rl.loss import LossOutputs

    clip, mask = ClipRange(log_eps_low, log_eps_high), inputs.loss_mask
    z = inputs.trainer_logprobs - inputs.inference_logprobs
    advantages, weights = inputs.advantages, inputs.loss_weights
    if weights is not None:
        _refuse_negative(weights, mask)
        advantages = advantages * weights
    # Every token is a row of its own, since prime-rl has an advantage a token and adds tokens up.
    loss, _ = grpo_loss(
        clip.clip(z)[:, None],
        mask=mask[:, None],
        advantages=advantages,
        kl_log_ratio=None,
        clip_eps=clip_eps,
        kl_coef=0.0,
        denominator=1,
    )
    counted, count = torch.where(mask, z.detach(), 0.0), mask.sum().clamp(min=1)
    metrics = {
        "humanline/clipped_low": (counted < clip.low).sum() / count,
        "humanline/clipped_high": (counted > clip.high).sum() / count,
        "humanline/log_ratio_rms": (counted.square().sum() / count).sqrt(),
    }
    return LossOutputs(loss=loss, metrics=metrics)


def _refuse_negative(weights: Tensor, mask: Tensor) -> None:
    """Refuse weights that would turn an advantage round: with an error where no device has to be waited for."""
    rule, wrong = "be >= 0 on tokens that count", mask & (weights < 0)
    if weights.device.type != "cpu":  # bool() would hold up every call until the forward pass is through
        torch._assert_async(~wrong.any(), f"loss_weights must {rule}")
    elif bool(wrong.any()):
        raise _checks.fail("loss_weights", rule, float(weights[mask].min()))
