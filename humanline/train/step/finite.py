"""Refusals of log-probabilities, losses, gradients, metrics and weights that are not finite."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from humanline.train.data.batch import MicroBatch
from humanline.train.policy.shard import local
from humanline.train.run.processes import NonFiniteError, Reduce


@dataclass(frozen=True, slots=True)
class Suspect:
    """A micro-batch of the step, kept until its numbers are known to be finite."""

    batch: MicroBatch
    loss: Tensor
    logprobs: Tensor


def refuse_non_finite(step: int, suspects: list[Suspect], grad_norm: Tensor, reduce: Reduce) -> None:
    """Raise NonFiniteError on every rank, naming the examples, unless losses and gradients of the step are finite."""
    bad = torch.stack([~torch.isfinite(s.loss) for s in suspects])
    stop = (bad.any() | ~torch.isfinite(grad_norm)).to(torch.float32)
    if not reduce(stop, "max").item():
        return
    rows = []
    for suspect in suspects:
        wrong = (~torch.isfinite(suspect.logprobs)).any(1).tolist()
        rows += [name for name, flag in zip(suspect.batch.block.names, wrong, strict=True) if flag]
    where = "log-probabilities of"
    if not rows and bad.any():
        where = "the loss of a micro-batch with"
        rows = [row.unit.id for s in suspects if not torch.isfinite(s.loss) for row in s.batch.rows]
    elif not rows:
        where = "the gradient, though not a loss, of a step with"
        rows = [row.unit.id for s in suspects for row in s.batch.rows]
    rows = list(dict.fromkeys(rows))  # units once, however many of their rows there are
    more = f" and {len(rows) - 8} more" if len(rows) > 8 else ""
    raise NonFiniteError(
        f"step {step}: not finite: {where} {', '.join(rows[:8])}{more}. Nothing was updated or saved by this step. "
        "Look at these examples; if they are in order, lower optimizer.lr or use training.precision: float32."
    )


def refuse_metrics(metrics: Mapping[str, float], updates: int) -> None:
    """Raise NonFiniteError if a held-out metric is not finite."""
    if not all(math.isfinite(value) for value in metrics.values()):
        raise NonFiniteError(f"held-out metrics after {updates} updates are not finite: {metrics}; nothing saved")


def refuse_non_finite_model(model: nn.Module, reduce: Reduce) -> None:
    """Raise NonFiniteError on every rank if a weight on one of them is not finite, or its float32 square would not be.

    Each looks at the rows that it has.
    """
    parameters = dict(model.named_parameters())
    bad = torch.stack([~torch.isfinite(local(tensor).float().square().sum()) for tensor in parameters.values()])
    for name, wrong in zip(parameters, reduce(bad.to(torch.float32), "max").tolist(), strict=True):
        if wrong:
            raise NonFiniteError(
                f"the weights {name} are not finite, or far beyond use, after the last update. No model was saved; "
                "lower optimizer.lr."
            )
