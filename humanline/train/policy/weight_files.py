"""The weight files of a model's folder: which it may name, what their headers hold, and whether that fits the model.

An index is text of someone else's: `../../secrets.safetensors` in it would have a run read what is not the model's. A
link in the folder is the work of whoever keeps the folder, and may lead anywhere: to the blobs of the hub's cache, or
to the disk that a cluster has for large files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath
from stat import S_ISREG
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from humanline.system.terminal import visible
from humanline.train.policy.errors import ModelError

_MOST_FILES = 10_000
_FLOATS = ("F64", "F32", "F16", "BF16")  # as safetensors calls them
_LAYER = re.compile(r"(.*?\.)(\d+)\.")  # the list that a tensor's layer is in, and which of it
_OLD_BUFFERS = ("masked_bias",)  # the score that attention gave hidden tokens; no module has it now


def refuse_files_elsewhere(path: str) -> None:
    """Raise ModelError if an index or config.json of a model's folder names weights that are not in the folder.

    Also if more than 10 000 are named, which would take minutes, or if what a name stands for is no regular file. Links
    are followed, wherever they lead. What is not there, or cannot be read, is left to what reads it.
    """
    folder = Path(path)
    named = list(dict.fromkeys(_named(folder)))
    if len(named) > _MOST_FILES:  # each of which would be followed, again and again
        raise ModelError(
            f"model {path!r}: {named[0][0]} names {len(named)} weight files, where no model has more than {_MOST_FILES}"
        )
    for where, name in named:
        if reason := _leads_out(folder, name):
            raise ModelError(
                f"model {path!r}: {where} names the weight file {visible(name)!r}, {reason}; weights have to be in the "
                "model's folder: copy the file there, and name it without a path"
            )


def _named(folder: Path) -> Iterator[tuple[str, str]]:
    """Give the names of weight files in a folder's texts, with the text that has it."""
    for index in sorted(folder.glob("*.index.json")):
        names = _read(index).get("weight_map")
        for name in names.values() if isinstance(names, dict) else ():
            if isinstance(name, str):
                yield visible(index.name), name
    name = _read(folder / "config.json").get("transformers_weights")
    if isinstance(name, str):
        yield "config.json", name


def _read(file: Path) -> dict[str, Any]:
    try:
        tree = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return tree if isinstance(tree, dict) else {}


def _leads_out(folder: Path, name: str) -> str:
    """Return why a name may not stand for a weight file of a folder; nothing if it may."""
    if "\0" in name or PurePosixPath(name).is_absolute() or PureWindowsPath(name).anchor or "\\" in name:
        return "which is no name of a file in it"
    if ".." in PurePosixPath(name).parts:
        return "which leads out of it"
    try:
        return "" if S_ISREG((folder / name).stat().st_mode) else "which is no regular file"
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except (OSError, ValueError) as error:
        return f"which cannot be followed ({visible(str(error))})"


@dataclass(frozen=True, slots=True)
class Stored:
    """Where a tensor of a model lies, as the header of its file says."""

    file: Path
    shape: tuple[int, ...]
    kind: str  # as safetensors calls its type

    def rows(self, name: str, first: int, end: int) -> Tensor:
        """Read some rows of the tensor, and no others; all of one that is a single number."""
        with safe_open(self.file, framework="pt") as tensors:
            part: Tensor = tensors.get_slice(name)[first:end] if self.shape else tensors.get_tensor(name)
        return part


def stored_tensors(path: str, folder: Path, outline: Any) -> dict[str, Stored]:
    """Return where each tensor of a model in a folder lies; no weights are read.

    Parameters
    ----------
    path : str
        The model, in messages.
    folder : Path
    outline
        Of the model: its configuration may name the file.

    Raises
    ------
    ModelError
        If there are no weight files, one that the index names is missing, or one is no whole safetensors file.
    """
    if any(folder.glob("pytorch_model*.bin")) and not any(folder.glob("*.safetensors")):
        raise ModelError(f"model {path!r}: its weights are pickled; save them as safetensors (save_pretrained does)")
    index = folder / "model.safetensors.index.json"
    named = getattr(outline.config, "transformers_weights", None)
    if not isinstance(named, str | None):
        raise ModelError(f"model {path!r}: config.json: transformers_weights is {named!r}, no name of a file")
    try:
        if named is not None or (folder / "model.safetensors").is_file():  # before an index, as transformers does
            files = [named or "model.safetensors"]
        elif index.is_file():
            files = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
            if not files or not all(isinstance(file, str) for file in files):
                raise ValueError("weight_map does not give the name of a file for every weight")
        else:
            files = ["model.safetensors"]
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise ModelError(f"model {path!r}: {index.name} cannot be read: {error}") from error
    problems = []
    found: dict[str, Stored] = {}
    for file in files:
        if not (folder / file).is_file():
            problems.append(f"{file} is missing")
            continue
        try:
            with safe_open(folder / file, framework="pt") as tensors:  # reads the header, and looks at the file's size
                headers = {name: tensors.get_slice(name) for name in tensors.keys()}  # noqa: SIM118
                found |= {
                    name: Stored(folder / file, tuple(header.get_shape()), header.get_dtype())
                    for name, header in headers.items()
                }
        except (SafetensorError, OSError) as error:
            problems.append(f"{file} is damaged: {error}")
    refuse_unloadable(path, problems)
    return found


def refuse_unloadable(path: str, problems: list[str]) -> None:
    """Raise ModelError if there are problems with the weights of a model, with the first few."""
    if problems:
        more = f"; and {len(problems) - 4} more" if len(problems) > 4 else ""
        raise ModelError(f"model {path!r}: its weights cannot be loaded: {'; '.join(problems[:4])}{more}")


def unfit(outline: Any, found: dict[str, Stored]) -> list[str]:
    """Say which tensors of a model's files do not fit an outline of it."""
    return _unfit_types(outline, found) or _unfit_shapes(outline, found)


def is_old_buffer(model: Any, name: str) -> bool:
    """Return whether a tensor is one that a module of a model computes itself, and that files once held all the same.

    The name may be without the prefix of the decoder, as in files of a model without its head.
    """
    place, _, last = name.rpartition(".")
    modules = dict(model.named_modules())
    module = modules.get(place, modules.get(f"{model.base_model_prefix}.{place}"))
    return module is not None and (last in _OLD_BUFFERS or last in dict(module.named_buffers(recurse=False)))


def _unfit_types(outline: Any, found: dict[str, Stored]) -> list[str]:
    """Say which weights of the files are not plain floats; loading would take the codes of others for numbers."""
    parameters = dict(outline.named_parameters(remove_duplicate=False))
    return [
        f"{name} is of the type {one.kind}, where weights are one of {', '.join(_FLOATS)}"
        for name, one in sorted(found.items())
        if one.kind not in _FLOATS and (name in parameters or name.endswith("weight"))
    ]


def of_missing_layers(outline: Any, names: Iterable[str]) -> list[str]:
    """Return the names that belong to layers which an outline does not have, though it has such layers."""
    deepest: dict[str, int] = {}
    for name in outline.state_dict():
        if (match := _LAYER.match(name)) is not None:
            deepest[match[1]] = max(deepest.get(match[1], 0), int(match[2]))
    ignored = [re.compile(one) for one in getattr(outline, "_keys_to_ignore_on_load_unexpected", None) or ()]
    beyond = []
    for name in names:
        match = _LAYER.match(name)
        if match is not None and int(match[2]) > deepest.get(match[1], int(match[2])):
            beyond += [name] if not any(one.search(name) for one in ignored) else []
    return sorted(beyond)


def _unfit_shapes(outline: Any, found: dict[str, Stored]) -> list[str]:
    """Say which parameters of an outline the files do not have, or have in another shape.

    Where the files name anything else only layers too many are named: transformers may know how to translate old names.
    """
    if beyond := of_missing_layers(outline, found):
        return [homeless(beyond, True)]
    same: dict[int, list[str]] = {}  # the names of each parameter, of which tied ones have several
    expected = dict(outline.named_parameters(remove_duplicate=False))
    for name, parameter in expected.items():
        same.setdefault(id(parameter), []).append(name)
    if not found or found.keys() - outline.state_dict().keys():
        return []
    problems = []
    for names in same.values():
        there = [name for name in names if name in found]
        if not there:
            problems.append(f"{names[0]} is missing")
        for name in there:
            if found[name].shape != tuple(expected[name].shape):
                wanted = tuple(expected[name].shape)
                problems.append(f"{name} has the shape {found[name].shape}, where config.json makes it {wanted}")
    return problems


def first_few(names: list[str]) -> str:
    """Return the first names of a list, and how many more there are."""
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def homeless(names: list[str], of_missing_layers: bool) -> str:
    """Say that a model has no place for tensors of its files, and what to do."""
    if of_missing_layers:
        advice = "correct config.json if the model has fewer layers there than it should, or else "
    else:
        advice = "give config.json and weight files of the same model, or "
    return (
        f"the weight files hold what config.json has no place for: {first_few(names)}; {advice}take these tensors "
        "out of the files"
    )
