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

    @property
    def made(self) -> bool:
        """Return whether there is one."""
        return bool(self.tensors)

    def trainable(self) -> dict[str, Tensor]:
        """Return the model's own tensors of which this holds copies, by name; they are not copied."""
        return {name: one.detach() for name, one in self.model.named_parameters() if one.requires_grad}

    def take(self) -> None:
        """Become a copy of the model as it is now."""
        now = self.trainable()
        if self.made:
            self._same_names(now)
            for name, tensor in self.tensors.items():
                tensor.copy_(now[name])
        else:
            self.tensors = {name: tensor.clone() for name, tensor in now.items()}

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
        self.tensors = {name: values[name].to(now[name].device, copy=True) for name in now}

    def forget(self) -> None:
        """Hold nothing."""
        self.tensors = {}

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
