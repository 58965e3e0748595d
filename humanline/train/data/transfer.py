"""Tensors on their way from the host to the device of training, such that nobody waits for them."""

from __future__ import annotations

import torch
from torch import Tensor


def pinned(tensor: Tensor) -> Tensor:
    """Return a tensor of the host in memory that a GPU reads by itself."""
    return tensor.pin_memory()


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a tensor of the host on a device, in the course of what the device has been asked to do so far.

    To a GPU it is copied from pinned memory: the host goes on at once, and the memory is not used again before the copy
    is made. On the host nothing is done.
    """
    if device.type != "cuda" or tensor.is_cuda:
        return tensor.to(device)
    return (tensor if tensor.is_pinned() else pinned(tensor)).to(device, non_blocking=True)
