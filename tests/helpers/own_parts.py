"""A loss, a transform and a schedule as a user would write them, for runs of several processes."""

from __future__ import annotations

import torch
from torch import Tensor


def hinge(
    chosen: Tensor, rejected: Tensor, *, chosen_mask: Tensor, rejected_mask: Tensor, margin: float
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return max(0, margin - gain) of each pair, and the gain as a metric."""
    gain = (chosen * chosen_mask).sum(1) - (rejected * rejected_mask).sum(1)
    return torch.relu(margin - gain), {"gain": gain}


def bend(log_ratio: Tensor, *, mask: Tensor, limit: float) -> Tensor:
    """Return log-ratios bent towards +-limit nats."""
    return limit * torch.tanh(log_ratio / limit)


def behind(step: int, *, steps: int) -> int:
    """Return the step so many before."""
    return max(0, step - steps)
