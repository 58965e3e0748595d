"""Models in Hugging Face format: looked at without their weights, refused where they do not fit, loaded."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from humanline.system.imports import import_transformers, quiet
from humanline.system.install import install
from humanline.system.paths import PathError, absolute_utf8, made_by
from humanline.train.policy.adapter import adapter_base
from humanline.train.policy.attention import keep_softcap
from humanline.train.policy.errors import ModelError
from humanline.train.policy.hub import HUB, MAIN, refuse_out_of_reach
from humanline.train.policy.logprobs import LogprobModel
from humanline.train.policy.model_limits import refuse_endless
from humanline.train.policy.weight_files import (
    first_few,
    homeless,
    is_old_buffer,
    of_missing_layers,
    refuse_files_elsewhere,
    refuse_unloadable,
    stored_tensors,
    unfit,
)

TYPES = {"float32": torch.float32, "bf16": torch.bfloat16}


def load_policy(
    path: str, *, dropout: bool, max_length: int, weights: str = "float32", compute: str = "float32"
) -> tuple[Any, Any]:
    """Load a model (`load_weights`) and its tokenizer, and check that they go together.

    Parameters
    ----------
    path, dropout, weights, compute
        As in `load_weights`.
    max_length : int
        The longest sequence training will use, tokens.

    Returns
    -------
    model, tokenizer

    Raises
    ------
    ModelError
        As `load_tokenizer`, `load_weights` and `refuse_misfits` do.
    """
    tokenizer = load_tokenizer(path)
    model = load_weights(path, dropout=dropout, weights=weights, compute=compute)
    refuse_misfits(path, model, tokenizer, max_length)
    return model, tokenizer


def load_weights(path: str, *, dropout: bool, weights: str = "float32", compute: str = "float32") -> Any:
    """Load a model alone, with float32 weights unless told otherwise.

    Parameters
    ----------
    path : str
        A folder in Hugging Face format, or `hub:` and the name of a model on the hub: the only case that uses the
        network, and never by a mistyped path.
    dropout : bool
        False sets every dropout rate to 0.
    weights : {"float32", "bf16", "nf4"}
        What they are kept in; nf4, the linear layers in 4 bits, is for those that are not trained.
    compute : {"float32", "bf16"}
        What layers kept in nf4 compute in.

    Raises
    ------
    ModelError
        As `load_model` does, or if the layers of this version of bitsandbytes lose their gradient.
    """
    options: dict[str, Any] = {"dtype": TYPES[compute if weights == "nf4" else weights]}
    if weights == "nf4":
        options |= _nf4(options["dtype"])
    model = load_model(path, **options)
    if weights == "nf4":
        _keep_gradients(model)
    if not dropout:
        turn_off_dropout(model)
    return model


def load_model(path: str, dtype: Any, **options: Any) -> Any:
    """Load a model (`load_weights`) as it is, in a type of torch, with further options of `from_pretrained`.

    Raises
    ------
    ModelError
        If the folder is missing, does not hold a causal language model or needs code of its own, or its weights are
        not in safetensors files, incomplete, more than the model has, or not finite.
    """
    import_transformers()
    from transformers import AutoModelForCausalLM

    name, local = source(path)
    if local:
        refuse_files_elsewhere(name)
    with loading(f"model {path!r}"):
        model, loaded = AutoModelForCausalLM.from_pretrained(
            name,
            local_files_only=local,
            trust_remote_code=False,
            use_safetensors=True,
            dtype=dtype,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # which are refused below, by name
            **options,
        )
    refuse_incomplete(f"model {path!r}", loaded)
    # The library would go on without them.
    if foreign := sorted(name for name in loaded["unexpected_keys"] if not is_old_buffer(model, name)):
        raise ModelError(f"model {path!r}: {homeless(foreign, bool(of_missing_layers(model, foreign)))}")
    if broken := [name for name, parameter in model.named_parameters() if not _is_finite(parameter)]:
        raise ModelError(f"model {path!r}: weights in its files are nan or infinite: {first_few(broken)}")
    _align(model)
    keep_softcap(model)
    return model


def _align(model: Any) -> None:
    """Take weights out of the files that they are mapped from, where they begin at any byte.

    On a CPU the last bits of a product depend on that, so that they would depend on the length of a file's header.
    """
    for parameter in model.parameters():
        if parameter.device.type == "cpu" and parameter.data_ptr() % 64:
            parameter.data = parameter.data.clone()


def refuse_incomplete(what: str, loaded: dict[str, Any]) -> None:
    """Raise ModelError if the library has filled up weights with random numbers, as its loading info says."""
    misshapen = sorted(loaded["mismatched_keys"], key=str)
    wrong = [f"{name} has the shape {tuple(there)} in place of {tuple(wanted)}" for name, there, wanted in misshapen]
    for problem, names in (("lack ", sorted(loaded["missing_keys"])), ("do not fit: ", wrong)):
        if names:
            raise ModelError(f"{what}: its weight files {problem}{first_few(names)}")


def _is_finite(parameter: nn.Parameter) -> bool:
    """Return whether all numbers of a parameter are finite, without a copy of it."""
    # The scales of 4-bit codes are relative to an offset, which is not finite where one of them is not.
    kept = getattr(parameter, "quant_state", None)
    numbers = (parameter if kept is None else kept.offset).detach()
    return (
        not numbers.is_floating_point()
        or numbers.numel() == 0
        or bool(torch.isfinite(torch.stack(torch.aminmax(numbers))).all())
    )


def _nf4(compute: torch.dtype) -> dict[str, Any]:
    """Return the arguments of transformers for weights in 4 bits."""
    with quiet():  # of kernels that it has no package for
        import bitsandbytes  # noqa: F401
    from transformers import BitsAndBytesConfig

    kept = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=compute,
    )
    here = torch.cuda.current_device() if torch.cuda.is_available() else "cpu"
    return {"quantization_config": kept, "device_map": {"": here}}


def _keep_gradients(model: Any) -> None:
    """Keep bitsandbytes from laying 4-bit weights out anew, in place, for good.

    It does so on a CPU with AVX512-BF16, at a layer's first pass in eval mode without gradient, as the reference takes:
    from then on the layer computes in bf16, and its product has no gradient, in training mode neither.
    """
    from bitsandbytes.nn import Linear4bit

    layers = [module for module in model.modules() if isinstance(module, Linear4bit)]
    for layer in layers:
        layer.support_avx512bf16_for_cpu = False
    for layer in layers[:1]:  # whether that is how this version is told
        row = torch.zeros((1, layer.in_features), device=layer.weight.device, dtype=layer.compute_dtype)
        with torch.no_grad():
            layer.eval()(row)
        if not layer.train()(row.requires_grad_()).requires_grad:
            raise ModelError(
                "adapter.base: nf4: layers of this version of bitsandbytes have no gradient after a scoring pass, so "
                "adapters would be trained on wrong ones: install one that humanline was tested with (constraints.txt)"
            )
        layer.eval()  # as the whole model is when it was loaded


def refuse_missing_quantizer(weights: str) -> None:
    """Raise ModelError if weights are to be kept in nf4 and bitsandbytes is not installed."""
    if weights == "nf4" and importlib.util.find_spec("bitsandbytes") is None:
        raise ModelError(f"adapter.base: nf4 needs bitsandbytes: {install('low-memory')}")


def stored_type(path: str) -> torch.dtype:
    """Return the type that a model's weights have in its files.

    Raises
    ------
    ModelError
        If the folder is missing, its configuration cannot be read, or its weights are stored quantised.
    """
    return _settings(path).dtype or torch.float32


def _settings(path: str) -> Any:
    """Return the configuration of a model, if its weights are such that they can be trained."""
    settings = load_settings(path, f"model {path!r}")
    if getattr(settings, "quantization_config", None) is not None:
        raise ModelError(
            f"model {path!r}: its weights are stored quantised (quantization_config in config.json), so they cannot be "
            "trained; give the original weights, and adapter.base: nf4 for QLoRA"
        )
    return settings


def load_settings(path: str, what: str, revision: str = MAIN) -> Any:
    """Load the configuration of a model, with `what` as its name in messages; of one on the hub at a revision.

    Raises
    ------
    ModelError
        If there is none, it cannot be read, or it describes a model that nobody could build.
    """
    from transformers import AutoConfig

    name, local = source(path)
    _refuse_endless(name, local, what, revision)
    with loading(what):
        return AutoConfig.from_pretrained(name, local_files_only=local, trust_remote_code=False, revision=revision)


def _refuse_endless(name: str, local: bool, what: str, revision: str) -> None:
    """Refuse what `refuse_endless` does; config.json is read for that once, while it is the same, for all callers."""
    stat = (Path(name) / "config.json").stat() if local else None
    file = stat and (stat.st_ino, stat.st_size, stat.st_mtime_ns)
    refuse_endless(_written_settings(name, what, file, revision), what)


@functools.lru_cache(maxsize=4)
def _written_settings(name: str, what: str, file: tuple[int, ...] | None, revision: str) -> Any:
    """Read a model's config.json; `file` tells one in a folder from what it was before, and is None on the hub."""
    from transformers import PretrainedConfig

    if file is None:
        refuse_out_of_reach(name, what)
    with loading(what):
        return PretrainedConfig.get_config_dict(name, local_files_only=file is not None, revision=revision)[0]


def load_tokenizer(path: str, revision: str = MAIN) -> Any:
    """Load the tokenizer of a model (`load_weights`) alone; of one on the hub at a revision.

    Raises
    ------
    ModelError
        If the folder is missing or its tokenizer cannot be loaded.
    """
    from transformers import AutoTokenizer

    name, local = source(path)
    _refuse_endless(name, local, f"model {path!r}", revision)  # which the library reads, too
    with loading(f"model {path!r}: its tokenizer"):
        tokenizer = AutoTokenizer.from_pretrained(
            name, local_files_only=local, trust_remote_code=False, revision=revision
        )
    if not isinstance(tokenizer.model_max_length, int | float):
        raise ModelError(
            f"model {path!r}: tokenizer_config.json: model_max_length is {tokenizer.model_max_length!r}, no number"
        )
    # Its notice of a text that is too long for a model: here such texts are counted, and told of with their rows.
    tokenizer.deprecation_warnings["sequence-length-is-longer-than-the-specified-maximum"] = True
    return tokenizer


def load_outline(path: str, shape: dict[str, Any] | None = None) -> Any:
    """Build a model (`load_weights`) without its weights: on the meta device, from its configuration.

    Parameters
    ----------
    path : str
    shape : dict, optional
        What its config.json says, where the model itself is not to be looked at (`shipped_shape`).

    Raises
    ------
    ModelError
        If the folder is missing, does not hold a causal language model or needs code of its own, or its weights are
        stored quantised.
    """
    import_transformers()
    from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

    settings = _settings(path) if shape is None else AutoConfig.for_model(**shape)
    name, local = source(path)
    with loading(f"model {path!r}: its generation_config.json"):  # which is read with the weights
        if local and (Path(name) / "generation_config.json").is_file():
            GenerationConfig.from_pretrained(name, local_files_only=True)
    with loading(f"model {path!r}"), torch.device("meta"):
        outline = AutoModelForCausalLM.from_config(settings, dtype=torch.float32, trust_remote_code=False)
    keep_softcap(outline)
    return outline


def refuse_misfits(path: str, model: Any, tokenizer: Any, max_length: int) -> None:
    """Check what can be checked of a model without running it, weights or none.

    Parameters
    ----------
    path : str
        For the message.
    model
        Whole, or an outline.
    tokenizer
        None where there is none to look at.
    max_length : int
        The longest sequence training will use, tokens.

    Raises
    ------
    ModelError
        If the tokenizer has no end token, a token id exceeds the embedding, max_length exceeds what the model was built
        for, or the positions from which on its rotary embedding is another for all rows of a pass that has one as long,
        or the output head is missing or of an unknown kind; all that apply are named.
    """
    problems = []
    if tokenizer is not None:
        if tokenizer.eos_token_id is None:
            problems.append(f"the tokenizer of {path!r} has no end token (eos_token): answers could not be ended")
        rows, largest = model.get_input_embeddings().weight.shape[0], max(tokenizer.get_vocab().values())
        if largest >= rows:
            problems.append(f"the tokenizer of {path!r} has token ids up to {largest} but the model embeds only {rows}")
    longest = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if longest is not None and max_length > longest:
        problems.append(f"data.max_length {max_length} exceeds the {longest} positions of the model {path!r}")
    switch = rope_switch(model)
    if switch is not None and max_length > switch:
        problems.append(
            f"data.max_length {max_length} exceeds the {switch} positions beyond which {path!r} takes another rotary "
            "embedding (longrope), for all rows of a pass in which one is longer: what a row gets would depend on the "
            f"rows beside it; set data.max_length to at most {switch}"
        )
    try:
        LogprobModel(model)
    except ModelError as error:
        problems.append(str(error))
    if problems:
        raise ModelError("\n".join(problems))


def rope_switch(model: Any) -> int | None:
    """Return the positions up to which a model's rotary embedding is one, where the longest row of a pass says which.

    None where rows have no part in that.
    """
    rope = getattr(model.config.get_text_config(), "rope_parameters", None) or {}
    kinds = [rope, *(one for one in rope.values() if isinstance(one, dict))]  # of all layers, or of each kind
    switching = [
        one for one in kinds if one.get("rope_type") == "longrope" and one.get("short_factor") != one.get("long_factor")
    ]
    switches = [one.get("original_max_position_embeddings") for one in switching]
    return min((one for one in switches if isinstance(one, int)), default=None)


def refuse_missing_weights(path: str, outline: Any) -> None:
    """Look at the weight files of a model in a folder, without reading weights; nothing is said of one on the hub.

    Parameters
    ----------
    path : str
    outline
        Of `load_outline`: what the files should hold.

    Raises
    ------
    ModelError
        If there are none, one that the index names is missing, or one is no whole safetensors file; if a weight is of
        a type that is no plain float, or of a layer that the model does not have; or if they name nothing but
        parameters of the model, and one is missing or has another shape.
    """
    name, local = source(path)
    if local:
        refuse_files_elsewhere(name)
        refuse_unloadable(path, unfit(outline, stored_tensors(path, Path(name), outline)))


def source(path: str) -> tuple[str, bool]:
    """Return the folder or hub name of a model, and whether it is a folder; raise ModelError if it is no model's."""
    local, name = not path.startswith(HUB), path.removeprefix(HUB)
    if local:
        try:
            name = str(absolute_utf8(path))
        except PathError as error:
            raise ModelError(f"model {path!r} {error}") from None
    if local and (base := adapter_base(name)) is not None:
        raise ModelError(f"model {path!r} is an adapter of {base!r}: make one model of them with `humanline merge`")
    if local and not (Path(name) / "config.json").is_file():
        raise ModelError(
            f"model {path!r}: no config.json in {name}; give a folder in Hugging Face format, "
            f"or {HUB}organisation/name for a model on the hub{made_by(path)}"
        )
    return name, local


@contextlib.contextmanager
def loading(what: str) -> Iterator[None]:
    """Turn whatever a damaged or foreign folder makes the libraries raise into one error, and show nothing else."""
    try:
        with quiet():
            yield
    except Exception as error:
        reason = " ".join(str(error).split())
        raise ModelError(f"{what} cannot be loaded: {type(error).__name__}: {reason[:400]}") from error


def turn_off_dropout(model: nn.Module) -> None:
    """Set every dropout rate of a model to 0: modules, and the numbers that other layers keep."""
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
        for name, value in list(vars(module).items()):
            if "drop" in name and isinstance(value, float):
                setattr(module, name, 0.0)
