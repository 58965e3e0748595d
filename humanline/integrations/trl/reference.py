"""A reference that is a copy of the trainable tensors alone, called through the policy's own module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call


class Reference:
    """Hold earlier values of a model's trainable tensors, and call the model with them in place of its own.

    With LoRA these are the adapter's. Tied weights stay tied, and tensors that are not trained are the model's.

    Parameters
    ----------
    model : nn.Module
        Not wrapped.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.tensors: dict[str, Tensor] = {}
        self._left: dict[str, int] | None = None  # counts of changes of the model's tensors when they were let go

    @property
    def made(self) -> bool:
        """Return whether there is one."""
        return bool(self.tensors)

    @property
    def due(self) -> bool:
        """Return whether a copy was put off that has not been taken yet."""
        return self._left is not None

    def is_the_model(self) -> bool:
        """Return whether the model's trainable tensors are those that this holds, bit for bit."""
        now = self.trainable()
        return now.keys() == self.tensors.keys() and all(torch.equal(one, now[n]) for n, one in self.tensors.items())

    def trainable(self) -> dict[str, Tensor]:
        """Return the model's own tensors of which this holds copies, by name; they are not copied."""
        return {name: one.detach() for name, one in self.model.named_parameters() if one.requires_grad}

    def take(self) -> None:
        """Become a copy of the model as it is now; raise RuntimeError if it was to be one of an earlier moment."""
        now = self.trainable()
        if self._left is not None:
            moved = [name for name, one in now.items() if one._version != self._left.get(name)]
            self._left = None
            if moved:
                raise RuntimeError(
                    f"{len(moved)} weights changed between a step's last loss and its update, the first {moved[0]}, so "
                    "that what the reference should have been is gone: take away what changes weights there"
                )
        if self.made:
            self._same_names(now)
            for name, tensor in self.tensors.items():
                tensor.copy_(now[name])
        else:
            self.tensors = {name: tensor.clone() for name, tensor in now.items()}

    def take_later(self) -> None:
        """Hold nothing until the next `take`, before which the model must not change: while gradients are computed.

        They need memory, and nobody asks a reference then. Where weights move within the backward pass (optimizers that
        update layer by layer do it in hooks of the gradients), the copy is taken at once.
        """
        hooks = ("_post_accumulate_grad_hooks", "_backward_hooks")
        if any(getattr(one, name, None) for one in self.model.parameters() if one.requires_grad for name in hooks):
            self.take()
            return
        self.forget()
        self._left = {name: one._version for name, one in self.trainable().items()}

    def become(self, values: Mapping[str, Tensor]) -> None:
        """Become these tensors, which were copied from this model once; raise ValueError if they cannot have been."""
        now = self.trainable()
        shapes = {name: (tuple(one.shape), one.dtype) for name, one in now.items()}
        given = {name: (tuple(one.shape), one.dtype) for name, one in values.items()}
        if shapes != given:
            wrong = sorted(name for name in shapes.keys() | given.keys() if shapes.get(name) != given.get(name))
            raise ValueError(
                f"{len(wrong)} tensors are not those that the model trains, the first {wrong[0]}: "
                f"{given.get(wrong[0], 'none')} in place of {shapes.get(wrong[0], 'none')}"
            )
        self.forget()
        self.tensors = {name: values[name].to(now[name].device, copy=True) for name in now}

    def forget(self) -> None:
        """Hold nothing."""
        self.tensors, self._left = {}, None

    def check(self) -> None:
        """Raise RuntimeError if other tensors are trained by now than those of which this holds copies."""
        self._same_names(self.trainable())

    @torch.no_grad()
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the model with the reference's tensors, without gradient."""
        return functional_call(self.model, self.tensors, args, kwargs)

    def _same_names(self, now: Mapping[str, Tensor]) -> None:
        if now.keys() != self.tensors.keys():
            changed = sorted(now.keys() ^ self.tensors.keys())
            raise RuntimeError(
                f"{len(changed)} weights were frozen or unfrozen during training, the first {changed[0]}: the "
                "reference holds copies of those that were trained at its start; freeze before train()"
            )
