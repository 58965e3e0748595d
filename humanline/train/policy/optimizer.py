"""AdamW in the precision that is asked for: torch's own, or torchao's for bf16 weights and 8-bit states."""

from __future__ import annotations

import contextlib
import importlib.util
import math
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from humanline.system.imports import quiet
from humanline.system.install import install
from humanline.train.config.run import OptimizerConfig


class OptimizerError(ValueError):
    """An optimizer that cannot be made here."""


def refuse_missing_package(config: OptimizerConfig, weights: str) -> None:
    """Raise OptimizerError if the optimizer needs torchao and it is not installed."""
    if (weights == "bf16" or config.states == "8bit") and importlib.util.find_spec("torchao") is None:
        what = "training.weights: bf16" if weights == "bf16" else "optimizer.states: 8bit"
        raise OptimizerError(f"{what} needs torchao: {install('low-memory')}")


def make_optimizer(parameters: Iterable[nn.Parameter], config: OptimizerConfig, weights: str) -> torch.optim.Optimizer:
    """Return AdamW over the parameters.

    Parameters
    ----------
    parameters : iterable of Parameter
    config : OptimizerConfig
    weights : {"float32", "bf16"}
        The type of the parameters. Updates of bf16 ones are rounded stochastically: up or down with the probabilities
        that make the result right on average, where rounding to the nearest would lose nearly all of them.

    Raises
    ------
    OptimizerError
        As `refuse_missing_package` does.
    """
    settings: dict[str, Any] = {
        "lr": config.lr,
        "betas": (config.adam_beta1, config.adam_beta2),
        "eps": config.adam_eps,
        "weight_decay": config.weight_decay,
    }
    if weights == "float32" and config.states == "float32":
        return torch.optim.AdamW(parameters, fused=True, **settings)  # no temporaries the size of the weights
    refuse_missing_package(config, weights)
    with quiet():
        from torchao.optim import AdamW8bit, _AdamW

    class WithoutCompiler(torch.optim.Optimizer):
        """The step of torchao, which compiles itself, also where no compiler need be: on the CPU."""

        def step(self, closure: Any = None) -> Any:
            on_cpu = all(p.device.type == "cpu" for group in self.param_groups for p in group["params"])
            stance = torch.compiler.set_stance("force_eager") if on_cpu else contextlib.nullcontext()
            with stance:
                return super().step(closure)

        def _new_buffer(self, parameter: Tensor, signed: bool) -> Tensor:
            """Make a state: one that is not in 8 bits, as those of small tensors, could not decay in bf16."""
            made: Tensor = super()._new_buffer(parameter, signed)  # type: ignore[misc]
            return made if hasattr(made, "__tensor_flatten__") else made.float()

    base = AdamW8bit if config.states == "8bit" else _AdamW
    kind: Any = type(base.__name__.strip("_"), (WithoutCompiler, base), {})
    optimizer: torch.optim.Optimizer = kind(parameters, bf16_stochastic_round=weights == "bf16", **settings)
    return optimizer


@contextlib.contextmanager
def same_rounding(seed: int, step: int, weights: str, device: torch.device) -> Iterator[None]:
    """Let all processes round the update of a step alike, whatever random numbers they have drawn for themselves."""
    if weights != "bf16":
        yield
        return
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed((1_000_003 * seed + step) % 2**63)
        yield


def lr_of_step(config: OptimizerConfig, step: int, steps: int) -> float:
    """Return the learning rate of a step (0, 1, ...) of a run of so many.

    With w = round(warmup_fraction * steps): lr * (step + 1) / (w + 1) up to step w, which has lr; from there on
    lr * f((step - w) / (steps - w)), where f(x) is 1, 1 - x or (1 + cos(pi x)) / 2.

    Notes
    -----
    The two that fall are those of transformers (`get_linear_schedule_with_warmup`, `get_cosine_schedule_with_warmup`),
    but that the warm-up begins one step further: no update is made at a rate of 0.
    """
    warmup = round(config.warmup_fraction * steps)
    rate = config.lr * min(1.0, (step + 1) / (warmup + 1))
    if config.schedule == "constant" or step <= warmup:
        return rate
    done = (step - warmup) / (steps - warmup)
    return rate * (1 - done if config.schedule == "linear" else (1 + math.cos(math.pi * done)) / 2)


def set_lr(optimizer: Any, lr: float) -> None:
    """Set the learning rate of all parameters."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):  # which a compiled step must go on seeing
            group["lr"].fill_(lr)
        else:
            group["lr"] = lr
