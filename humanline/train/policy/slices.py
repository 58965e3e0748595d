"""A model read slice by slice: each process takes its own rows of the weight files, straight into its shards.

No process holds a whole model. What transformers does to weights as it reads them (other names, experts put together)
it does to whole ones, so that files have to hold the model's own parameters under their own names.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from humanline.system.imports import import_transformers, quiet
from humanline.train.policy.attention import keep_softcap
from humanline.train.policy.errors import ModelError
from humanline.train.policy.load import load_settings, loading, source, turn_off_dropout
from humanline.train.policy.logprobs import LogprobModel
from humanline.train.policy.shard import anywhere
from humanline.train.policy.weight_files import Stored, first_few, is_old_buffer, stored_tensors
from humanline.train.run.shares import share_of


def empty_model(path: str, *, dropout: bool, dtype: torch.dtype) -> Any:
    """Build a model whose parameters are on the meta device, and whose buffers have their numbers.

    Parameters
    ----------
    path, dropout
        As in `load_weights`.
    dtype : torch.dtype
        Of its parameters.

    Raises
    ------
    ModelError
        If its configuration cannot be read or built.
    """
    import_transformers()
    from accelerate import init_empty_weights
    from transformers import AutoModelForCausalLM, GenerationConfig

    name, local_only = source(path)
    settings = load_settings(path, f"model {path!r}")
    with loading(f"model {path!r}"), init_empty_weights(include_buffers=False):
        model = AutoModelForCausalLM.from_config(settings, dtype=dtype, trust_remote_code=False)
    keep_softcap(model)
    model.tie_weights()
    model._weight_conversions = []  # as transformers notes it: its files are read as they are, and so they are written
    with contextlib.suppress(OSError):  # there need not be any
        model.generation_config = GenerationConfig.from_pretrained(name, local_files_only=local_only)
    if not dropout:
        turn_off_dropout(model)
    return model.eval()


def sliceable_tensors(path: str, outline: Any) -> dict[str, Stored]:
    """Return where each tensor of a model lies, if its slices can be read as they are; files on the hub are fetched.

    Raises
    ------
    ModelError
        As `stored_tensors` does, and if the files do not hold just the model's parameters, under their names and in
        their shapes.
    """
    name, local_only = source(path)
    folder = Path(name) if local_only else _fetched(path, name)
    found = stored_tensors(path, folder, outline)
    expected = dict(outline.named_parameters(remove_duplicate=False))
    same: dict[int, list[str]] = {}
    for place, parameter in expected.items():
        same.setdefault(id(parameter), []).append(place)
    known = outline.state_dict().keys()
    problems = [
        (sorted(p for p in found if p not in known and not is_old_buffer(outline, p)), "which the model does not have"),
        ([names[0] for names in same.values() if not any(p in found for p in names)], "which are missing"),
        (sorted(p for p in found if p in expected and found[p].shape != expected[p].shape), "which have another shape"),
    ]
    if wrong := [f"{first_few(names)}, {how}" for names, how in problems if names]:
        raise ModelError(
            f"model {path!r}: its weights cannot be read slice by slice, as training.sharding: full does: "
            f"{wrong[0]}. transformers may translate them, but only whole ones, and its save_pretrained goes back to "
            "the names of the files: write the model's state_dict() with safetensors, or set training.sharding: none"
        )
    return found


def _fetched(path: str, name: str) -> Path:
    from huggingface_hub import snapshot_download

    with loading(f"model {path!r}"), quiet():
        return Path(snapshot_download(name, allow_patterns=["*.json", "*.safetensors"]))


@contextlib.contextmanager
def stand_ins(model: nn.Module) -> Iterator[None]:
    """Let the parameters of an empty model look as if they were in host memory, where each takes a single number.

    peft puts the factors of an adapter where the model's own parameters are; on the meta device they would have none.
    """
    there: dict[int, nn.Parameter] = {}
    made: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None and parameter.is_meta:
                if id(parameter) not in there:
                    number = torch.zeros((), dtype=parameter.dtype).expand(parameter.shape)
                    there[id(parameter)] = parameter
                    made[id(parameter)] = nn.Parameter(number, requires_grad=parameter.requires_grad)
                module._parameters[name] = made[id(parameter)]
    back = {id(made[key]): parameter for key, parameter in there.items()}
    try:
        yield
    finally:
        for module in model.modules():
            for name, now in module._parameters.items():
                if now is not None and id(now) in back:
                    module._parameters[name] = back[id(now)].requires_grad_(now.requires_grad)  # type: ignore[assignment]


def fill(path: str, policy: LogprobModel, found: dict[str, Stored], empty: set[str]) -> None:
    """Read this process's rows of a model's parameters into the shards of a policy; all processes call this.

    Parameters
    ----------
    path : str
        The model, in messages.
    policy : LogprobModel
        After `materialise`.
    found : dict
        Of `sliceable_tensors`.
    empty : set of str
        The names, in the policy, of the parameters that have no numbers yet.

    Raises
    ------
    ModelError
        In all processes, if a file cannot be read, or weights in it are nan or infinite.
    """
    problem = ""
    same: dict[int, list[str]] = {}
    for name, parameter in policy.named_parameters(remove_duplicate=False):
        if name in empty:
            same.setdefault(id(parameter), []).append(name)
    buffers = {stored: buffer for name, buffer in policy.named_buffers() if (stored := stored_name(name)) in found}
    try:
        broken = []
        for names in same.values():
            kept = [one for name in names if (one := stored_name(name)) in found]
            if not kept:
                problem = f"its files have no {stored_name(names[0])}, which {names[0]} would be read from"
                break
            stored = kept[0]
            if not _read(policy.get_parameter(names[0]), stored, found[stored]):
                broken.append(stored)
        for place, buffer in buffers.items():
            _read(buffer, place, found[place])
        if broken:
            problem = f"weights in its files are nan or infinite: {first_few(broken)}"
    except (OSError, SafetensorError) as error:
        problem = f"its weights cannot be read: {error}"
    if anywhere(bool(problem), policy):
        raise ModelError(f"model {path!r}: {problem or 'another process says what is wrong with its part of it'}")


@torch.no_grad()
def _read(tensor: Tensor, name: str, stored: Stored) -> bool:
    """Read this process's rows of a tensor, and return whether they are finite."""
    share = share_of(tensor)
    mine = share.rows
    if mine.numel() == 0:
        return True
    mine.copy_(stored.rows(name, share.start, share.start + (len(mine) if mine.ndim else 0)))
    return not mine.is_floating_point() or bool(torch.isfinite(torch.stack(torch.aminmax(mine))).all())


def stored_name(name: str) -> str:
    """Return the name that a parameter of a policy has in the model's files.

    An adapter that is beside two parameters of one module stands around it twice.
    """
    return ".".join(part for part in name.removeprefix("model.").split(".") if part != "base_layer")
