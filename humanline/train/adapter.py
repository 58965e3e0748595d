"""LoRA by peft: attached to a model in place, switched off to get its base, saved alone."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from torch import nn

from humanline import _checks
from humanline.train.config import AdapterConfig
from humanline.train.quiet import quiet_import
from humanline.train.scorer import ModelError


class Adapter:
    """The low-rank additions to a model's linear layers: all that is trained and saved of it.

    Parameters
    ----------
    model : a causal language model of transformers
        Changed in place: its own weights are frozen, and the layers that `targets` names get additions. The second
        factor of each starts at 0, so that the model computes what it did before.
    config : AdapterConfig
    base : str
        Where the model comes from, for the files.

    Raises
    ------
    ModelError
        As `refuse_targets` does.
    """

    def __init__(self, model: Any, config: AdapterConfig, base: str) -> None:
        with quiet_import():
            from peft import LoraConfig, get_peft_model

        refuse_targets(model, config)
        lora = LoraConfig(
            task_type="CAUSAL_LM",
            r=config.rank,
            lora_alpha=config.alpha,
            lora_dropout=config.dropout,
            target_modules="all-linear" if config.targets is None else list(config.targets),
        )
        with quiet_import():  # of torchao, of which peft asks whether there is one
            self._wrapped = get_peft_model(model, lora)  # adapter weights are float32, whatever the model's are
        self._wrapped.peft_config["default"].base_model_name_or_path = base

    def parameters(self) -> list[nn.Parameter]:
        """Return what is trained and saved."""
        return list(trained_parameters(self._wrapped).values())

    def off(self) -> AbstractContextManager[None]:
        """Return a context in which the model computes as if it had no adapter."""
        context: AbstractContextManager[None] = self._wrapped.disable_adapter()
        return context

    def save_pretrained(self, folder: Path) -> None:
        """Write the adapter in peft's format, weights as safetensors; the network is not asked for anything."""
        self._wrapped.save_pretrained(folder, save_embedding_layers=False)


def base_name(path: str) -> str:
    """Return what an adapter's files shall call its base: a name on the hub, or the absolute path of a folder."""
    return path.removeprefix("hub:") if path.startswith("hub:") else str(Path(path).expanduser().absolute())


def refuse_targets(model: Any, config: AdapterConfig) -> None:
    """Look whether every target is there to be adapted; the model may be an outline.

    Raises
    ------
    ModelError
        If a target is the end of no linear layer's name, or of that of the output head or an embedding: token
        log-probabilities are taken from the head's own weights, past an adapter.
    """
    if config.targets is None:
        return
    from transformers.pytorch_utils import Conv1D

    head = model.get_output_embeddings()
    linear = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear | Conv1D)}
    others = {name: module for name, module in model.named_modules() if isinstance(module, nn.Embedding)}
    ends = sorted({name.rpartition(".")[2] for name, module in linear.items() if module is not head})
    problems = []
    for target in config.targets:

        def named(name: str, target: str = target) -> bool:
            return name == target or name.endswith("." + target)

        if any(named(name) for name, module in (linear | others).items() if module is head or name in others):
            problems.append(f"{target}: the output head and the embedding cannot have an adapter here")
        elif not any(named(name) for name in linear):
            problems.append(str(_checks.unknown(f"linear layer in {type(model).__name__}", target, ends)))
    if problems:
        raise ModelError(f"adapter.targets: {'; '.join(problems)}")


def trained_parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that training changes, by name: all of them, or those of the adapter."""
    return {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}


def adapter_base(folder: str | Path) -> str | None:
    """Return what the files of an adapter say its base model is; None where the folder holds no adapter.

    Raises
    ------
    ModelError
        If its adapter_config.json cannot be read.
    """
    path = Path(folder) / "adapter_config.json"
    if not path.is_file():
        return None
    try:
        base = json.loads(path.read_text(encoding="utf-8"))["base_model_name_or_path"]
        if not isinstance(base, str):
            raise ValueError("base_model_name_or_path names no model")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{path} cannot be read: {type(error).__name__}: {error}") from error
    return base
