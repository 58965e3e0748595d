"""What is left on a disk, and what is said where one is full."""

from __future__ import annotations

import errno
import os
from pathlib import Path


def leftovers(folder: Path) -> list[str]:
    """Return the names of hidden files that unfinished writes have left anywhere in a run's folder."""
    return [str(path) for path in folder.rglob(".*")]


def no_space() -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def do_not_wait_for_the_disk(handle: int) -> None:
    """Stand in for `os.fsync`, which only a power cut shows to be missing; an error where nothing is open."""
    os.fstat(handle)
