"""What losses say besides their value: metrics of pairs, of labelled answers and of tokens, as shares of a step."""

from __future__ import annotations

import torch
from torch import Tensor

from humanline._shapes import Bool, Float, Real

Metrics = dict[str, Float[Tensor, ""]]


def averages(values: dict[str, Float[Tensor, "*shape"]], count: Real[Tensor, ""] | float) -> Metrics:
    """Return the sums of numbers a pair, answer or token over a count, without gradient."""
    return {name: value.detach().sum() / count for name, value in values.items()}


def pair_metrics(chosen: Float[Tensor, " B"], rejected: Float[Tensor, " B"]) -> dict[str, Float[Tensor, " B"]]:
    """Return the metrics that losses of pairs share, of each pair, from the implicit rewards of its answers."""
    margin = chosen - rejected
    return {"margin": margin, "chosen_reward": chosen, "rejected_reward": rejected, "accuracy": _wins(margin)}


def gain(
    z: Float[Tensor, " B"], z_0: Float[Tensor, ""] | float, desirable: Bool[Tensor, " B"], beta: float
) -> Float[Tensor, " B"]:
    """Return by how much each example is on its label's side of the reference point."""
    distance = beta * (z - z_0)
    return torch.where(desirable, distance, -distance)


def labelled_metrics(
    z: Float[Tensor, " B"], z_0: Float[Tensor, ""] | float, desirable: Bool[Tensor, " B"], beta: float
) -> dict[str, Float[Tensor, " B"]]:
    """Return the metrics that losses of labelled examples share, of each one."""
    return {
        "desirable_reward": torch.where(desirable, beta * z, 0.0),
        "undesirable_reward": torch.where(desirable, 0.0, beta * z),
        "accuracy": _wins(gain(z, z_0, desirable, beta)),
        "reference_point": torch.zeros_like(z) + z_0,
    }


def _wins(margin: Float[Tensor, " B"]) -> Float[Tensor, " B"]:
    return 0.5 * ((margin > 0).to(margin.dtype) + (margin >= 0).to(margin.dtype))
