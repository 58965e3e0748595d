"""Refusals of log-probabilities, losses, gradients, metrics and weights that are not finite."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from humanline.train.data.batch import MicroBatch
from humanline.train.run.processes import NonFiniteError, Processes, Reduce, gathered
from humanline.train.run.shares import share_of

_PIECE = 1 << 20  # numbers of a weight that are looked at together


@dataclass(frozen=True, slots=True)
class Suspect:
    """A micro-batch of the step, kept until its numbers are known to be finite."""

    batch: MicroBatch
    loss: Tensor
    logprobs: Tensor


def refuse_non_finite(step: int, suspects: list[Suspect], grad_norm: Tensor, processes: Processes) -> None:
    """Raise NonFiniteError in all processes, in the same words, unless losses and gradients of a step are finite.

    It names the examples, whichever process has them.
    """
    bad = torch.stack([~torch.isfinite(s.loss) for s in suspects])
    stop = (bad.any() | ~torch.isfinite(grad_norm)).to(torch.float32)
    if not processes.reduce(stop, "max").item():
        return
    texts = gathered(json.dumps(_looked_at(suspects)), processes.rank, processes.ranks, processes.reduce)
    of_all = [json.loads(text) for text in texts]
    named = {where: list(dict.fromkeys(name for one in of_all for name in one[where])) for where in of_all[0]}
    where = next((where for where, rows in named.items() if rows), list(named)[-1])
    rows = named[where]  # units once, however many of their rows there are
    more = f" and {len(rows) - 8} more" if len(rows) > 8 else ""
    raise NonFiniteError(
        f"step {step}: not finite: {where} {', '.join(rows[:8])}{more}. Nothing was updated or saved by this step. "
        "Look at these examples; if they are in order, lower optimizer.lr or use training.precision: float32."
    )


def _looked_at(suspects: list[Suspect]) -> dict[str, list[str]]:
    """Return names from the micro-batches of one process by what is said of them, what tells most first."""
    scored: list[str] = []
    lost: list[str] = []
    units: list[str] = []
    for suspect in suspects:
        wrong = (~torch.isfinite(suspect.logprobs)).any(1).tolist()
        scored += [name for name, flag in zip(suspect.batch.block.names, wrong, strict=True) if flag]
        own = [row.unit.id for row in suspect.batch.rows]
        lost += [] if torch.isfinite(suspect.loss) else own
        units += own
    return {
        "log-probabilities of": scored,
        "the loss of a micro-batch with": lost,
        "the gradient, though not a loss, of a step with": units,
    }


def refuse_metrics(metrics: Mapping[str, float], updates: int) -> None:
    """Raise NonFiniteError if a held-out metric is not finite."""
    if not all(math.isfinite(value) for value in metrics.values()):
        raise NonFiniteError(f"held-out metrics after {updates} updates are not finite: {metrics}; nothing saved")


def refuse_non_finite_model(model: nn.Module, reduce: Reduce) -> None:
    """Raise NonFiniteError on every rank if a weight on one of them is not finite, or its float32 square would not be.

    Each looks at the rows that it has, a piece at a time: under an adapter there is no room of gradients for squares of
    a whole embedding, of which no estimate knows, and the run would fail once all is trained.
    """
    parameters = dict(model.named_parameters())
    bad = torch.stack([~torch.isfinite(_squares(share_of(tensor).rows)) for tensor in parameters.values()])
    for name, wrong in zip(parameters, reduce(bad.to(torch.float32), "max").tolist(), strict=True):
        if wrong:
            raise NonFiniteError(
                f"the weights {name} are not finite, or far beyond use, after the last update. No model was saved; "
                "lower optimizer.lr."
            )


def _squares(rows: Tensor) -> Tensor:
    """Return the sum of the squares of a tensor's numbers, in float32."""
    return torch.stack([part.float().square().sum() for part in torch.split(rows.flatten(), _PIECE)]).sum()
