"""States as dicts of tensors: what checkpoints are made of.

Where the processes of a run share out a tensor, its state is a DTensor, and a state that is taken over gives each
process the rows it needs (`shares.Saved`).
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from humanline.system.files import DamagedError
from humanline.train.run.shares import Saved, Share, described, is_shard, place_of, share_of

_NONE = "none"  # the kind of what stands for a parameter without a state
_HELD = re.compile(r".*@\d+/\d+")  # a name of what one process holds, and which one that is


class Stateful(Protocol):
    """A part of a run whose state is a dict of tensors."""

    def state(self) -> dict[str, Tensor]:
        """Return the state; the tensors may be live, they are written before anything changes."""

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Take a state over, of whole tensors or `Saved`; raise DamagedError if it does not fit."""


class OfEach(Protocol):
    """A part of which each process has its own state, kept so that any number of processes can go on."""

    def state(self) -> dict[str, Tensor]:
        """Return the state of this process, as a Stateful does."""

    def load_states(self, states: Sequence[Mapping[str, Tensor]], rank: int) -> None:
        """Take over what this process, of that number, needs of the states of all that wrote a checkpoint.

        Where they are as many as now, that is its own; raise DamagedError if they do not fit. A state is read from the
        disk whenever it is asked for.
        """


def own_first(states: Sequence[Mapping[str, Tensor]], rank: int) -> Iterator[Mapping[str, Tensor]]:
    """Yield the states of all processes, the one of this number first, if there is one."""
    first = rank if rank < len(states) else 0
    yield states[first]
    for number in range(len(states)):
        if number != first:
            yield states[number]


@runtime_checkable
class Judging(Protocol):
    """A part whose state may be whole, and yet not fit for a run to go on from."""

    def refuse_state(self, state: Mapping[str, Tensor], updates: int) -> None:
        """Raise DamagedError if a run must not go on from a state after so many updates; nothing is taken over."""

    def renew(self, updates: int, others: Iterable[Stateful | OfEach]) -> None:
        """Once all states are taken over: give up what of it must be made again, here and in the others."""


class ModuleState:
    """Parameters that are trained, each once however often it is tied, and the buffers that a module saves."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def state(self) -> dict[str, Tensor]:
        """Return the live tensors."""
        saved = self.module.state_dict(keep_vars=True)
        buffers = {name: tensor for name, tensor in self.module.named_buffers() if name in saved}
        return {name: tensor.detach() for name, tensor in [*trained_parameters(self.module).items(), *buffers.items()]}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Copy the tensors in."""
        copy_in(self.state(), state)


def copy_in(mine: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> None:
    """Copy a state into tensors of the same names, of each the rows that this process holds.

    Raises
    ------
    DamagedError
        If it does not fit; then `mine` is as it was.
    """
    saved = Saved.of(state)
    require_same(mine.keys(), saved.keys())
    for name, tensor in mine.items():
        if (tuple(tensor.shape), tensor.dtype) != saved.kind(name):
            raise DamagedError(
                f"{name} is {described(*saved.kind(name))} in place of {described(tensor.shape, tensor.dtype)}"
            )
    with torch.no_grad():
        for name, tensor in mine.items():
            saved.fill(name, share_of(tensor))


class OptimizerState:
    """What a torch optimizer keeps for each parameter, by the parameter's name.

    A state that is a tensor made of others (8-bit codes and their scales) is written as these. Where processes share
    parameters out, states in blocks cannot be cut anew: each process writes its own as they are, under
    `kind/parameter@process/processes`.

    Parameters
    ----------
    optimizer
    rows : mapping
        What it updates, by the parameter's name.
    state_of : callable
        Makes of a parameter's name and a state that is as large as its rows what a checkpoint holds.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        rows: Mapping[str, nn.Parameter],
        state_of: Callable[[str, Tensor], Tensor],
    ) -> None:
        self.optimizer, self.state_of = optimizer, state_of
        names = {id(parameter): name for name, parameter in rows.items()}
        self.names = [names[id(parameter)] for _, parameter in self._places()]
        self.parameters = {name: state_of(name, parameter.detach()) for name, parameter in rows.items()}
        self._in_blocks = math.isfinite(getattr(optimizer, "block_size", math.inf))  # torchao's, of 8-bit states

    def state(self) -> dict[str, Tensor]:
        """Return the live tensors, as `kind/parameter`, or `kind:part/parameter`."""
        kept = self.optimizer.state_dict()["state"]
        # What no gradient has reached is named, so that a part that is lost is told from one that never was.
        left_out = [name for i, name in enumerate(self.names) if kept and i not in kept]
        state = {f"{_NONE}/{name}": torch.zeros(1, dtype=torch.uint8) for name in left_out}
        for i, one in kept.items():
            like: Any = self.parameters[self.names[i]]
            for kind, value in one.items():
                tensor = torch.as_tensor(value)
                for part, inner in _parts(tensor).items():
                    name = f"{kind}{part}/{self.names[i]}"
                    if not tensor.ndim:
                        state[name] = inner
                    elif self._in_blocks and is_shard(like):
                        state[f"{name}{_place(like)}"] = inner
                    else:
                        state[name] = inner if part else self.state_of(self.names[i], inner)
        return state

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Replace the optimizer's state; its settings stay those of the configuration."""
        saved, places = Saved.of(state), {name: i for i, name in enumerate(self.names)}
        kept: dict[int, dict[str, Tensor]] = {}
        without = 0
        for name in saved:
            kind, _, parameter = name.partition("/")
            if kind == _NONE and parameter in places:
                without += 1
                continue
            process = ""
            if held_by_one(name):
                parameter, _, process = parameter.rpartition("@")
            if parameter not in places:
                raise DamagedError(f"the optimizer's state names an unknown parameter {parameter}")
            if self._is_mine(name, kind, parameter, process):
                kept.setdefault(places[parameter], {})[kind] = self._rows(saved, name, parameter)
        for i, parts in kept.items():
            kept[i] = self._whole(i, parts)
        kinds = {frozenset(one) for one in kept.values()}
        if kept and (len(kept) + without < len(places) or len(kinds) > 1):
            raise DamagedError("the optimizer's state covers a part of the parameters only")
        for index, (group, weight) in enumerate(self._places()):
            if index in kept:  # load_state_dict would round float32 states to the type of bf16 weights
                on_device = group.get("fused") or group.get("capturable")
                self.optimizer.state[weight] = {
                    kind: tensor if kind == "step" and not on_device else tensor.to(weight.device)
                    for kind, tensor in kept[index].items()
                }

    def _places(self) -> list[tuple[dict[str, Any], nn.Parameter]]:
        """Return every parameter with its group, in the order of `names`."""
        return [(group, parameter) for group in self.optimizer.param_groups for parameter in group["params"]]

    def _is_mine(self, name: str, kind: str, parameter: str, process: str) -> bool:
        """Return whether this process takes over a saved tensor; raise DamagedError if nobody can."""
        like: Any = self.parameters[parameter]
        cut = _place(like) if is_shard(like) else ""
        then, now = process.partition("/")[2], cut.partition("/")[2]
        if (process or ":" in kind) and then != now:
            raise DamagedError(
                f"{name}: 8-bit states are in blocks of what one process holds, which cannot be cut anew; they were "
                f"written {_cut_over(then)} and are to be read {_cut_over(now)}: go on with training.sharding and the "
                "number of processes as they were"
            )
        return not process or f"@{process}" == cut

    def _rows(self, saved: Saved, name: str, parameter: str) -> Tensor:
        """Return what this process holds of a saved tensor: its rows of one that is cut as its parameter is."""
        whole, dtype = saved.kind(name)
        like = self.parameters[parameter]
        if not is_shard(like) or whole != tuple(like.shape):
            return saved[name]
        share = share_of(like)
        rows = torch.empty(share.rows.shape, dtype=dtype)
        saved.fill(name, Share(rows, share.start, whole))
        return rows

    def _whole(self, index: int, parts: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return a parameter's state with tensors that are made of others put together again."""
        whole = {kind: tensor for kind, tensor in parts.items() if ":" not in kind}
        inner: dict[str, dict[str, Tensor]] = {}
        for name, tensor in parts.items():
            kind, colon, part = name.partition(":")
            if colon:
                inner.setdefault(kind, {})[part] = tensor
        if inner:  # only the optimizer knows how to make an empty one
            _, parameter = self._places()[index]
            make: Any = self.optimizer
            for kind, tensors in inner.items():
                empty = make._new_buffer(parameter, kind == "exp_avg")
                copy_in({part.removeprefix(":"): t for part, t in _parts(empty).items()}, tensors)
                whole[kind] = empty
        return whole


def held_by_one(name: str) -> bool:
    """Return whether a tensor of a shared state belongs to one process, so that each has another of this kind."""
    return _HELD.fullmatch(name) is not None


def _place(sharded: Any) -> str:
    rank, ranks = place_of(sharded)
    return f"@{rank + 1}/{ranks}"


def _cut_over(ranks: str) -> str:
    return f"sharded over {ranks} processes" if ranks else "whole"


def _parts(tensor: Tensor) -> dict[str, Tensor]:
    """Return the plain tensors that a tensor is made of, each under `:name`; a plain one under no name."""
    if not hasattr(tensor, "__tensor_flatten__"):
        return {"": tensor}
    names, _ = tensor.__tensor_flatten__()
    return {f":{name}": getattr(tensor, name) for name in names}


class RandomState:
    """torch's random numbers: the host's and the device's.

    Parameters
    ----------
    device : torch.device
    seed : int
        Of the run. A process that no process of its number went before begins with (seed, number).
    """

    def __init__(self, device: torch.device, seed: int) -> None:
        self.device, self.seed = device, seed

    def state(self) -> dict[str, Tensor]:
        """Return the generators' states."""
        state = {"cpu": torch.get_rng_state()}
        if self.device.type in ("cuda", "mps"):
            state[self.device.type] = getattr(torch, self.device.type).get_rng_state()
        return state

    def begin(self, rank: int) -> None:
        """Give a process that is not the first one numbers of its own, or dropout would be the same in all."""
        if rank:
            torch.manual_seed(int.from_bytes(hashlib.blake2b(f"{self.seed} {rank}".encode(), digest_size=7).digest()))

    def load_states(self, states: Sequence[Mapping[str, Tensor]], rank: int) -> None:
        """Set the generators; one of another kind of device is left out."""
        if rank >= len(states):
            self.begin(rank)
            return
        state = states[rank]
        require_same({"cpu"}, state.keys() & {"cpu"})
        torch.set_rng_state(state["cpu"])
        if self.device.type != "cpu" and self.device.type in state:
            getattr(torch, self.device.type).set_rng_state(state[self.device.type])


def require_same(expected: Iterable[str], got: Iterable[str]) -> None:
    """Raise DamagedError, with the first few names, unless both hold the same names."""
    missing, foreign = sorted(set(expected) - set(got)), sorted(set(got) - set(expected))
    if missing or foreign:
        parts = [f"{what} {', '.join(names[:4])}" for what, names in (("lacks", missing), ("has", foreign)) if names]
        raise DamagedError(f"it {' and '.join(parts)}")


def as_dtensor(rows: Tensor, like: DTensor) -> DTensor:
    """Return this process's rows of a tensor as a part of the whole, which is laid out like another one."""
    whole: DTensor = DTensor.from_local(
        rows, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
    )
    return whole


def trained_parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that training changes, by name: all of them, or those of the adapter."""
    return {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
