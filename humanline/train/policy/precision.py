"""Computing in a narrower type than weights are kept in: with copies of them that last no longer than a pass.

`training.precision: bf16` is this and nothing else. Each decoder layer, and the rest of the policy as a whole (the
embedding, the last norm, the output head), is a group: when its pass begins its floating-point parameters are copied,
its floating-point inputs are cast, and what it computes has their type, the sum that runs through all layers included.
A copy is part of the graph: the gradient that reaches it is rounded to its type once a pass, all uses of the weight
together, and added to the weight's own in the type of the weight. What the backward pass needs of copies is kept by the
graph, under activation checkpointing until the layer's pass ends. Torch's `fully_shard` with a MixedPrecisionPolicy
does the same with groups that are gathered, so that one device and many compute the same bits. Passes without gradient
that follow each other share their copies (`SharedCopies`), where these fit in the place of gradients.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from humanline.train.policy.layers import decoder_layers
from humanline.train.policy.logprobs import LogprobModel
from humanline.train.policy.switched import Switched, switched_off

_CHECKPOINT = "_gradient_checkpointing_func"  # under this name transformers keeps what checkpoints a module


def compute_in(policy: LogprobModel, dtype: torch.dtype) -> None:
    """Let a policy compute with copies of its weights, in a type that its weights need not have.

    Adapters and activation checkpointing must be there already. Buffers and quantised weights are left as they are,
    and weights that have the type are used themselves. Between passes, and after an error in one, the policy's
    parameters are those that they were.

    Parameters
    ----------
    policy : LogprobModel
        Changed in place: its `forward` and `own_logits`, and the `forward` of its decoder layers.
    dtype : torch.dtype
        A floating-point type.

    Raises
    ------
    ModelError
        If the layers cannot be found (`decoder_layers`).
    """
    inside: set[nn.Module] = set()
    for layer in decoder_layers(policy.model):
        modules = list(layer.modules())
        inside |= set(modules)
        vars(layer)["forward"] = _InCopies(layer.forward, modules, dtype)
        for module in modules:
            if _CHECKPOINT in vars(module):
                vars(module)[_CHECKPOINT] = functools.partial(_checkpointed, vars(module)[_CHECKPOINT], modules, dtype)
    rest = [module for module in policy.modules() if module not in inside]
    for name in ("forward", "own_logits"):
        vars(policy)[name] = _InCopies(getattr(policy, name), rest, dtype)


def as_kept(model: nn.Module) -> contextlib.AbstractContextManager[None]:
    """Let the layers of a policy's model compute in the type of their weights for as long as the context lasts."""
    return switched_off(model, _InCopies)


@contextlib.contextmanager
def narrowed(model: nn.Module, dtype: torch.dtype) -> Iterator[None]:
    """Put copies in another type in the place of all of a model's weights for as long as the context lasts.

    For sampling: hundreds of passes without gradient share the copies, in whatever thread they run. The weights stay
    where they are, so that this takes the memory of the copies on top, 2 bytes a weight in bf16; none for weights
    that have the type.

    Parameters
    ----------
    model : nn.Module
    dtype : torch.dtype
        A floating-point type.
    """
    with torch.no_grad():
        copies = _copies(model.modules(), dtype)
    with _in_place(copies):
        yield


class SharedCopies:
    """Copies of a policy's weights that passes without gradient share, in place of making them in every pass.

    They are made in the first such pass, made again when a weight has changed, and there until `drop`: where gradients
    will be, which are no smaller.

    Parameters
    ----------
    policy : LogprobModel
    dtype : torch.dtype
        What it computes in (`compute_in`).
    """

    def __init__(self, policy: nn.Module, dtype: torch.dtype) -> None:
        self.policy, self.dtype = policy, dtype
        self._copies: _Copies = []
        self._of: list[tuple[int, int]] = []

    @classmethod
    def of(cls, policy: nn.Module) -> SharedCopies | None:
        """Return them for a policy after `compute_in`; None where there is none, or its gradients are smaller."""
        function = vars(policy).get("forward")
        if not isinstance(function, _InCopies):
            return None
        floating = [one for one in policy.parameters() if one.is_floating_point()]
        copied = sum(one.numel() for one in floating if one.dtype != function.dtype) * function.dtype.itemsize
        gradients = sum(one.nbytes for one in floating if one.requires_grad)
        return cls(policy, function.dtype) if fit_for_gradients(copied, gradients) else None

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """Put the copies in the place of the weights for as long as the context lasts."""
        of = [(weight.data_ptr(), weight._version) for weight in self.policy.parameters()]
        if of != self._of:
            self.drop()
            with torch.no_grad():
                self._copies, self._of = _copies(self.policy.modules(), self.dtype), of
        with _in_place(self._copies):
            yield

    def drop(self) -> None:
        """Let go of the copies."""
        self._copies, self._of = [], []


def fit_for_gradients(copies: int, gradients: int) -> bool:
    """Return whether so many bytes of copies can be there while gradients are not, and a step not take more."""
    return copies <= gradients


class _InCopies(Switched):
    """A function of a group of modules, in the course of which their parameters are copies in another type."""

    def __init__(self, function: Callable[..., Any], modules: Iterable[nn.Module], dtype: torch.dtype) -> None:
        super().__init__(function)
        self.dtype = dtype
        self.modules = [module for module in modules if module._parameters]

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Call the function on inputs in the other type."""
        if not self.on:
            return self.own(*args, **options)
        args, options = _cast(args, self.dtype), _cast(options, self.dtype)
        with _in_place(_copies(self.modules, self.dtype)):
            return self.own(*args, **options)


def _checkpointed(
    checkpoint: Callable[..., Any],
    modules: list[nn.Module],
    dtype: torch.dtype,
    function: Callable[..., Any],
    *args: Any,
    **options: Any,
) -> Any:
    """Checkpoint a function that makes its copies itself: they are made again where it is computed again.

    Some versions of transformers checkpoint a layer's call, its `forward` included, others what its class calls
    `forward`, from which the copies made around that are gone by then. Where they are there this makes none.
    """
    return checkpoint(_InCopies(function, modules, dtype), *args, **options)


_Copies = list[tuple[nn.Module, str, Tensor, Tensor]]  # where, under which name, the weight and its copy


def _copies(modules: Iterable[nn.Module], dtype: torch.dtype) -> _Copies:
    """Return copies of modules' own floating-point parameters that have another type; of tied ones, the same copy."""
    copies: dict[int, Tensor] = {}
    found: _Copies = []
    for module in modules:
        for name, weight in module._parameters.items():
            if weight is None or not weight.is_floating_point() or weight.dtype == dtype:
                continue
            if id(weight) not in copies:
                copy = weight.to(dtype)
                # Of what has no gradient peft registers it, which takes a parameter.
                copies[id(weight)] = copy if weight.requires_grad else nn.Parameter(copy, requires_grad=False)
            found.append((module, name, weight, copies[id(weight)]))
    return found


@contextlib.contextmanager
def _in_place(copies: _Copies) -> Iterator[None]:
    try:
        for module, name, _, copy in copies:
            module._parameters[name] = copy  # type: ignore[assignment]
        yield
    finally:
        for module, name, weight, _ in copies:
            module._parameters[name] = weight  # type: ignore[assignment]


def _cast(value: Any, dtype: torch.dtype) -> Any:
    """Return a value with the floating-point tensors in it, and in the tuples, lists and dicts in it, cast."""
    if isinstance(value, Tensor):
        return value.to(dtype) if value.is_floating_point() else value
    if type(value) in (tuple, list):
        return type(value)(_cast(one, dtype) for one in value)
    if type(value) is dict:
        return {name: _cast(one, dtype) for name, one in value.items()}
    return value
