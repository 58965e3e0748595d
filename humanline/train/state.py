"""States as dicts of tensors: what checkpoints are made of."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import torch
from torch import Tensor, nn

from humanline.train.durable import DamagedError


class Stateful(Protocol):
    """Something whose state is a dict of tensors."""

    def state(self) -> dict[str, Tensor]:
        """Return the state; the tensors may be live, they are written before anything changes."""

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Take a state over; raise DamagedError if it does not fit."""


class ModuleState:
    """Parameters, each once however often it is tied, and the buffers that a module saves."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def state(self) -> dict[str, Tensor]:
        """Return the live tensors."""
        saved = self.module.state_dict(keep_vars=True)
        buffers = {name: tensor for name, tensor in self.module.named_buffers() if name in saved}
        return {name: tensor.detach() for name, tensor in [*self.module.named_parameters(), *buffers.items()]}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Copy the tensors in."""
        mine = self.state()
        require_same(mine.keys(), state.keys())
        for name, tensor in mine.items():
            if tensor.shape != state[name].shape or tensor.dtype != state[name].dtype:
                raise DamagedError(f"{name} is {_kind(state[name])} in place of {_kind(tensor)}")
            tensor.copy_(state[name])


class OptimizerState:
    """What a torch optimizer keeps for each parameter, by the parameter's name."""

    def __init__(self, optimizer: torch.optim.Optimizer, module: nn.Module) -> None:
        self.optimizer = optimizer
        names = {id(parameter): name for name, parameter in module.named_parameters()}
        self.names = [names[id(p)] for group in optimizer.param_groups for p in group["params"]]

    def state(self) -> dict[str, Tensor]:
        """Return the live tensors, as `kind/parameter`."""
        kept = self.optimizer.state_dict()["state"]
        return {f"{kind}/{self.names[i]}": torch.as_tensor(t) for i, one in kept.items() for kind, t in one.items()}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Replace the optimizer's state; its settings stay those of the configuration."""
        places = {name: i for i, name in enumerate(self.names)}
        kept: dict[int, dict[str, Tensor]] = {}
        for name, tensor in state.items():
            kind, _, parameter = name.partition("/")
            if parameter not in places:
                raise DamagedError(f"the optimizer's state names an unknown parameter {parameter}")
            kept.setdefault(places[parameter], {})[kind] = tensor
        kinds = {frozenset(one) for one in kept.values()}
        if kept and (len(kept) < len(places) or len(kinds) > 1):
            raise DamagedError("the optimizer's state covers a part of the parameters only")
        self.optimizer.load_state_dict({"state": kept, "param_groups": self.optimizer.state_dict()["param_groups"]})


class RandomState:
    """torch's random numbers: the host's and the device's."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def state(self) -> dict[str, Tensor]:
        """Return the generators' states."""
        state = {"cpu": torch.get_rng_state()}
        if self.device.type in ("cuda", "mps"):
            state[self.device.type] = getattr(torch, self.device.type).get_rng_state()
        return state

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Set the generators; one of another kind of device is left out."""
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


def _kind(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"
