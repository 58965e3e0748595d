"""A name in a recipe -> the source of its rows: JSON lines or a JSON list, a parquet file, or a set of the hub.

A name that is not `hub:...` is a file on this machine and never reaches the network.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import re
import stat
from pathlib import Path

from humanline.system.paths import PathError, absolute, made_by
from humanline.train.data.json_array import JsonArray, is_array
from humanline.train.data.json_lines import JsonLines
from humanline.train.data.source import GRAMMAR, READ, DataError, Source
from humanline.train.data.tables import HubSet, Parquet


def open_source(given: str | Path) -> Source:
    """Return the source of a name: `hub:...`, or an existing .jsonl, .ndjson, .json or .parquet file.

    A .json file that begins as a list is one list of rows, any other one holds a row a line.

    Raises
    ------
    FileNotFoundError
        If the name is neither `hub:...` nor that of a file.
    DataError
        If a name that begins with `hub:` does not follow the grammar, or the file has another ending.
    """
    if isinstance(given, str) and given.startswith("hub:"):
        return HubSet.parse(given)
    path = existing_file(given)
    ending = path.suffix.lower()
    if ending == ".parquet":
        return Parquet(path)
    if ending in (".jsonl", ".ndjson"):
        return JsonLines(path)
    if ending == ".json":
        return JsonArray(path) if is_array(path) else JsonLines(path)
    got = f"ends in {path.suffix}" if ending else "has no ending"
    raise DataError(f"{path} {got}; {READ}")


def existing_file(path: str | Path) -> Path:
    """Return `path` in full; raise FileNotFoundError, with the nearest name, unless it is a regular file."""
    try:
        expanded = absolute(path)
    except PathError as error:
        raise FileNotFoundError(f"{str(path)!r} {error}") from None
    try:
        full = Path(os.path.realpath(expanded.parent)) / expanded.name  # a link keeps its own name, and so its ending
        mode = full.stat().st_mode if full.exists() else None
    except OSError as error:  # no permission
        reason = getattr(error, "strerror", None) or str(error)
        raise FileNotFoundError(f"{os.fspath(path)!r} cannot be looked up: {reason}") from None
    if mode is not None and stat.S_ISREG(mode):
        return full
    if mode is not None and stat.S_ISDIR(mode):
        raise FileNotFoundError(f"{full} is a directory; expected a file, for example {full / 'train.jsonl'}")
    if mode is not None:
        kind = "a pipe" if stat.S_ISFIFO(mode) else "a device or socket"
        raise FileNotFoundError(f"{full} is {kind}; expected a regular file, which can be read more than once")
    if re.match(r"(?i)(hub|hf|huggingface|datasets|https?):", str(path)):
        raise FileNotFoundError(f"{path} does not exist; a set of the hub is written {GRAMMAR}")
    if not full.parent.is_dir():
        raise FileNotFoundError(f"{full} does not exist, and neither does its directory; check the path{made_by(path)}")
    hint = "relative paths start at the current directory"
    with contextlib.suppress(OSError):  # a directory that cannot be listed
        names = sorted(item.name for item in full.parent.iterdir() if item.is_file())
        near = difflib.get_close_matches(full.name, names, n=1)
        hint = f"did you mean {near[0]}?" if near else hint
    raise FileNotFoundError(f"{full} does not exist; {hint}{made_by(path)}")
