"""Token log-probabilities -> log-ratio -> transform: everything that happens upstream of a loss."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from humanline import _checks
from humanline._shapes import Bool, Float
from humanline.theory import BetaRejection, ClipRange


def token_log_ratio(
    policy_logprobs: Float[Tensor, "B T"], ref_logprobs: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"]
) -> Float[Tensor, "B T"]:
    """Return ``log pi_theta - log pi_ref`` of every token, and 0 where the mask is False.

    Parameters
    ----------
    policy_logprobs, ref_logprobs : (B, T) floating tensors
        Token log-probabilities, nats. The reference carries no gradient.
    mask : (B, T) bool tensor
        True = the token counts. Where it is False both inputs may hold nan or inf.

    Returns
    -------
    (B, T) tensor
        Nats.

    Raises
    ------
    ValueError
        If shapes differ or the mask is not bool.

    Notes
    -----
    Source: arXiv 2509.24207, section 3 (the outcome z of a token). An unmasked ``-inf - (-inf)`` is nan: no clip can
    repair it, and the training loop stops on it.
    """
    _checks.same_shape("ref_logprobs", ref_logprobs.shape, "policy_logprobs", policy_logprobs.shape)
    policy, ref = fill_masked(policy_logprobs, mask, "policy_logprobs"), fill_masked(ref_logprobs.detach(), mask)
    return policy - ref


def detach_rejected(
    log_ratio: Float[Tensor, "*shape"],
    rejection: BetaRejection,
    policy_draws: Float[Tensor, "*shape"],
    ref_draws: Float[Tensor, "*shape"],
) -> Float[Tensor, "*shape"]:
    """Return the log-ratio unchanged in value, with the rejected tokens cut from the graph.

    ``kept ? log_ratio : stop_gradient(log_ratio)``; a rejected token still counts in a sequence's sum.

    Parameters
    ----------
    log_ratio : floating tensor of any shape
        (B, T) in training; nats.
    rejection : BetaRejection
    policy_draws, ref_draws : floating tensors of the same shape, in [0, 1]
        Beta draws of the two tests.

    Returns
    -------
    tensor of the same shape
        Nats; gradient 1 on kept tokens and 0 on detached ones.

    Raises
    ------
    ValueError
        If shapes differ.

    Notes
    -----
    Source: arXiv 2509.24207, Definition 4.2, Eq. 5.
    """
    _checks.same_shape("policy_draws", policy_draws.shape, "log_ratio", log_ratio.shape)
    _checks.same_shape("ref_draws", ref_draws.shape, "log_ratio", log_ratio.shape)
    kept = rejection.keeps(log_ratio.detach(), policy_draws, ref_draws)
    return torch.where(kept, log_ratio, log_ratio.detach())


def clip_marks(
    log_ratio: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"], clip: ClipRange
) -> dict[str, Bool[Tensor, "B T"]]:
    """Mark the tokens strictly below and strictly above a clip range.

    Parameters
    ----------
    log_ratio : (B, T) tensor
        Untransformed, nats.
    mask : (B, T) bool tensor
    clip : ClipRange

    Returns
    -------
    dict of (B, T) bool tensors
        ``clipped_low`` and ``clipped_high``: no token has both.
    """
    return {"clipped_low": (log_ratio < clip.low) & mask, "clipped_high": (log_ratio > clip.high) & mask}


def rejection_marks(
    log_ratio: Float[Tensor, "B T"],
    mask: Bool[Tensor, "B T"],
    rejection: BetaRejection,
    policy_draws: Float[Tensor, "B T"],
    ref_draws: Float[Tensor, "B T"],
) -> dict[str, Bool[Tensor, "B T"]]:
    """Mark the detached tokens and those whose ratio lies above one of the bounds.

    Parameters
    ----------
    log_ratio : (B, T) tensor
        Untransformed, nats.
    mask : (B, T) bool tensor
    rejection, policy_draws, ref_draws
        As in `detach_rejected`.

    Returns
    -------
    dict of (B, T) bool tensors
        ``detached`` and ``above_bound``: a token may have both.
    """
    ratio = log_ratio.detach()
    over = (ratio > math.log(rejection.policy_ratio_bound)) | (-ratio > math.log(rejection.ref_ratio_bound))
    kept = rejection.keeps(ratio, policy_draws, ref_draws)
    return {"detached": ~kept & mask, "above_bound": over & mask}


def fill_masked(
    values: Float[Tensor, "*shape"], mask: Bool[Tensor, "*shape"], name: str = "values"
) -> Float[Tensor, "*shape"]:
    """Return `values` with 0 where the mask is False, so that nan or inf there changes neither value nor gradient.

    Raises
    ------
    ValueError
        If shapes differ or the mask is not bool.
    """
    _checks.same_shape("mask", mask.shape, name, values.shape)
    if mask.dtype != torch.bool:
        raise _checks.fail("mask", "be bool", mask.dtype)
    return torch.where(mask, values, 0.0)
