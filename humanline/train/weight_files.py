"""Which files a model's folder may name as its weights: those that are in it.

An index is text of someone else's: `../../secrets.safetensors` in it, or a link that leads out, would have a run read
what is not the model's.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from humanline.train.scorer import ModelError
from humanline.train.terminal import visible

_MOST_FILES = 10_000


def refuse_files_elsewhere(path: str) -> None:
    """Raise ModelError if an index or config.json of a model's folder names weights that are not in the folder.

    Also if more than 10 000 are named, which would take minutes.

    Links may lead to the blobs of a cache of the hub, as those of its snapshots do. What cannot be read is left to what
    reads it.
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
    """Return why a name is not of a file in a folder; nothing if it is."""
    if "\0" in name or PurePosixPath(name).is_absolute() or PureWindowsPath(name).anchor or "\\" in name:
        return "which is no name of a file in it"
    if ".." in PurePosixPath(name).parts:
        return "which leads out of it"
    try:
        there, found = folder.resolve(), (folder / name).resolve()
    except (OSError, RuntimeError, ValueError) as error:
        return f"which cannot be followed ({error})"
    if found.is_relative_to(there) or (
        found.parent.name == "blobs" and found.parent.parent.name.startswith("models--")
    ):
        return ""
    return f"a link that leads out of it, to {visible(str(found))}"
