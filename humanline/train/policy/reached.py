"""Which trained parameters a model's pass in training mode does not reach, so that they never get a gradient."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from humanline.train.policy.logprobs import LogprobModel


def unreached(policy: LogprobModel, ids: Sequence[int]) -> list[str]:
    """Return the names of trained parameters that get no gradient, from one pass over a few tokens and back.

    Such are the factors of adapters whose layer the model goes around, as Gemma 3n does in training mode; in eval mode
    they are reached. Random numbers, the host's and CUDA's, are drawn apart, and no gradient is left.

    Parameters
    ----------
    policy : LogprobModel
        Not shared out.
    ids : sequence of at least 2 token ids
    """
    device = policy.model.device
    input_ids = torch.tensor([list(ids)], device=device)
    mask = torch.ones((1, len(ids) - 1), dtype=torch.bool, device=device)
    trained = {name: weight for name, weight in policy.named_parameters() if weight.requires_grad}
    was_training = policy.training
    try:
        with torch.random.fork_rng([device] if device.type == "cuda" else []), torch.enable_grad():
            policy.train()(input_ids, mask).sum().backward()
        return [name for name, weight in trained.items() if weight.grad is None]
    finally:
        policy.train(was_training)
        for weight in trained.values():
            weight.grad = None


def tell_unreached(
    policy: LogprobModel, ids: Sequence[int], remarks: list[str], reduce: Callable[[Tensor, str], Tensor]
) -> bool:
    """Return whether there are such parameters in any process, and add to remarks which there are in this one."""
    if names := unreached(policy, ids):
        trained = sum(weight.requires_grad for weight in policy.parameters())
        shown = ", ".join(names[:2]) + (f" and {len(names) - 2} more" if len(names) > 2 else "")
        remarks.append(
            f"remark: {len(names)} of {trained} trained tensors get no gradient in this model's pass in training mode "
            f"and stay as they are: {shown}"
        )
    return bool(reduce(torch.tensor(float(bool(names))), "max"))
