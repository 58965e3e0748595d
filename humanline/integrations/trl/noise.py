"""Whether a model's passes differ by chance, which its modules do not tell of every model."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def without_noise(scored: Callable[[], Tensor]) -> Tensor:
    """Return what a pass in training mode scores; raise RuntimeError if another of the same weights scores otherwise.

    Rates of dropout that are read from a model's configuration, and the noise of a router, are seen in no module. There
    is a second pass only where the first drew random numbers: there are models that draw some of which nothing comes,
    and devices that add in another order each time. It leaves the random state as it was.

    Parameters
    ----------
    scored : callable
        Returns log-probabilities of the same rows, nats.
    """
    has_gpu = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    devices = [torch.cuda.current_device()] if has_gpu else []
    before = _states(devices)
    first = scored()
    if all(map(torch.equal, before, _states(devices))):
        return first
    with torch.random.fork_rng(devices):
        off = (first - scored()).abs().nan_to_num().max().item()
    if off > 0:
        raise RuntimeError(
            f"two passes of the model with the same weights differ by up to {off:.3g} nats a token: it has dropout or "
            "noise that no module shows, as in a router or read from its configuration, so policy and reference would "
            "differ by chance. Set such rates in the model's configuration to 0 (as "
            "model_init_kwargs={'attention_dropout': 0.0, 'router_jitter_noise': 0.0}), or use another model"
        )
    return first


def _states(devices: list[int]) -> list[Tensor]:
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state(device) for device in devices)]
