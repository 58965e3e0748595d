"""Files that survive a kill or a power cut: written under another name, flushed, then renamed."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from humanline.system.disk import NoRoomError, in_words, patient, tell
from humanline.system.paths import PathError, absolute_utf8

# What a file system without hard links answers to one.
NO_LINKS = frozenset(
    {errno.EPERM, errno.EACCES, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK, errno.EXDEV}
)
SPARE = 64 * 2**20  # bytes that must stay free beside what is written
PARTIAL = ".partial"  # how the hidden name of what is being prepared ends
_NO_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)  # there is no such thing here: no data lost
_untold = {"files", "folders"}  # that cannot be flushed: a warning is still to be given


class DamagedError(ValueError):
    """A published folder that is not what was written; the message names the files."""


class UnreadableError(OSError):
    """A published folder of which files cannot be read just now, so that nobody knows whether it is whole."""


class HeldFiles:
    """ASCII files that are kept open, so that they can be made again if someone removes them while a run goes on."""

    def __init__(self) -> None:
        self._open: dict[Path, BinaryIO] = {}

    def hold(self, paths: Iterable[Path]) -> None:
        """Hold these files in place of those before, as far as they are there."""
        for file in self._open.values():
            file.close()
        self._open.clear()
        for path in paths:
            with contextlib.suppress(OSError):
                self._open[path] = open(path, "rb")  # noqa: SIM115

    def remake(self) -> list[Path]:
        """Write again what is gone, and return it; raise as `patient` does."""
        gone = [path for path in self._open if not path.exists()]
        for path in gone:
            make_folder(path.parent)
            write_text(path, text_of_open(self._open[path].fileno()))
        return gone


def text_of_open(handle: int) -> Lines:
    """Return the text of an open ASCII file, whatever its name is by now, in pieces."""

    def pieces() -> Iterator[str]:
        at = 0
        while piece := os.pread(handle, 1 << 20, at):
            yield piece.decode("ascii")
            at += len(piece)

    return Lines(pieces)


class Lines:
    """The parts of a text, made anew each time they are asked for, so that a write can be tried again.

    Parameters
    ----------
    make : callable
    """

    def __init__(self, make: Callable[[], Iterator[str]]) -> None:
        self._make = make

    def __iter__(self) -> Iterator[str]:
        return self._make()


def barrier(what: str) -> None:
    """Do nothing: called after every change of the disk, with the name of the change, so that tests can stop there."""


def write_text(path: Path, text: str | Iterable[str]) -> None:
    """Write a file, given whole or in parts, whole or not at all; an earlier one is replaced in one step.

    Parameters
    ----------
    path : Path
    text : str or iterable of str
        What can be gone through only once is held in memory; `Lines` is not.

    Raises
    ------
    WriteError
        As `patient` does; an earlier file is as it was.
    """
    parts = [text] if isinstance(text, str) else text
    if iter(parts) is parts:
        parts = list(parts)
    patient(path, lambda: _write(path, (part.encode() for part in parts)), lambda: sum(len(p.encode()) for p in parts))


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file as `write_text` does, of bytes."""
    patient(path, lambda: _write(path, [data]), len(data))


def _write(path: Path, parts: Iterable[bytes]) -> None:
    partial = partial_of(path)
    try:
        with open(partial, "wb", buffering=0) as file:
            for part in parts:
                write_all(file.fileno(), part)
            sync(file.fileno(), path)
        barrier(f"{path.name} written")
        partial.rename(path)
    except BaseException:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise
    barrier(f"{path.name} renamed")
    flush(path.parent)


def publish_file(file: Path, target: Path) -> None:
    """Give a whole, flushed file the name `target`, which nothing else has; both are on one file system.

    Raises
    ------
    FileExistsError
        If something has that name by now; it is as it was, and so is `file`.
    OSError
        If the file cannot be renamed.
    """
    try:
        os.link(file, target)
    except FileExistsError:
        if not os.path.samefile(file, target):  # over NFS a link that was made may be asked for once more
            raise
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        if os.path.lexists(target):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target)) from None
        file.rename(target)
    barrier(f"{target.name} named")
    file.unlink(missing_ok=True)
    flush(target.parent)


def write_all(handle: int, data: bytes | memoryview) -> None:
    """Write all of it: a full disk may take a part only, and refuses what comes after it."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(handle, rest) :]


def make_folder(path: Path, *, parents: bool = True) -> None:
    """Make a folder, and its parents, where they are missing; raise as `patient` does.

    Where the path leads by links to a folder that is gone, it is that one which is made, and the links stay.
    """
    patient(path, lambda: where_links_lead(path).mkdir(parents=parents, exist_ok=True))


def where_links_lead(path: Path) -> Path:
    """Return the path without links, whether or not anything is there; of links in a circle some are left."""
    return Path(os.path.realpath(path))


@contextlib.contextmanager
def disk_errors() -> Iterator[None]:
    """Turn the exceptions that libraries have of their own for a failed write into an OSError."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        number = re.search(r"\(os error (\d+)\)", str(error))  # as safetensors and tokenizers write it
        if number is None and type(error).__name__ != "SafetensorError":
            raise
        code = int(number[1]) if number else errno.EIO
        raise OSError(code, os.strerror(code) if number else str(error)) from error


def free_name(folder: Path, name: str) -> Path:
    """Return a name in a folder that nothing has yet, numbered if need be."""
    path, number = folder / name, 1
    while path.exists():
        number += 1
        path = (folder / name).with_stem(f"{Path(name).stem}-{number}")
    return path


def check_room(folder: Path, needed: int) -> None:
    """Raise NoRoomError if the file system of a folder has too little space for so many bytes."""
    free = shutil.disk_usage(folder).free
    if needed and free < needed + SPARE:
        raise NoRoomError(
            f"{folder}: {in_words(needed)} needed, {in_words(SPARE)} more to stay free, but {in_words(free)} are free"
        )


def flush(path: Path) -> None:
    """Flush a file, or the names in a folder, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        sync(handle, path)
    finally:
        os.close(handle)


def sync(handle: int, path: Path) -> None:
    """Flush an open file or folder to the disk.

    A file system that cannot flush files or folders (FUSE, SMB) gets one warning, and the run goes on: a kill costs
    nothing there. A flush that failed (EIO, ENOSPC) is always an error.
    """
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in _NO_SYNC:
            raise
        kind = "folders" if stat.S_ISDIR(os.fstat(handle).st_mode) else "files"
        if kind in _untold:
            _untold.discard(kind)
            tell(
                f"warning: the file system of {path} cannot flush {kind} ({error.strerror}): a power cut may cost what "
                "was written last; a process that is killed loses nothing"
            )


def partial_of(path: Path) -> Path:
    """Return the hidden name under which a file or folder is prepared."""
    return path.with_name(f".{path.name}{PARTIAL}")


class OutputError(ValueError):
    """An output folder that cannot be used."""


def output_path(path: str | Path) -> Path:
    """Return the absolute path of an output folder; raise OutputError if no folder can have such a path."""
    try:
        return absolute_utf8(path)
    except PathError as error:
        raise OutputError(f"output {str(path)!r} {error}") from None


def refuse_used_folder(path: str | Path) -> Path:
    """Return the absolute path of an output folder that is free to be made.

    Raises
    ------
    OutputError
        If the path cannot be a folder (`output_path`), is a file, or a folder that already holds something: nothing of
        an earlier run is overwritten.
    """
    folder = output_path(path)
    try:
        free = not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))
    except OSError as error:
        raise OutputError(f"output {str(path)!r} cannot be used: {error.strerror}") from None
    if not free:
        raise OutputError(
            f"output {str(path)!r} already exists and is not an empty folder; choose another or remove it"
        )
    return folder


def claim_folder(path: str | Path) -> Path:
    """Create an output folder and return its absolute path.

    Raises
    ------
    OutputError
        If it is in use (`refuse_used_folder`) or cannot be created.
    """
    folder = refuse_used_folder(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"output {str(path)!r} cannot be created: {error.strerror}") from None
    return folder
