"""The checkpoints that a folder holds: their names and order, and the newest that is whole."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from humanline.system.files import DamagedError
from humanline.train.run.checkpoint import CheckpointError, Contents, fingerprints_in

_AGAIN = 10**6  # checkpoints after the same number of updates that can be told apart
_STEP = re.compile(r"step-(\d{8,})(?:\.(\d{6}))?")


def newest(folder: Path, contents: Contents, say: Callable[[str], None]) -> int:
    """Return 1 + the number (`name_of`) of the newest whole checkpoint in a folder, 0 if there are no checkpoints.

    Raises
    ------
    CheckpointError
        If there are some and none is whole, or as `Contents.refuse` does.
    """
    skipped = []
    for one in reversed(checkpoints_in(folder)):
        try:
            contents.refuse(one)
        except DamagedError as error:
            skipped.append(f"  {one.name}: {error}")
            continue
        if skipped:
            say("\n".join(["skipped, because damaged or incomplete:", *skipped]))
        return 1 + number_of(one)
    if skipped:
        raise CheckpointError("\n".join([f"no checkpoint in {folder} is whole:", *skipped]))
    return 0


def told_by_newest(folder: Path) -> dict[str, Any]:
    """Return the fingerprints in the newest checkpoint of a folder, whole or not; none where they cannot be read."""
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError):  # taking it up says what is wrong
        for one in reversed(checkpoints_in(folder)):
            return fingerprints_in(one)
    return {}


def put_aside_newer(taken: Path) -> None:
    """Rename the checkpoints that are newer than the one that a run goes on from: they are damaged."""
    for newer in checkpoints_in(taken.parent):
        if number_of(newer) > number_of(taken):
            aside = newer.with_name(f"damaged-{newer.name}")
            shutil.rmtree(aside, ignore_errors=True)
            newer.rename(aside)


def checkpoints_in(folder: Path) -> list[Path]:
    """Return the checkpoints' folders, oldest first; raise CheckpointError if nobody can tell what there is."""
    try:
        with os.scandir(folder) as entries:
            found = [
                folder / entry.name
                for entry in entries
                if _STEP.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False)
            ]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise CheckpointError(
            f"{folder} cannot be read: {error.strerror}; nothing was changed: mend that, and try again"
        ) from None
    return sorted(found, key=number_of)


def free_name(folder: Path, updates: int) -> Path:
    """Return a folder that sorts after all of so many updates: a run may be stopped twice while it scores."""
    taken = [number for number in map(number_of, checkpoints_in(folder)) if number // _AGAIN == updates]
    return folder / name_of(max(taken) + 1 if taken else _AGAIN * updates)


def name_of(number: int) -> str:
    """Return a checkpoint's name: of its updates, and of how many others were saved after so many before it."""
    updates, again = divmod(number, _AGAIN)
    return f"step-{updates:08d}" + (f".{again:06d}" if again else "")


def number_of(folder: Path) -> int:
    """Return the number that orders checkpoints, of one's folder: `name_of` makes a name of it."""
    found = _STEP.fullmatch(folder.name)
    assert found is not None
    return _AGAIN * int(found[1]) + int(found[2] or 0)
