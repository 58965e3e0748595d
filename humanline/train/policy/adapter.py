"""LoRA by peft: attached to a model in place, switched off to get its base, saved alone."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from humanline import _checks
from humanline.system.imports import quiet
from humanline.system.paths import absolute_utf8
from humanline.train.config.run import AdapterConfig
from humanline.train.policy.errors import ModelError
from humanline.train.policy.told_apart import weights_digest
from humanline.train.run.fingerprint import base_hash
from humanline.train.run.state import trained_parameters

_BASE = "base_settings.json"  # beside peft's files, which it leaves alone


class Adapter:
    """The low-rank additions to a model's linear layers and experts: all that is trained and saved of it.

    Parameters
    ----------
    model : a causal language model of transformers
        Changed in place: its own weights are frozen, and those that `targets` names get additions. One factor of each
        starts at 0, so that the model computes what it did before.
    config : AdapterConfig
    base : str
        Where the model comes from, for the files.

    Raises
    ------
    ModelError
        As `adapted_weights` does, or if peft adapts others.
    """

    def __init__(self, model: Any, config: AdapterConfig, base: str) -> None:
        with quiet():
            from peft import LoraConfig, get_peft_model
            from peft.tuners.tuners_utils import BaseTunerLayer

        wanted, experts = adapted_weights(model, config), expert_weights(model)
        lora = LoraConfig(
            task_type="CAUSAL_LM",
            r=config.rank,
            lora_alpha=config.alpha,
            lora_dropout=config.dropout,
            target_modules=[name for name in wanted if name not in experts],
            target_parameters=[name for name in wanted if name in experts] or None,
        )
        with quiet(), names_as_given():  # quiet of torchao, of which peft asks whether there is one
            self._wrapped = get_peft_model(model, lora)  # adapter weights are float32, whatever the model's are
        saved = self._wrapped.peft_config["default"]
        saved.base_model_name_or_path = base
        self._base_weights = weights_digest(base)  # now, as they were read just before
        _keep_names(saved, [name for name in wanted if name not in experts], self._wrapped.get_base_model())
        saved.target_modules = sorted(saved.target_modules)  # of a set, each process would write them in its own order
        self._layers = [layer for layer in self._wrapped.modules() if isinstance(layer, BaseTunerLayer)]
        if len(self._layers) != len(wanted):
            raise ModelError(f"this version of peft adapts {len(self._layers)} weights in place of {len(wanted)}")

    def parameters(self) -> list[nn.Parameter]:
        """Return the parameters that are trained and saved."""
        return list(self.factors().values())

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

    def factors(self) -> dict[str, nn.Parameter]:
        """Return the parameters that are trained and saved, by the names that peft has for them."""
        return trained_parameters(self._wrapped)

    def save_pretrained(self, folder: Path, factors: Mapping[str, Tensor] | None = None) -> None:
        """Write the adapter in peft's format, weights as safetensors; the network is not asked for anything.

        Beside it lie a hash of the settings of its base (`refuse_other_base`) and, of a base in a folder, one of its
        weights (`refuse_other_weights`).

        Parameters
        ----------
        folder : Path
        factors : mapping of name to tensor, optional
            What stands in for `factors`, where these are shared out.
        """
        self._wrapped.save_pretrained(folder, save_embedding_layers=False, state_dict=factors)
        facts = {"sha256": base_hash(self._wrapped.get_base_model())}
        facts |= {} if self._base_weights is None else {"weights": self._base_weights}
        (folder / _BASE).write_text(json.dumps(facts) + "\n", encoding="utf-8")


def base_name(path: str) -> str:
    """Return the name of an adapter's base for its files: a name on the hub, or the absolute path of a folder."""
    return path.removeprefix("hub:") if path.startswith("hub:") else str(absolute_utf8(path))


def linear_layers(model: Any) -> dict[str, Any]:
    """Return the linear layers of a model but its output head, by name; the model may be an outline."""
    from transformers.pytorch_utils import Conv1D

    head = model.get_output_embeddings()
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear | Conv1D) and module is not head
    }


def expert_weights(model: Any) -> dict[str, Any]:
    """Return the weights in which a model holds all experts of a layer at once, by name; it may be an outline."""
    return {
        f"{place}.{name}": parameter
        for place, module in model.named_modules()
        if "expert" in type(module).__name__.lower()
        for name, parameter in module.named_parameters(recurse=False)
        if parameter.ndim == 3
    }


def adapted_weights(model: Any, config: AdapterConfig) -> dict[str, Any]:
    """Return the weights that get additions, by the name of the linear layer or of the weight of experts.

    Parameters
    ----------
    model
        May be an outline.
    config : AdapterConfig

    Raises
    ------
    ModelError
        If a target is the end of no such name, or of that of the output head or an embedding: token log-probabilities
        are taken from the head's own weights, past an adapter. If experts shall have dropout, whose additions are
        summed with their weights before there is an input.
    """
    experts = expert_weights(model)
    weights = {name: layer.weight for name, layer in linear_layers(model).items()} | experts
    chosen = set(weights) if config.targets is None else _named(model, config.targets, weights)
    if config.dropout and (dropped := sorted(chosen & set(experts))):
        raise ModelError(
            f"adapter.dropout: the weights of experts ({_kind(dropped[0])}) cannot have dropout: set it to 0, or name "
            "in adapter.targets the linear layers alone"
        )
    return {name: weight for name, weight in weights.items() if name in chosen}


def _named(model: Any, targets: Sequence[str], weights: Iterable[str]) -> set[str]:
    """Return the names of weights of which a target is the end; raise ModelError for each that is no such end."""
    head = model.get_output_embeddings()
    others = [name for name, module in model.named_modules() if module is head or isinstance(module, nn.Embedding)]
    ends = sorted({name.removesuffix(".weight").rpartition(".")[2] for name in weights})
    what = "linear layer or weight of experts" if expert_weights(model) else "linear layer"
    chosen: set[str] = set()
    problems = []
    for target in targets:
        named = {
            name
            for name in (*weights, *others)
            if any(one == target or one.endswith("." + target) for one in (name, name.removesuffix(".weight")))
        }
        chosen |= named
        if named & set(others):
            problems.append(f"{target}: the output head and the embedding cannot have an adapter here")
        elif not named:
            problems.append(str(_checks.unknown(f"{what} in {type(model).__name__}", target, ends)))
    if problems:
        raise ModelError(f"adapter.targets: {'; '.join(problems)}")
    return chosen


def factor_shapes(model: Any, config: AdapterConfig) -> Iterator[tuple[int, int]]:
    """Yield the shapes of all factors of the additions; the model may be an outline."""
    for weight in adapted_weights(model, config).values():
        rank = config.rank * (weight.shape[0] if weight.ndim == 3 else 1)  # experts have one each
        yield rank, weight.shape[-1]
        yield weight.shape[-2], rank


def describe_coverage(model: Any, config: AdapterConfig, kept_in: str, computed_in: str) -> list[str]:
    """Say by name, and by share of a model's parameters, what gets additions and what does not; and what that means.

    Parameters
    ----------
    model
        May be an outline; without its adapter.
    config : AdapterConfig
    kept_in : {"float32", "bf16", "nf4"}
        What frozen weights are kept in.
    computed_in : {"float32", "bf16"}
        What a pass computes in.
    """
    adapted = adapted_weights(model, config)
    changed = {id(weight) for weight in adapted.values()}
    left: Counter[str] = Counter()
    for name, parameter in model.named_parameters():
        if id(parameter) not in changed:
            left["biases, norms and the like" if parameter.ndim == 1 else _kind(name)] += parameter.numel()
    total = left.total() + sum(weight.numel() for weight in adapted.values())
    kinds = list(dict.fromkeys(_kind(name) for name in adapted))
    shares = [f"{name} {_percent(count, total)}" for name, count in left.most_common()]
    lines = [
        f"{_percent(total - left.total(), total)} of the parameters get additions ({', '.join(kinds)}); left as they "
        f"are: {', '.join(shares)}"
    ]
    experts = expert_weights(model)
    if experts and kept_in == "nf4":
        lines.append("the fused weights of experts are not kept in 4 bits")
    if experts.keys() & adapted.keys() and computed_in != "float32":
        lines.append(
            "what is learned for experts is added to their weights before there is an input, in the precision of the "
            "computation: in bf16, additions below about 2^-9 of a weight are lost; training.precision: float32, with "
            "adapter.base: float32, keeps them"
        )
    return lines


def _kind(name: str) -> str:
    """Return the part of a weight's name that is the same in all layers."""
    return re.split(r"\.\d+\.", name)[-1].removesuffix(".weight")


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.3g} %"


@contextmanager
def names_as_given() -> Iterator[None]:
    """Let peft take the names of adapted weights as they are.

    By itself it takes `gate_proj` and the like, wherever they are, for old names of experts where a kind of model has
    had such: linear layers of these names would be left out, and routers adapted.
    """
    from peft.utils import transformers_weight_conversion as conversion

    before = conversion.convert_peft_config_for_transformers
    conversion.convert_peft_config_for_transformers = lambda *_, **__: None
    try:
        yield
    finally:
        conversion.convert_peft_config_for_transformers = before


def _keep_names(lora: Any, layers: Sequence[str], model: Any) -> None:
    """Name linear layers so that peft, with no `names_as_given` around it, finds them when it reads the settings.

    The layers whose names it would take for old names of experts are named by their weights, which it takes as they
    are: the tensors and what they compute are the same.
    """
    renamed = [name for name in layers if _is_renamed(name, model)]
    if renamed:
        lora.target_modules = set(layers) - set(renamed)
        lora.target_parameters = [*(lora.target_parameters or ()), *(f"{name}.weight" for name in renamed)]
        lora.lora_dropout = 0.0  # of training alone; additions to a weight by its name cannot have it


def _is_renamed(name: str, model: Any) -> bool:
    """Return whether peft takes the name of a linear layer for an old name of experts, in a model of this kind."""
    from peft import LoraConfig
    from peft.utils import transformers_weight_conversion as conversion

    lora = LoraConfig(target_modules=[name])
    try:
        conversion.convert_peft_config_for_transformers(lora, model=model, conversions=None)
    except ValueError:  # it misses the name of the other half of a fused weight
        return True
    return set(lora.target_modules) != {name}


def adapter_base(folder: str | Path) -> str | None:
    """Return the base model that the files of an adapter name; None where the folder holds no adapter.

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


def refuse_other_weights(folder: str | Path, base: str) -> None:
    """Compare the weight files of a base with those that an adapter was trained on, where both are known.

    Raises
    ------
    ModelError
        If they differ.
    """
    path = Path(folder) / _BASE
    try:
        trained_on = json.loads(path.read_text(encoding="utf-8")).get("weights")
    except (OSError, ValueError, AttributeError):
        return  # none is told, or `refuse_other_base` says that it cannot be read
    now = weights_digest(base)
    if trained_on is not None and now is not None and trained_on != now:
        raise ModelError(
            f"adapter {str(folder)!r} was trained on other weights than those in {base!r}: give the right base; if "
            f"they are the same in other files, remove {path.name} there"
        )
