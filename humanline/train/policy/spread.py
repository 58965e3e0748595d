"""How a policy lies in the processes of a run, and what its steps need of that: whole in each, or shared out."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from humanline.train.policy.errors import ModelError
from humanline.train.policy.logprobs import LogprobModel
from humanline.train.policy.precision import SharedCopies
from humanline.train.run.state import trained_parameters


class Spread(Protocol):
    """What steps need of the way in which a policy lies in the processes; all of them call its methods alike.

    Attributes
    ----------
    wrapped : callable
        The policy as a pass with gradient goes through it: gradients are averaged over all processes.
    rows : dict
        What of each trained parameter this process updates, by the parameter's name.
    """

    wrapped: Any
    rows: dict[str, nn.Parameter]

    def accumulating(self, last: bool) -> AbstractContextManager[Any]:
        """Give the context of a micro-batch's passes; `last` where it is the last one of a step."""

    def clip(self, limit: float) -> Tensor:
        """Scale the gradients of a step down to a norm over all processes, and return the norm that they had."""

    def without_gradient(self, weights: dict[str, Tensor] | None = None) -> Callable[..., Tensor]:
        """Return the policy's pass where no gradient is wanted; with other trained weights, in the form of `rows`."""

    def state_of(self, name: str, rows: Tensor) -> Tensor:
        """Return a tensor that belongs to a parameter's rows as checkpoints want it: known as a part of the whole."""


class Whole:
    """Every process holds the whole policy, and gradients are averaged: plain data parallelism, or one process alone.

    Under `training.precision: bf16` the passes without gradient from one update to the next micro-batch, for however
    many steps they score, share one set of copies of the weights.

    Parameters
    ----------
    policy : LogprobModel
    accelerator
    unreached : bool
        Whether some trained parameters get no gradient (`humanline.train.policy.reached`): then the processes look, in
        every pass, which of them do; else they would wait for all, and go on with gradients of their own.
    """

    def __init__(self, policy: LogprobModel, accelerator: Any, *, unreached: bool = False) -> None:
        if unreached:
            from accelerate import DistributedDataParallelKwargs

            accelerator.ddp_handler = DistributedDataParallelKwargs(find_unused_parameters=True)
        self.accelerator, self.wrapped = accelerator, accelerator.prepare(policy)
        self._must_reach = accelerator.num_processes > 1 and not unreached
        self.policy = accelerator.unwrap_model(self.wrapped)
        self.rows = trained_parameters(self.policy)
        self._copies = SharedCopies.of(self.policy)

    def accumulating(self, last: bool) -> AbstractContextManager[Any]:
        """Give the context in which gradients travel with the last micro-batch alone; they need the room of copies."""
        if self._copies is not None:
            self._copies.drop()
        context: AbstractContextManager[Any] = self.accelerator.no_sync(self.wrapped)
        return contextlib.nullcontext() if last else context

    def clip(self, limit: float) -> Tensor:
        """Scale gradients down to a norm, and return the norm that they had.

        Raises
        ------
        ModelError
            If the last pass of the step, with which gradients travel, has not reached a parameter that a pass on other
            tokens did, with several processes: theirs are then not averaged, whatever earlier passes have reached.
            Each process looks at its own.
        """
        if self._must_reach:
            try:
                self.wrapped._check_reducer_finalized()
            except RuntimeError as error:
                raise ModelError(
                    "the last pass of this step has not reached trained tensors that other passes reach, so that "
                    "processes would go on with gradients of their own: train in one process"
                ) from error
        norm: Tensor = self.accelerator.clip_grad_norm_(self.policy.parameters(), limit)
        return norm

    def without_gradient(self, weights: dict[str, Tensor] | None = None) -> Callable[..., Tensor]:
        """Return the policy's pass, with other trained weights if there are any."""
        if weights is None:
            return self._without_gradient
        return lambda *inputs: torch.func.functional_call(self.policy, weights, inputs)

    def state_of(self, name: str, rows: Tensor) -> Tensor:
        """Return the tensor itself."""
        return rows

    def _without_gradient(self, *inputs: Any) -> Tensor:
        with contextlib.nullcontext() if self._copies is None else self._copies.in_place():
            logprobs: Tensor = self.policy(*inputs)
        return logprobs
