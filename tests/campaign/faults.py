"""Errors of the operating system, raised at the n-th change of the disk below a folder."""

from __future__ import annotations

import builtins
import errno
import fcntl
import io
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WRITES = ("open", "write", "fsync", "fsync folder", "rename", "mkdir", "unlink", "truncate")


class _File:
    """A file whose writes are counted."""

    def __init__(self, file: Any, tick: Callable[[str], None]) -> None:
        self._file, self._tick = file, tick

    def write(self, data: Any) -> Any:
        self._tick("write")
        return self._file.write(data)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def truncate(self, *size: int) -> Any:
        self._tick("truncate")
        return self._file.truncate(*size)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> _File:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def __iter__(self) -> Any:
        return iter(self._file)


@dataclass(frozen=True)
class Faults:
    """Called in a process, it has one kind of change fail from then on.

    Parameters
    ----------
    under : str
        The folder; other places are spared.
    what : str or None
        The kind of change, of `WRITES`, or "flock", "link" or "utime"; None lets all succeed.
    at : int
        Which one fails, from 0.
    number : int
        The error, of `errno`.
    stays : bool
        Whether all later ones fail too, as on a full disk.
    note : str or None
        A file in which every change is written down by its kind.
    """

    under: str
    what: str | None = None
    at: int = 0
    number: int = errno.ENOSPC
    stays: bool = False
    note: str | None = None

    def __call__(self) -> None:
        passed = 0
        real_open = builtins.open
        notes = None if self.note is None else real_open(self.note, "a", buffering=1)

        def tick(what: str) -> None:
            nonlocal passed
            if notes is not None:
                notes.write(what + "\n")
            if what != self.what:
                return
            passed += 1
            if passed - 1 == self.at or (self.stays and passed - 1 > self.at):
                raise OSError(self.number, os.strerror(self.number))

        def concerns(path: Any) -> bool:
            try:
                if isinstance(path, int):
                    path = os.readlink(f"/proc/self/fd/{path}")
                name = os.path.abspath(os.fsdecode(path))
            except (OSError, TypeError, ValueError):
                return False
            return name == self.under or name.startswith(self.under + os.sep)

        def opening(path: Any, mode: str = "r", *args: Any, **named: Any) -> Any:
            if not set(mode) & set("wax+") or not concerns(path):
                return real_open(path, mode, *args, **named)
            tick("open")
            return _File(real_open(path, mode, *args, **named), tick)

        def ticking(module: Any, name: str, what: str | Callable[..., str]) -> None:
            real = getattr(module, name)

            def call(*args: Any, **named: Any) -> Any:
                first = args[0] if args else None
                if named.get("dir_fd") is None and concerns(first.fileno() if hasattr(first, "fileno") else first):
                    tick(what if isinstance(what, str) else what(*args))
                return real(*args, **named)

            setattr(module, name, call)

        builtins.open = io.open = opening  # type: ignore[assignment]
        for name in ("rename", "replace"):
            ticking(os, name, "rename")
        for name in ("unlink", "remove", "rmdir"):
            ticking(os, name, "unlink")
        for name in ("write", "pwrite"):
            ticking(os, name, "write")
        ticking(os, "mkdir", "mkdir")
        ticking(os, "link", "link")
        ticking(os, "utime", "utime")
        ticking(os, "truncate", "truncate")
        ticking(os, "fsync", lambda handle: "fsync folder" if Path(f"/proc/self/fd/{handle}").is_dir() else "fsync")
        ticking(fcntl, "flock", "flock")
        self._safetensors(tick, concerns)

    @staticmethod
    def _safetensors(tick: Callable[[str], None], concerns: Callable[[Any], bool]) -> None:
        import safetensors.torch
        from safetensors import SafetensorError

        real = safetensors.torch.serialize_file

        def serialize(tensors: Any, path: Any, *args: Any, **named: Any) -> Any:
            if concerns(path):
                try:
                    tick("write")
                except OSError as error:  # as the library says it
                    words = f"Error while serializing: I/O error: {error.strerror} (os error {error.errno})"
                    raise SafetensorError(words) from None
            return real(tensors, path, *args, **named)

        safetensors.torch.serialize_file = serialize
