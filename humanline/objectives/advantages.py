"""Group-relative advantages."""

from __future__ import annotations

import torch
from torch import Tensor

from humanline import _checks
from humanline._shapes import Float, Integer


def group_advantages(
    scores: Float[Tensor, " B"], group: Integer[Tensor, " B"], *, std: str = "population", eps: float = 0.0
) -> Float[Tensor, " B"]:
    """Compute each completion's score relative to the completions of the same prompt.

    ``(s - mean) / (std + eps)`` within the group.

    Parameters
    ----------
    scores : (B,) floating tensor
        Scores; nan or inf makes the advantages of its group nan.
    group : (B,) integer tensor
        Equal ids form a group; ids need not be sorted or contiguous.
    std : "population", "sample" or "none"
        Divide by n, by n - 1, or do not scale at all.
    eps : float, >= 0
        Added to the standard deviation.

    Returns
    -------
    (B,) tensor
        Advantages; exactly 0 for a group of one and for a group whose scores are equal up to rounding.

    Raises
    ------
    ValueError
        If shapes differ, scores are not floating, std is unknown, or eps < 0.

    Notes
    -----
    Source: arXiv 2509.24207, Eq. 1 (the advantage). With the default a group of two unequal scores gives +1 and -1.
    Scores count as equal where max - min <= 8 machine epsilons of the largest magnitude: without it eight float32
    copies of 0.1 have a standard deviation of 8e-9 and advantages of .9.
    Released HALOs: population with eps 1e-2; TRL: sample.
    """
    _checks.one_of("std", std, ("population", "sample", "none"))
    eps = _checks.non_negative("eps", eps)
    _checks.same_shape("group", group.shape, "scores", scores.shape)
    if scores.ndim != 1 or not scores.is_floating_point():
        raise _checks.fail("scores", "be a 1-d floating tensor", (tuple(scores.shape), scores.dtype))
    if not len(scores):
        return scores
    same = group[:, None] == group[None, :]
    members = torch.where(same, scores[None, :], 0.0)
    size = same.sum(1).to(scores.dtype)
    centred = scores - members.sum(1) / size
    high = torch.where(same, scores[None, :], -torch.inf).amax(1)
    low = torch.where(same, scores[None, :], torch.inf).amin(1)
    info, width = torch.finfo(scores.dtype), high - low
    equal = width <= 8 * (info.eps * torch.maximum(high.abs(), low.abs()) + info.tiny)
    equal = equal & width.isfinite()
    if std == "none":
        return torch.where(equal, 0.0, torch.where(width.isfinite(), centred, torch.nan))
    width = torch.where(equal, 1.0, width)  # in units of the width no square underflows
    scaled = centred / width
    squares = torch.where(same, scaled.square()[None, :], 0.0).sum(1)
    divisor = size if std == "population" else (size - 1).clamp(min=1)
    spread = torch.where(equal, 1.0, (squares / divisor).sqrt())
    return torch.where(equal, 0.0, scaled / (spread + eps / width))
