"""LoRA by peft: attached to a model in place, switched off to get its base, saved alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn

from humanline import _checks
from humanline.train.config import AdapterConfig
from humanline.train.fingerprint import base_hash
from humanline.train.quiet import quiet_import
from humanline.train.scorer import ModelError

_BASE = "base_settings.json"  # beside peft's files, which it leaves alone


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
        As `adapted_layers` does.
    """

    def __init__(self, model: Any, config: AdapterConfig, base: str) -> None:
        with quiet_import():
            from peft import LoraConfig, get_peft_model
            from peft.tuners.tuners_utils import BaseTunerLayer

        adapted_layers(model, config)
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
        self._layers = [layer for layer in self._wrapped.modules() if isinstance(layer, BaseTunerLayer)]

    def parameters(self) -> list[nn.Parameter]:
        """Return what is trained and saved."""
        return list(trained_parameters(self._wrapped).values())

    @contextmanager
    def off(self) -> Iterator[None]:
        """Let the model compute as if it had no adapter, for as long as the context lasts."""
        # peft's own switches say anew which weights are trained, and look through all modules of the model for it.
        switched = [layer for layer in self._layers if not layer.disable_adapters]
        try:
            for layer in switched:
                layer._disable_adapters = True
            if not all(layer.disable_adapters for layer in switched):
                raise RuntimeError("this version of peft does not let an adapter be switched off")
            yield
        finally:
            for layer in switched:
                layer._disable_adapters = False

    def save_pretrained(self, folder: Path) -> None:
        """Write the adapter in peft's format, weights as safetensors; the network is not asked for anything.

        Beside it lies a hash of the settings of its base (`refuse_other_base`).
        """
        self._wrapped.save_pretrained(folder, save_embedding_layers=False)
        facts = {"sha256": base_hash(self._wrapped.get_base_model())}
        (folder / _BASE).write_text(json.dumps(facts) + "\n", encoding="utf-8")


def base_name(path: str) -> str:
    """Return what an adapter's files shall call its base: a name on the hub, or the absolute path of a folder."""
    return path.removeprefix("hub:") if path.startswith("hub:") else str(Path(path).expanduser().absolute())


def linear_layers(model: Any) -> dict[str, Any]:
    """Return the linear layers of a model but its output head, by name; the model may be an outline."""
    from transformers.pytorch_utils import Conv1D

    head = model.get_output_embeddings()
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear | Conv1D) and module is not head
    }


def adapted_layers(model: Any, config: AdapterConfig) -> dict[str, Any]:
    """Return the linear layers that get additions, by name; the model may be an outline.

    Raises
    ------
    ModelError
        If a target is the end of no linear layer's name, or of that of the output head or an embedding: token
        log-probabilities are taken from the head's own weights, past an adapter.
    """
    linear = linear_layers(model)
    if config.targets is None:
        return linear
    head = model.get_output_embeddings()
    others = [name for name, module in model.named_modules() if module is head or isinstance(module, nn.Embedding)]
    ends = sorted({name.rpartition(".")[2] for name in linear})
    chosen: set[str] = set()
    problems = []
    for target in config.targets:
        named = {name for name in (*linear, *others) if name == target or name.endswith("." + target)}
        chosen |= named
        if named & set(others):
            problems.append(f"{target}: the output head and the embedding cannot have an adapter here")
        elif not named:
            problems.append(str(_checks.unknown(f"linear layer in {type(model).__name__}", target, ends)))
    if problems:
        raise ModelError(f"adapter.targets: {'; '.join(problems)}")
    return {name: layer for name, layer in linear.items() if name in chosen}


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


def refuse_other_base(folder: str | Path, model: Any) -> None:
    """Compare the settings of a model with those of the base that an adapter was trained on.

    Nothing is said where the folder does not tell them, as that of an adapter made by other software.

    Raises
    ------
    ModelError
        If they differ: the same tensors would fit, but compute something else.
    """
    path = Path(folder) / _BASE
    if not path.is_file():
        return
    try:
        trained_on = json.loads(path.read_text(encoding="utf-8"))["sha256"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{path} cannot be read: {type(error).__name__}: {error}") from error
    if trained_on != base_hash(model):
        raise ModelError(
            f"adapter {str(folder)!r} was trained on a model with other settings (config.json) than this base: give "
            f"the right base; if they differ in nothing that is computed with, remove {path.name} there"
        )
