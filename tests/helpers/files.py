"""What is left on a disk, and what is said where one is full."""

from __future__ import annotations

import errno
import os
import sqlite3
from pathlib import Path
from typing import Any


def leftovers(folder: Path) -> list[str]:
    """Return the names of hidden files that unfinished writes have left anywhere in a run's folder."""
    return [str(path) for path in folder.rglob(".*")]


def no_space() -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


_connect = sqlite3.connect


def connect_without_waits(*arguments: Any, **options: Any) -> sqlite3.Connection:
    """Stand in for `sqlite3.connect`: commits do not wait for the disk."""
    database = _connect(*arguments, **options)
    database.execute("PRAGMA synchronous = OFF")
    return database


def do_not_wait_for_the_disk(handle: int) -> None:
    """Stand in for `os.fsync`, which only a power cut shows to be missing; an error where nothing is open."""
    os.fstat(handle)
