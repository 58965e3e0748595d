"""Finished models, written so that nothing is ever half-written."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from humanline.system.activity import HERE
from humanline.system.disk import patient
from humanline.system.files import claim_folder, disk_errors, flush, partial_of
from humanline.system.folders import MANIFEST, begin_folder, drop_partial, publish_folder, seal_folder
from humanline.train.policy.adapter import Adapter
from humanline.train.policy.shard import whole_tensors
from humanline.train.run.processes import Processes
from humanline.train.run.shares import is_shard

Beside = Callable[[], Mapping[str, str]]  # gives the texts of further files, by name, in the process that writes
TO_EDIT = ("README.md",)  # a folder is whole whatever people make of it
FILE_BYTES = 4 * 2**30  # of the tensors in one file: so many of a model that is shared out are in host memory at once


@HERE.doing("saving the model")
def save_model(folder: Path, model: Any, tokenizer: Any, beside: Beside = dict) -> None:
    """Write weights, tokenizer and template in Hugging Face format, complete or not at all.

    The folder appears under its name only when every file in it is written and flushed to disk, with a manifest of
    sizes and checksums. Its generation_config.json says do_sample, without which transformers serve takes the most
    probable token at any temperature; all else in it stays as the model has it.

    Parameters
    ----------
    folder : Path
        Must not exist; its parent must.
    model, tokenizer
        Model of transformers, or an Adapter; its weights go to safetensors, of at most `FILE_BYTES` each.
    beside : callable, optional
        Gives further texts to write, by the names of files: the model's card.

    Raises
    ------
    OSError
        If there is too little space or a write fails; nothing is left of it.
    """
    if isinstance(model, Adapter):
        _publish(folder, model, tokenizer, beside, model.save_pretrained)
    else:

        def write(partial: Path) -> None:
            model.save_pretrained(partial, max_shard_size=FILE_BYTES)

        _publish(folder, model, tokenizer, beside, write)


@HERE.doing("saving the model")
def save_together(folder: Path, model: Any, tokenizer: Any, processes: Processes, beside: Beside = dict) -> None:
    """Write what `save_model` writes, byte for byte, of a model that may be shared out over the processes of a run.

    All of them call this, and the main one writes: one file after the other, each gathered just before, so that no
    process holds more of the model than that beside its own rows.

    Parameters
    ----------
    folder, model, tokenizer, beside
        As in `save_model`.
    processes : Processes

    Raises
    ------
    OSError
        In the main process, and MainProcessError in the others, if there is too little space or a write fails; nothing
        is left of it.
    StoppedWaiting
        (An OSError.) In all of them, if the run was asked to stop while it waited for space.
    """
    if not any(map(is_shard, model.parameters())):
        processes.on_main(lambda: save_model(folder, model, tokenizer, beside))
    elif isinstance(model, Adapter):
        factors = whole_tensors(model.factors(), keep=processes.rank == 0)
        processes.on_main(
            lambda: _publish(folder, model, tokenizer, beside, lambda partial: model.save_pretrained(partial, factors))
        )
    else:
        try:
            _save_by_files(folder, model, tokenizer, processes, beside)
        except BaseException:
            if processes.rank == 0:
                drop_partial(folder)
            raise


def _publish(folder: Path, model: Any, tokenizer: Any, beside: Beside, write: Callable[[Path], None]) -> None:
    """Make the folder of a model that `write` writes."""

    def fill(partial: Path) -> None:
        with _settings_as_they_are(model):
            write(partial)
        _write_rest(partial, tokenizer, beside)

    publish_folder(folder, fill, room=_size(model), to_edit=TO_EDIT)


def _save_by_files(folder: Path, model: Any, tokenizer: Any, processes: Processes, beside: Beside) -> None:
    """Write a model that is shared out; where this fails, a part of it may be left."""
    files = _files_of(model)

    def begin() -> None:
        partial = begin_folder(folder, room=_size(model))
        with disk_errors(), _settings_as_they_are(model):
            model.save_pretrained(partial, state_dict={})  # all but its weights
            _write_rest(partial, tokenizer, beside)
            if len(files) > 1:
                _write_index(partial, model, files)

    def seal() -> None:
        (partial_of(folder) / MANIFEST).unlink(missing_ok=True)  # of an earlier try
        seal_folder(folder, to_edit=TO_EDIT)

    processes.on_main(lambda: patient(folder, begin, _size(model)))
    live = model.state_dict()
    for name, tensors in files.items():
        _write_together(partial_of(folder) / name, {tensor: live[tensor] for tensor in tensors}, processes)
    processes.on_main(lambda: patient(folder, seal))


def _write_together(path: Path, tensors: Mapping[str, Tensor], processes: Processes) -> None:
    """Gather tensors in all processes, and write them in the main one."""
    whole = whole_tensors(tensors, keep=processes.rank == 0)

    def act() -> None:
        from safetensors.torch import save_file

        try:
            with disk_errors():
                save_file(whole, path, metadata={"format": "pt"})
            flush(path)  # here, where it can be written again
        except BaseException:
            path.unlink(missing_ok=True)
            raise

    processes.on_main(lambda: patient(path, act, sum(tensor.nbytes for tensor in whole.values())))


def _files_of(model: Any) -> dict[str, Sequence[str]]:
    """Return which tensors of a model go to which file, as transformers has it."""
    from huggingface_hub import split_torch_state_dict_into_shards
    from transformers.core_model_loading import revert_weight_conversion
    from transformers.modeling_utils import remove_tied_weights_from_state_dict

    left_out = model._keys_to_ignore_on_save or ()
    outlines = {
        name: torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
        for name, tensor in model.state_dict().items()
        if name not in left_out
    }
    split = split_torch_state_dict_into_shards(
        revert_weight_conversion(model, remove_tied_weights_from_state_dict(outlines, model)),  # which orders them
        filename_pattern="model{suffix}.safetensors",
        max_shard_size=FILE_BYTES,
    )
    return dict(split.filename_to_tensors)


def _write_index(partial: Path, model: Any, files: Mapping[str, Sequence[str]]) -> None:
    """Write which file holds which tensor, as transformers does."""
    place = {tensor: name for name, tensors in files.items() for tensor in tensors}
    live = model.state_dict()
    total = sum(live[tensor].nbytes for tensor in place)
    index = {"metadata": {"total_parameters": model.num_parameters(), "total_size": total}, "weight_map": place}
    text = json.dumps(index, indent=2, sort_keys=True) + "\n"
    (partial / "model.safetensors.index.json").write_text(text, encoding="utf-8")


@contextlib.contextmanager
def _settings_as_they_are(model: Any) -> Iterator[None]:
    """Let a model's generation settings be written whatever they are.

    Some versions of transformers read settings that they will not write, a temperature without do_sample, say: a
    finished run could not be saved.
    """
    settings = getattr(model, "generation_config", None)
    if settings is None:
        yield
        return
    kind = type(settings)
    settings.__class__ = type(kind.__name__, (kind,), {"validate": lambda *_, **__: None})
    try:
        yield
    finally:
        settings.__class__ = kind


def _write_rest(partial: Path, tokenizer: Any, beside: Beside) -> None:
    """Write what a folder holds beside model and settings, and let servers sample."""
    tokenizer.save_pretrained(partial)
    for name, text in beside().items():
        (partial / name).write_text(text, encoding="utf-8")
    file = partial / "generation_config.json"
    if not file.is_file():  # an adapter has none
        return
    settings = json.loads(file.read_text(encoding="utf-8"))
    if settings.get("temperature") != 0:  # which cannot be sampled at
        settings["do_sample"] = True
        file.write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _size(model: Any) -> int:
    return sum(tensor.nbytes for tensor in model.parameters())


def create_model(path: str | Path, model: Any, tokenizer: Any, beside: Beside = dict) -> Path:
    """Write a model (`save_model`) to a folder that is free to be made, and return its absolute path.

    Raises
    ------
    OutputError
        As `claim_folder` does.
    OSError
        As `save_model` does.
    """
    folder = claim_folder(path)
    folder.rmdir()  # it appears under its name only when it is complete
    save_model(folder, model, tokenizer, beside)
    return folder
