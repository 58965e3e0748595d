"""Attention on a GPU whose gradients are the same bits every time: without it no run could be gone on with exactly.

In their backward pass torch's fast kernels add up a query's gradient over blocks of keys in whatever order threads
finish, unless `torch.use_deterministic_algorithms` is on. On for a whole run, that refuses other operations of models
and of sampling; here it is on from the moment a backward pass reaches the result of an attention until it has left its
inputs. Forward passes are the same bits in any case, but for kernels of cuDNN, which may be others where no gradient
is wanted and have no fixed order either: they are switched off.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
_BEFORE: list[int] = []  # what was on when a backward pass reached an attention that it has not left yet


def in_order(attend: Callable[..., Tensor], query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Return the attention of queries, keys and values, with a backward pass that sums in a fixed order.

    Parameters
    ----------
    attend : callable
        Computes it from the three.
    query, key, value : tensors

    Returns
    -------
    tensor
        The same bits as without.
    """
    if not torch.is_grad_enabled() or not any(x.requires_grad for x in (query, key, value)):
        return attend(query, key, value)
    result: Tensor = _Entered.apply(attend(*_Left.apply(query, key, value)))  # type: ignore[no-untyped-call]
    return result


@contextlib.contextmanager
def put_back() -> Iterator[None]:
    """Put back, at the end of the context, what was on before a backward pass that failed within an attention."""
    try:
        yield
    finally:
        if _BEFORE:
            torch.set_deterministic_debug_mode(_BEFORE[0])
            _BEFORE.clear()


@functools.cache
def sum_in_order() -> None:
    """Let every model of transformers that runs with torch's attention (`sdpa`) in this process do so on GPUs."""
    from transformers import AttentionInterface

    # Where no fast kernel fits, attention is plain products, which torch lets nobody make in order without this; it is
    # read at a process's first product on a GPU. So much is set aside on new GPUs anyway (32 MiB).
    os.environ.setdefault(WORKSPACE, ":4096:8")
    torch.backends.cuda.enable_cudnn_sdp(False)
    plain = AttentionInterface()["sdpa"]

    def ordered(module: Any, query: Tensor, key: Tensor, value: Tensor, *args: Any, **options: Any) -> Any:
        """Attend as `sdpa` does."""
        if not query.is_cuda:
            return plain(module, query, key, value, *args, **options)
        return in_order(lambda *inputs: plain(module, *inputs, *args, **options)[0], query, key, value), None

    AttentionInterface.register("sdpa", ordered)


class _Entered(torch.autograd.Function):
    """The identity; a backward pass that goes through it is about to enter an attention."""

    @staticmethod
    def forward(ctx: Any, output: Tensor) -> Tensor:
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        _BEFORE.append(torch.get_deterministic_debug_mode())
        torch.set_deterministic_debug_mode("error")
        return grad


class _Left(torch.autograd.Function):
    """The identity; a backward pass that goes through it has left an attention."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return query.view_as(query), key.view_as(key), value.view_as(value)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        torch.set_deterministic_debug_mode(_BEFORE.pop())
        return grads
