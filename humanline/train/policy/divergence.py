"""KL(policy || start), exact over the vocabulary at every position of a block, and the start's weights for it."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from humanline.objectives import token_kl
from humanline.train.config import TrainConfig
from humanline.train.data.batch import Block
from humanline.train.policy.build import build_policy
from humanline.train.policy.errors import ModelError
from humanline.train.policy.logprobs import LogprobModel
from humanline.train.run.fingerprint import trained_hash

Pass = Callable[[Block], Tensor]  # over a block, without gradient: (R, T - 1) numbers


def divergence_pass(
    policy: LogprobModel,
    policy_pass: Pass,
    start: LogprobModel,
    start_pass: Pass,
    off: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext,
) -> Pass:
    """Return a pass for KL(policy || start) of the next-token distributions at temperature 1, nats.

    What is held of the policy's pass are the hidden states of the tokens that count; no logits but those of a chunk.

    Parameters
    ----------
    policy, start : LogprobModel
        They may be one and the same.
    policy_pass, start_pass : callable
        Give their token log-probabilities of a block, without gradient.
    off : callable
        Gives the context in which the second is the start: that of an adapter switched off.
    """

    def of(block: Block) -> Tensor:
        kept: list[tuple[Tensor, Tensor]] = []

        def keep(hidden: Tensor, head_weight: Tensor, labels: Tensor, **_: Any) -> Tensor:
            kept.append((hidden, head_weight))
            return hidden.new_zeros(len(labels), dtype=torch.float32)

        def compare(hidden: Tensor, head_weight: Tensor, labels: Tensor, **how: Any) -> Tensor:
            return token_kl(*kept.pop(), hidden, head_weight, **how)

        with policy.untempered(keep):
            policy_pass(block)
        with off(), start.untempered(compare):
            return start_pass(block)

    return of


def read_start(config: TrainConfig, device: torch.device, version: str) -> LogprobModel:
    """Read the weights that a run began with once more, and leave every random number as it was.

    Parameters
    ----------
    config : TrainConfig
        Without an adapter.
    device : torch.device
    version : str
        `trained_hash` of these weights.

    Raises
    ------
    ModelError
        If the files hold other weights by now.
    OSError, ValueError
        As `build_policy` does.
    """
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        start, _ = build_policy(config, device)
    if trained_hash(start) != version:
        raise other_start(config)
    return start.eval().requires_grad_(False)


def other_start(config: TrainConfig) -> ModelError:
    """Return the error of a run whose model's files do not hold the weights any more that it began with."""
    return ModelError(
        f"{config.model!r} holds other weights than those that this run began with, so that kl_to_start cannot be "
        "measured: put them back, or set evaluation.distance.to_start: never"
    )


@contextlib.contextmanager
def freed(device: torch.device) -> Iterator[None]:
    """Give memory back, when the context ends, that a model had in it."""
    try:
        yield
    finally:
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()
