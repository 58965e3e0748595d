"""Files that survive a kill or a power cut: written under another name, flushed, then renamed.

A folder published here holds `manifest.json`, written last, with the size and SHA-256 of every other file; a folder
that is there under its name is complete, and `verify_folder` tells whether it still is. Neither safetensors nor a file
system notices an overwritten byte.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO

from humanline.system.disk import NoRoomError, in_words, patient, tell
from humanline.system.paths import PathError, absolute_utf8

# What a file system without hard links answers to one.
NO_LINKS = frozenset(
    {errno.EPERM, errno.EACCES, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK, errno.EXDEV}
)
MANIFEST = "manifest.json"
SPARE = 64 * 2**20  # bytes that must stay free beside what is written
_PARTIAL, _DELETING = ".partial", ".deleting"
_NO_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)  # there is no such thing here: no data lost
_GONE = (errno.ENOENT, errno.ENOTDIR)
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
    patient(path, lambda: _write_text(path, parts), lambda: sum(len(part.encode()) for part in parts))


def _write_text(path: Path, parts: Iterable[str]) -> None:
    partial = path.with_name(f".{path.name}{_PARTIAL}")
    try:
        with open(partial, "wb", buffering=0) as file:
            for part in parts:
                write_all(file.fileno(), part.encode())
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


def write_all(handle: int, data: bytes) -> None:
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


def publish_folder(folder: Path, fill: Callable[[Path], None], *, room: int = 0) -> None:
    """Make a folder appear under its name with everything that `fill` writes, or not at all.

    Parameters
    ----------
    folder : Path
        Must not exist; its parent must.
    fill : callable
        Writes the files into the folder it is given, which is empty; called again where a full disk is waited for.
    room : int
        Bytes that will be written.

    Raises
    ------
    WriteError
        As `patient` does, also if there are fewer free bytes than that; nothing is left of it.
    """

    def act() -> None:
        try:
            partial = begin_folder(folder, room=room)
            with disk_errors():
                fill(partial)
            seal_folder(folder)
        except BaseException:
            drop_partial(folder)
            raise

    patient(folder, act, room)


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


def begin_folder(folder: Path, *, room: int = 0) -> Path:
    """Create, empty, the hidden folder in which `folder` is prepared, and return it; raise OSError or NoRoomError."""
    check_room(folder.parent, room)
    drop_partial(folder)
    partial = partial_of(folder)
    partial.mkdir()
    barrier(f"{folder.name} begun")
    return partial


def flush_files(folder: Path, paths: Iterable[Path]) -> dict[str, dict[str, Any]]:
    """Flush files of a prepared folder, and return size and SHA-256 of each by its name in the folder.

    The umask says who may read them. Where several processes write, each does this for its own files.
    """
    partial, paths = partial_of(folder), list(paths)

    def flushed(path: Path) -> dict[str, Any]:
        _let_read(path, like=partial)
        flush(path)
        return _facts(path)

    facts = {}
    with _hashers() as pool:
        for path, its in zip(paths, pool.map(flushed, paths), strict=True):
            facts[path.relative_to(partial).as_posix()] = its
            barrier(f"{folder.name}: {path.name} flushed")
    return facts


def seal_folder(folder: Path, known: Mapping[str, dict[str, Any]] | None = None) -> None:
    """Flush a prepared folder, write its manifest last, and give it its name.

    Parameters
    ----------
    folder : Path
    known : mapping, optional
        What `flush_files` has said of files that need not be read again.

    Raises
    ------
    OSError
        If a write fails, or a known file is not there as it was.
    """
    partial, known = partial_of(folder), known or {}
    paths = {path.relative_to(partial).as_posix(): path for path in partial.rglob("*") if path.is_file()}
    for name, facts in known.items():
        size = paths[name].stat().st_size if name in paths else None
        if size != facts["bytes"]:
            found = "is not there" if size is None else f"has {size} bytes here"
            raise OSError(errno.EIO, f"{name} was written with {facts['bytes']} bytes, but {found}")
    rest = flush_files(folder, [path for name, path in sorted(paths.items()) if name not in known])
    files = dict(sorted({**known, **rest}.items()))
    write_text(partial / MANIFEST, json.dumps({"files": files, "digest": _digest(files)}, indent=1) + "\n")
    for path in [*(path for path in partial.rglob("*") if path.is_dir()), partial]:
        flush(path)
    barrier(f"{folder.name} sealed")
    partial.rename(folder)
    barrier(f"{folder.name} named")
    flush(folder.parent)


def drop_partial(folder: Path) -> None:
    """Remove what is left of an unfinished `folder`."""
    shutil.rmtree(partial_of(folder), ignore_errors=True)


def remove_folder(folder: Path) -> None:
    """Remove a published folder; a kill half-way leaves nothing under its name."""
    doomed = _doomed(folder)
    _discard(doomed)
    folder.rename(doomed)
    barrier(f"{folder.name} unnamed")
    _discard(doomed)
    barrier(f"{folder.name} removed")


def finish_removal(folder: Path) -> None:
    """Remove what a kill half-way through `remove_folder` has left, as far as that can be removed."""
    with contextlib.suppress(OSError):
        _discard(_doomed(folder))


def free_name(folder: Path, name: str) -> Path:
    """Return a name in a folder that nothing has yet, numbered if need be."""
    path, number = folder / name, 1
    while path.exists():
        number += 1
        path = (folder / name).with_stem(f"{Path(name).stem}-{number}")
    return path


def sweep(parent: Path) -> None:
    """Remove what kills have left in a folder: unfinished files and folders, and half-removed ones."""
    for path in parent.iterdir() if parent.is_dir() else ():
        if path.name.startswith(".") and path.name.endswith((_PARTIAL, _DELETING)):
            _discard(path)


def _discard(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def verify_folder(folder: Path, *, foreign: bool = False) -> None:
    """Compare every file of a published folder with its manifest.

    Parameters
    ----------
    folder : Path
    foreign : bool
        Whether it may hold files that are not in the manifest.

    Raises
    ------
    DamagedError
        If the manifest is missing or damaged, or a file is missing, has another size or other bytes, or, unless
        `foreign`, is not in the manifest; every such file is named.
    UnreadableError
        If none of that is known, but a file cannot be read (no permission, an error of the disk).
    """
    try:
        manifest: Any = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        files: dict[str, dict[str, Any]] = manifest["files"]
        if manifest["digest"] != _digest(files):
            raise ValueError("its digest does not match")
    except OSError as error:
        if error.errno not in _GONE:
            raise UnreadableError(error.errno, f"{MANIFEST} cannot be read: {error.strerror}") from None
        raise DamagedError(f"{MANIFEST} is missing") from None
    except (ValueError, TypeError, KeyError) as error:
        raise DamagedError(f"{MANIFEST} cannot be trusted: {error}") from None
    wrong: list[str] = []
    unread: list[str] = []

    def compare(name: str) -> None:
        facts = files[name]
        try:
            size = (folder / name).stat().st_size
            if size != facts["bytes"]:
                wrong.append(f"{name} has {size} bytes in place of {facts['bytes']}")
            elif _facts(folder / name) != facts:
                wrong.append(f"{name} has other bytes than were written")
        except OSError as error:
            gone = error.errno in _GONE
            (wrong if gone else unread).append(
                f"{name} {'is missing' if gone else f'cannot be read: {error.strerror}'}"
            )

    with _hashers() as pool:
        list(pool.map(compare, files))
    wrong.sort()
    unread.sort()
    here = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    if not foreign:
        wrong += [f"{name} does not belong to it" for name in sorted(here - files.keys() - {MANIFEST})]
    if wrong:
        raise DamagedError(_few(wrong))
    if unread:
        raise UnreadableError(errno.EIO, _few(unread))


def _few(found: list[str]) -> str:
    return "; ".join(found[:6]) + (f"; and {len(found) - 6} more" if len(found) > 6 else "")


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


def _let_read(path: Path, *, like: Path) -> None:
    """Give a file the permissions that the umask gave a folder; safetensors lets nobody but the owner read."""
    now, wanted = (stat.S_IMODE(one.stat().st_mode) for one in (path, like))
    wanted &= 0o666  # a file need not be executable
    if now != wanted:
        path.chmod(wanted)


def partial_of(folder: Path) -> Path:
    """Return the hidden folder in which `folder` is prepared."""
    return folder.with_name(f".{folder.name}{_PARTIAL}")


def _doomed(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}{_DELETING}")


def _facts(path: Path) -> dict[str, Any]:
    with open(path, "rb") as file:
        return {"bytes": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def _hashers() -> ThreadPoolExecutor:
    """Return threads that read files and hash them, which keeps one of them busy as long as the disk is faster."""
    return ThreadPoolExecutor(min(8, os.cpu_count() or 1), thread_name_prefix="hash")


def _digest(files: dict[str, dict[str, Any]]) -> str:
    return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()


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
