"""A policy whose weights, gradients and optimizer states are shared out over the processes of a run: torch's FSDP2.

Each decoder layer is a group, and the `LogprobModel` over them is the root, so that the chunked head sees whole
weights, tied or not. A process keeps its rows of every parameter (dimension 0). A pass gathers one group after the
other, and lets go of it again; only the root stays whole from a forward pass to its backward pass. A pass without
gradient has none, so that `let_go` must follow it: until then the root's parameters look whole and go stale at the
update.

Every pass of the policy is a collective: all processes make as many of them, in the same order.

accelerate's FSDP plugin is not used: under bf16 it returns bf16 log-probabilities and reduces gradients in bf16, and
where no layer classes are named it gathers the whole model at once.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor

from humanline.train.policy.errors import ModelError
from humanline.train.policy.layers import decoder_layers
from humanline.train.policy.logprobs import LogprobModel
from humanline.train.policy.weight_files import first_few
from humanline.train.run.shares import share_of
from humanline.train.run.state import as_dtensor, trained_parameters


def refuse_unshareable(model: Any) -> None:
    """Refuse a model that cannot be shared out; it may be an outline.

    Raises
    ------
    ModelError
        If its decoder layers cannot be found, if a parameter is a single number, which has no rows, or if one belongs
        to several layers, or to one and to what is outside: each group would train one of its own.
    """
    layers = decoder_layers(model)
    inside = {module for layer in layers for module in layer.modules()}
    outside = {one for module in model.modules() if module not in inside for one in module.parameters(recurse=False)}
    groups = Counter(id(one) for group in [*(layer.parameters() for layer in layers), outside] for one in group)
    for why, names in (
        ("single numbers, which have no rows", [name for name, one in model.named_parameters() if not one.ndim]),
        ("parts of several layers", [name for name, one in model.named_parameters() if groups[id(one)] > 1]),
    ):
        if names:
            raise ModelError(
                f"{type(model).__name__}: its weights cannot be shared out over processes: {first_few(names)} are "
                f"{why}; set training.sharding: none"
            )


def shard(policy: LogprobModel, device: torch.device, *, precision: str) -> None:
    """Share out the parameters of a policy, in place; all processes call this.

    Parameters
    ----------
    policy : LogprobModel
        Its parameters may be on the meta device: then no process ever holds more than its shards (`materialise`).
    device : torch.device
        Where training runs.
    precision : {"float32", "bf16"}
        What groups are gathered and computed in. Gradients are averaged over the processes in float32.

    Raises
    ------
    ModelError
        If the decoder layers cannot be found; what else speaks against it `refuse_unshareable` finds.
    """
    narrow = torch.bfloat16 if precision == "bf16" else None
    how = MixedPrecisionPolicy(param_dtype=narrow, reduce_dtype=torch.float32)
    mesh = _mesh(device)
    for layer in decoder_layers(policy.model):
        fully_shard(layer, mesh=mesh, mp_policy=how)
    fully_shard(policy, mesh=mesh, mp_policy=how)
    register_fsdp_forward_method(policy, "own_logits")


def materialise(policy: LogprobModel, device: torch.device) -> set[str]:
    """Give the shards of a policy on the meta device memory, and return the names of those that have no numbers yet.

    Buffers, and parameters that are not on the meta device, keep theirs.
    """
    kept = {
        name: tensor.detach().clone()
        for name, tensor in [*policy.named_parameters(), *policy.named_buffers()]
        if not tensor.is_meta
    }
    tied = _tied(policy)
    policy.to_empty(device=device)
    for names in tied:
        first = policy.get_parameter(names[0])
        for name in names[1:]:
            place, _, last = name.rpartition(".")
            policy.get_submodule(place)._parameters[last] = first
    with torch.no_grad():
        for name, tensor in [*policy.named_parameters(), *policy.named_buffers()]:
            if name in kept:
                share_of(tensor).rows.copy_(share_of(kept[name]).rows)
    return {name for name, _ in policy.named_parameters(remove_duplicate=False) if name not in kept}


def anywhere(fact: bool, policy: nn.Module) -> bool:
    """Return in all processes of a sharded policy whether something is so in one of them."""
    device = next(policy.parameters()).device
    number = torch.tensor(float(fact), device=device)
    torch.distributed.all_reduce(number, torch.distributed.ReduceOp.MAX)
    return bool(number.item())


def whole_tensors(tensors: Mapping[str, Tensor], *, keep: bool) -> dict[str, Tensor]:
    """Return tensors with all of their rows, one gathered after the other; all processes call this alike.

    Parameters
    ----------
    tensors : mapping of name to tensor
        Shared out or not, the same in all processes.
    keep : bool
        Whether this process wants them; where it does not it gets none, and holds no more than one at a time.

    Returns
    -------
    dict of name to tensor
        In host memory; what was there whole shares its memory.
    """
    found = {}
    for name, tensor in tensors.items():
        rows = tensor.detach()
        rows = rows.full_tensor() if isinstance(rows, DTensor) else rows
        if keep:
            found[name] = rows.cpu().contiguous()
    return found


class Shards:
    """Every process holds its rows of a policy (`humanline.train.policy.spread.Spread`).

    The optimizer works on plain parameters that are these rows, in the same memory: an update is no collective, and
    computes what it computes on whole weights. Gradients travel at every micro-batch; otherwise each process would
    hold all of them, whole.

    Parameters
    ----------
    policy : LogprobModel
        After `shard`, with its numbers in place, and after a pass: the first one may move rows to other memory.
    """

    def __init__(self, policy: LogprobModel) -> None:
        self.policy = self.wrapped = policy
        self.trained: dict[str, Any] = dict(trained_parameters(policy))
        self.rows = {name: nn.Parameter(share_of(parameter).rows) for name, parameter in self.trained.items()}

    def accumulating(self, last: bool) -> AbstractContextManager[Any]:
        """Give the context of a micro-batch's passes, which is none."""
        return contextlib.nullcontext()

    def clip(self, limit: float) -> Tensor:
        """Hand gradients to the rows that the optimizer updates, scale them down, and return the norm that they had."""
        for name, parameter in trained_parameters(self.policy).items():
            rows = self.rows[name]
            if share_of(parameter).rows.data_ptr() != rows.data_ptr():
                raise RuntimeError(f"{name}: what the optimizer updates is no longer what the policy computes with")
            rows.grad = None if parameter.grad is None else share_of(parameter.grad).rows
            parameter.grad = None
        gradients = [rows.grad for rows in self.rows.values() if rows.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        if torch.distributed.get_world_size() > 1:
            squares = norm.double().square()
            torch.distributed.all_reduce(squares)
            norm = squares.sqrt().to(norm.dtype)
        torch._foreach_mul_(gradients, torch.clamp(limit / (norm + 1e-6), max=1.0))
        return norm

    def without_gradient(self, weights: dict[str, Tensor] | None = None) -> Callable[..., Tensor]:
        """Return the policy's pass, after which its parameters are let go of: the next pass gathers them anew.

        Other weights take the place of the policy's own for the length of it; that is no communication.
        """

        def forward(*inputs: Any) -> Tensor:
            with contextlib.nullcontext() if weights is None else self._swapped(weights):
                try:
                    logprobs: Tensor = self.policy(*inputs)
                finally:
                    let_go(self.policy)
            return logprobs

        return forward

    def state_of(self, name: str, rows: Tensor) -> Tensor:
        """Return rows as a part of the whole tensor, which is like the parameter of that name."""
        return as_dtensor(rows, self.trained[name])

    @contextlib.contextmanager
    def _swapped(self, others: dict[str, Tensor]) -> Iterator[None]:
        self._swap(others)
        try:
            yield
        finally:
            self._swap(others)

    @torch.no_grad()
    def _swap(self, others: dict[str, Tensor]) -> None:
        for name, rows in self.rows.items():
            mine = rows.clone()
            rows.copy_(others[name])
            others[name].copy_(mine)


def let_go(policy: nn.Module) -> None:
    """Let go of parameters that a pass without gradient has gathered; nothing is done if the policy is not sharded."""
    if isinstance(policy, FSDPModule):
        policy.reshard()


_ALONE: list[Any] = []  # the group of a process that shares with nobody


def leave_alone() -> None:
    """End the group that `shard` has made of one process alone, if it has."""
    if _ALONE and torch.distributed.is_initialized() and torch.distributed.group.WORLD is _ALONE[0]:
        torch.distributed.destroy_process_group()
    _ALONE.clear()


def _mesh(device: torch.device) -> Any:
    """Return all processes in a row; one process alone becomes a group of its own (`leave_alone`)."""
    if not torch.distributed.is_initialized():
        backend = "nccl" if device.type == "cuda" else "gloo"
        alone: Any = torch.distributed.HashStore()  # type: ignore[attr-defined]
        torch.distributed.init_process_group(backend, store=alone, rank=0, world_size=1)
        _ALONE.append(torch.distributed.group.WORLD)
    return init_device_mesh(device.type, (torch.distributed.get_world_size(),))


def _tied(module: nn.Module) -> list[list[str]]:
    """Return the names of each parameter that has several."""
    names: dict[int, list[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return [several for several in names.values() if len(several) > 1]
