"""Which files a model's folder may name as its weights: those that are in it.

An index is text of someone else's: `../../secrets.safetensors` in it would have a run read what is not the model's. A
link in the folder is the work of whoever keeps the folder, and may lead anywhere: to the blobs of the hub's cache, or
to the disk that a cluster has for large files.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path, PurePosixPath, PureWindowsPath
from stat import S_ISREG
from typing import Any

from humanline.system.terminal import visible
from humanline.train.policy.errors import ModelError

_MOST_FILES = 10_000


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
