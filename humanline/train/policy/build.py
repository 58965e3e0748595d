"""The policy of a run, as its configuration wants it: refused before its weights are read, or built.

Loading, adapters, precision, activation checkpointing and the layout of batches come together here and nowhere else:
training, its second process and the commands that sample call `checked_model` and `build_policy`, and `validate`, which
names all problems at once, the same `look_at_model`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch

from humanline.train.config import TrainConfig
from humanline.train.config.without_effect import without_effect
from humanline.train.data.render import Renderer
from humanline.train.data.run_data import renderer_of
from humanline.train.policy.adapter import Adapter, adapted_weights, base_name, describe_coverage
from humanline.train.policy.attention import refuse_paged
from humanline.train.policy.errors import ModelError
from humanline.train.policy.fused import fuse, refuse_missing_kernels, refuse_unfusable
from humanline.train.policy.head import logprob_function, refuse_softcap
from humanline.train.policy.in_order import sum_in_order
from humanline.train.policy.load import (
    TYPES,
    load_outline,
    load_tokenizer,
    load_weights,
    refuse_misfits,
    refuse_missing_quantizer,
    refuse_missing_weights,
)
from humanline.train.policy.logprobs import LogprobModel, refuse_unknown_head, softcap_of
from humanline.train.policy.optimizer import refuse_missing_package
from humanline.train.policy.packing import pack, refuse_unpackable, slower_without_kernel
from humanline.train.policy.precision import compute_in
from humanline.train.policy.shard import materialise, refuse_unshareable, shard
from humanline.train.policy.slices import empty_model, fill, sliceable_tensors, stand_ins


def device_checks(config: TrainConfig, device: torch.device) -> list[Callable[[], object]]:
    """Return calls that raise ValueError where device or packages cannot do what the configuration needs."""
    training = config.training
    return [
        lambda: refuse_slow_bf16(training.precision, device),
        lambda: refuse_missing_quantizer(config.kept_in),
        lambda: refuse_missing_package(config.optimizer, training.weights),
        lambda: logprob_function(training.logprobs, device=device, precision=training.precision),
        lambda: refuse_missing_kernels(training.layers, device),
    ]


def refuse_slow_bf16(precision: str, device: torch.device) -> None:
    """Raise ModelError for computing in bf16 on a GPU that has no arithmetic for it.

    Torch would make do, with products slower than those of float32.
    """
    if precision != "bf16" or device.type != "cuda" or torch.version.hip is not None:
        return
    major, minor = torch.cuda.get_device_capability(device)
    if major < 8:
        raise ModelError(
            "training.precision: bf16 needs a GPU with arithmetic for it (compute capability 8.0 or above: A100, H100 "
            f"and later); {torch.cuda.get_device_name(device)} has {major}.{minor}: set training.precision: float32, "
            "and training.weights, or train on another GPU"
        )


def outline_checks(
    config: TrainConfig, outline: Any, tokenizer: Any, device: torch.device | str, *, files: bool = True
) -> list[Callable[[], object]]:
    """Return calls that raise ValueError where a model does not fit the configuration, which takes no weights to see.

    Parameters
    ----------
    config : TrainConfig
    outline
        From `load_outline`.
    tokenizer
        None where there is none to look at.
    device : torch.device
        Where training would run.
    files : bool
        Whether the model's weight files are looked at too.
    """
    training = config.training
    checks: list[Callable[[], object]] = [
        lambda: refuse_misfits(config.model, outline, tokenizer, config.data.max_length),
        lambda: refuse_unknown_head(outline),
        lambda: refuse_softcap(training.logprobs, training.temperature, softcap_of(outline)),
    ]
    if files:
        checks.insert(0, lambda: refuse_missing_weights(config.model, outline))
    if training.sharding == "full":
        checks.append(lambda: refuse_unshareable(outline))
        if files and not config.model.startswith("hub:"):
            checks.append(lambda: sliceable_tensors(config.model, outline))
    if config.adapter is not None:
        checks.append(lambda adapter=config.adapter: adapted_weights(outline, adapter))  # type: ignore[misc]
    if training.padding == "free":
        checks.append(lambda: refuse_unpackable(config.model, outline, device))
    if config.rounds is not None and config.rounds.sampling.engine.kind == "continuous":
        checks.append(lambda: refuse_paged(outline))
    if training.layers == "liger":
        checks.append(lambda: refuse_unfusable(outline))
    return checks


def remarks_on(
    config: TrainConfig, outline: Any, renderer: Renderer | None, device: torch.device, processes: int
) -> list[str]:
    """Say what does nothing, beside other settings or on this model, and what is slower than it might be."""
    remarks = without_effect(config, processes)
    if config.training.padding == "free":
        slower = slower_without_kernel(outline, device, config.training.precision)
        remarks += [] if slower is None else [slower]
    if renderer is not None and config.data.date is not None and not renderer.dated:
        remarks.append(
            f"data.date ({config.data.date}) has no effect: "
            + (
                "data.template: plain writes no day"
                if config.data.template == "plain"
                else "this chat template writes no day"
            )
        )
    return remarks


@dataclass(frozen=True, slots=True)
class CheckedModel:
    """A run's model before its weights are read.

    Parameters
    ----------
    tokenizer
    outline
        The model on the meta device.
    renderer : Renderer
        The template path of the run.
    """

    tokenizer: Any
    outline: Any
    renderer: Renderer


def checked_model(config: TrainConfig, device: torch.device) -> CheckedModel:
    """Return tokenizer, outline and template path of a run's model, if nothing speaks against it.

    Raises
    ------
    ModelError, OptimizerError, LogprobsError
        If a package is missing, or the model cannot be read or does not fit the configuration or its tokenizer.
    ValueError
        As `Renderer` does.
    """
    tokenizer, outline, renderer = look_at_model(config, device, lambda what: contextlib.nullcontext())
    assert renderer is not None  # or a check has raised
    return CheckedModel(tokenizer, outline, renderer)


def look_at_model(
    config: TrainConfig, device: torch.device, about: Callable[[str], AbstractContextManager[None]]
) -> tuple[Any, Any, Renderer | None]:
    """Load all of a run's model but its weights, and make every check that can be made of it.

    Parameters
    ----------
    config : TrainConfig
    device : torch.device
    about : callable
        Gives the context of each load and check, by what that is about: "model", "device" or "template". Where it
        lets errors through the first one ends the look; where it keeps them, so that all are found, the rest goes on.

    Returns
    -------
    tokenizer, outline, renderer
        None each where its errors were kept.
    """
    tokenizer = outline = renderer = None
    with about("model"):
        tokenizer = load_tokenizer(config.model)
    for check in device_checks(config, device):
        with about("device"):
            check()
    with about("model"):
        outline = load_outline(config.model)
    for check in [] if outline is None else outline_checks(config, outline, tokenizer, device):
        with about("model"):
            check()
    if tokenizer is not None and (outline is None or tokenizer.eos_token is not None):  # else that was said
        with about("template"):
            renderer = renderer_of(config, tokenizer)
    return tokenizer, outline, renderer


def describe_adapter(config: TrainConfig, outline: Any) -> list[str]:
    """Say what a run's adapter changes of its model, and what not (`describe_coverage`); nothing where it has none."""
    if config.adapter is None:
        return []
    return [
        f"adapter: {line}"
        for line in describe_coverage(outline, config.adapter, config.kept_in, config.training.precision)
    ]


def build_policy(config: TrainConfig, device: torch.device | str = "cpu") -> tuple[LogprobModel, Adapter | None]:
    """Load the model of a run, whole, and make it what the configuration asks for.

    Parameters
    ----------
    config : TrainConfig
    device : torch.device
        Where it will run, and is: what is checked of it is then checked of that device's kernels.

    Returns
    -------
    policy : LogprobModel
        Its parameters that require a gradient are those to be trained.
    adapter : Adapter or None

    Raises
    ------
    ModelError
        As `load_weights`, `pack`, `Adapter`, `fuse` and `compute_in` do.
    LogprobsError
        As `logprob_function` does.
    """
    training = config.training
    _prepare(device)
    model = load_weights(config.model, dropout=training.dropout, weights=config.kept_in, compute=training.precision)
    adapter = outfit(model, config)
    policy = _policy(model, config, device).to(device)
    if training.precision != "float32":
        compute_in(policy, TYPES[training.precision])
    return policy, adapter


def build_sharded_policy(config: TrainConfig, device: torch.device) -> tuple[LogprobModel, Adapter | None]:
    """Build what `build_policy` does, shared out over the processes of a run, each of which reads its own rows.

    Raises
    ------
    ModelError, LogprobsError
        As `build_policy` does, and if the model cannot be shared out or its files not be read in slices.
    """
    _prepare(device)
    model = empty_model(config.model, dropout=config.training.dropout, dtype=TYPES[str(config.kept_in)])
    found = sliceable_tensors(config.model, model)
    with stand_ins(model):
        adapter = outfit(model, config)
    policy = _policy(model, config, device)
    shard(policy, device, precision=config.training.precision)
    fill(config.model, policy, found, materialise(policy, device))
    return policy, adapter


def _prepare(device: torch.device | str) -> None:
    """Let what is built for a GPU compute the same bits every time."""
    if torch.device(device).type == "cuda":
        sum_in_order()


def _policy(model: Any, config: TrainConfig, device: torch.device | str) -> LogprobModel:
    training = config.training
    if training.layers == "liger":  # not in `outfit`: a dry run, which has no numbers, is one of plain layers
        fuse(model)
    logprobs = logprob_function(training.logprobs, device=device, precision=training.precision)
    return LogprobModel(model, packed=training.padding == "free", logprobs=logprobs, temperature=training.temperature)


def outfit(model: Any, config: TrainConfig) -> Adapter | None:
    """Switch on, in place, what acts inside a model's passes; return its adapter, if it is to have one.

    Raises
    ------
    ModelError
        As `pack` and `Adapter` do.
    """
    training, adapter = config.training, None
    if training.padding == "free":
        pack(model)
    if config.adapter is not None:
        adapter = Adapter(model, config.adapter, base_name(config.model))
    if training.activation_checkpointing:
        enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
        enable({"use_reentrant": False})
    return adapter
