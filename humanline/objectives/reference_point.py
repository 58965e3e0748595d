"""What labelled answers are held against: reference points, from sums of sequence log-ratios over a whole step."""

from __future__ import annotations

import torch
from torch import Tensor

from humanline import _checks
from humanline._shapes import Bool, Float
from humanline.objectives.log_ratio import fill_masked


def kto_reference_point(z_sum: Float[Tensor, "*shape"], count: int) -> Float[Tensor, "*shape"]:
    """Return KTO's z_0: the mean of mismatched sequence log-ratios, not below 0 and without gradient.

    Parameters
    ----------
    z_sum : 0-d tensor
        Sum of the mismatched pairs' sequence log-ratios over the whole step and all ranks, nats.
    count : int
        Their number.

    Raises
    ------
    ValueError
        If there is no mismatched pair.

    Notes
    -----
    Source: arXiv 2509.24207, Eq. 7 (z_0) and the text after it.
    """
    if count < 1:
        raise _checks.fail("the number of mismatched pairs", "be >= 1", count)
    return (z_sum.detach() / count).clamp(min=0)


def bco_reference_point(z_sum: Float[Tensor, "*shape"], count: int) -> Float[Tensor, "*shape"]:
    """Return BCO's z_0: the mean of sequence log-ratios, of both labels together and without gradient.

    Parameters
    ----------
    z_sum : 0-d tensor
        Sum of the examples' sequence log-ratios over the whole step and all ranks, nats.
    count : int
        Their number.

    Raises
    ------
    ValueError
        If there is no example.

    Notes
    -----
    Source: arXiv 2404.04656 (the reward shift, beta z_0), with one mean over all examples as in TRL: where there are as
    many of each label it is the middle of the two labels' means, which the paper has.
    """
    if count < 1:
        raise _checks.fail("the number of examples", "be >= 1", count)
    return z_sum.detach() / count


def given_or_mismatched(
    reference_point: Float[Tensor, ""] | float | None,
    kl_log_ratio: Float[Tensor, "K T"] | None,
    kl_mask: Bool[Tensor, "K T"] | None,
) -> Float[Tensor, ""] | float:
    """Return a given z_0, not negative and without gradient, or KTO's of mismatched pairs; ValueError unless one is."""
    if (kl_log_ratio is None) == (reference_point is None):
        raise ValueError("give exactly one of kl_log_ratio (with kl_mask) and reference_point")
    if kl_log_ratio is None:
        if isinstance(reference_point, Tensor):
            return _single(reference_point)
        return _checks.non_negative("reference_point", reference_point)
    if kl_mask is None:
        raise ValueError("kl_mask must be given with kl_log_ratio; got None")
    z = fill_masked(kl_log_ratio, kl_mask, "kl_log_ratio").sum(-1)
    return kto_reference_point(z.sum(), z.shape[0])


def given_or_own(reference_point: Float[Tensor, ""] | float | None, z: Float[Tensor, " B"]) -> Float[Tensor, ""]:
    """Return a given z_0, finite and without gradient, or the mean of sequence log-ratios (B,)."""
    if reference_point is None:
        return z.detach().mean()
    if isinstance(reference_point, Tensor):
        return _single(reference_point)
    return torch.as_tensor(_checks.finite("reference_point", reference_point), dtype=z.dtype, device=z.device)


def _single(reference_point: Float[Tensor, "*shape"]) -> Float[Tensor, ""]:
    """Return a z_0 without gradient; raise unless it is one number, as others would be broadcast over the batch."""
    _checks.same_shape("reference_point", reference_point.shape, "one number", ())
    return reference_point.detach()
