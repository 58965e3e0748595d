"""What a manifest says of a file: its size and SHA-256, from reading it, or from writing it."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from humanline.system.files import barrier, sync, write_all

BEHIND = 7  # pieces that are written and not yet hashed


def facts_of(path: Path) -> dict[str, Any]:
    """Return size and SHA-256 of a file; raise OSError if it cannot be read."""
    with open(path, "rb") as file:
        return {"bytes": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def write_hashed(path: Path, pieces: Iterable[memoryview], each: Callable[[], None] = lambda: None) -> dict[str, Any]:
    """Write a file and flush it; return what `facts_of` would read from it.

    A second thread hashes what this one writes. Once `BEHIND` + 1 more pieces are asked for, the memory of a piece is
    not needed any more.

    Parameters
    ----------
    path : Path
    pieces : iterable of memoryview
        Of bytes, one after the other.
    each : callable
        Called before every piece is written; what it raises ends the write.

    Raises
    ------
    OSError
        If the disk fails; a part of the file may be there.
    """
    digest, size, waiting = hashlib.sha256(), 0, deque[Future[None]]()
    with open(path, "wb", buffering=0) as file, ThreadPoolExecutor(1, thread_name_prefix="hash") as hasher:
        for piece in pieces:
            each()
            waiting.append(hasher.submit(digest.update, piece))
            write_all(file.fileno(), piece)
            size += len(piece)
            if len(waiting) > BEHIND:
                waiting.popleft().result()
        barrier(f"{path.name} written")
        sync(file.fileno(), path)
        _forget(file.fileno())
        for rest in waiting:
            rest.result()
    return {"bytes": size, "sha256": digest.hexdigest()}


def _forget(handle: int) -> None:
    """Let the system give up the pages of a flushed file: nobody reads it soon, and others want the memory."""
    if hasattr(os, "posix_fadvise"):
        with contextlib.suppress(OSError):
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)


def at_once() -> int:
    """Return how many files are written, or read and hashed, at a time: of slow disks, a few; and of processors."""
    return min(8, os.cpu_count() or 1)
