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
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

# What a file system without hard links answers to one.
NO_LINKS = frozenset(
    {errno.EPERM, errno.EACCES, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK, errno.EXDEV}
)
MANIFEST = "manifest.json"
_SPARE = 64 * 2**20  # bytes that must stay free beside what is written
_PARTIAL, _DELETING = ".partial", ".deleting"


class DamagedError(ValueError):
    """A published folder that is not what was written; the message names the files."""


class NoRoomError(OSError):
    """A file system with less free space than a write needs; nothing was written."""


def barrier(what: str) -> None:
    """Do nothing. Called after every change of the disk, by the name of the change; tests stop the process here."""


def write_text(path: Path, text: str | Iterable[str]) -> None:
    """Write a file, given whole or in parts, whole or not at all; an earlier one is replaced in one step.

    Raises
    ------
    OSError
        If it cannot be written; an earlier file is as it was.
    """
    partial = path.with_name(f".{path.name}{_PARTIAL}")
    try:
        with open(partial, "w", encoding="utf-8") as file:
            file.writelines([text] if isinstance(text, str) else text)
            file.flush()
            os.fsync(file.fileno())
        barrier(f"{path.name} written")
        partial.rename(path)
    except BaseException:
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


def publish_folder(folder: Path, fill: Callable[[Path], None], *, room: int = 0) -> None:
    """Make a folder appear under its name with everything that `fill` writes, or not at all.

    Parameters
    ----------
    folder : Path
        Must not exist; its parent must.
    fill : callable
        Writes the files into the folder it is given, which may hold some already (`begin_folder`).
    room : int
        Bytes that will be written.

    Raises
    ------
    NoRoomError
        If there are fewer free bytes than that.
    OSError
        If a write fails; nothing is left of it.
    """
    try:
        partial = begin_folder(folder, room=room)
        with disk_errors():
            fill(partial)
        seal_folder(folder)
    except BaseException:
        drop_partial(folder)
        raise


@contextlib.contextmanager
def disk_errors() -> Iterator[None]:
    """Turn the exception that safetensors has of its own for a failed write into an OSError."""
    try:
        yield
    except SafetensorError as error:
        raise OSError(str(error)) from error


def begin_folder(folder: Path, *, room: int = 0) -> Path:
    """Create, empty, the hidden folder in which `folder` is prepared, and return it; raise as `publish_folder` does."""
    check_room(folder.parent, room)
    drop_partial(folder)
    partial = _partial(folder)
    partial.mkdir()
    barrier(f"{folder.name} begun")
    return partial


def seal_folder(folder: Path) -> None:
    """Flush a prepared folder, write its manifest last, and give it its name; the umask says who may read its files."""
    partial = _partial(folder)
    files = {}
    for path in sorted(path for path in partial.rglob("*") if path.is_file()):
        _let_read(path, like=partial)
        flush(path)
        files[path.relative_to(partial).as_posix()] = _facts(path)
        barrier(f"{folder.name}: {path.name} flushed")
    write_text(partial / MANIFEST, json.dumps({"files": files, "digest": _digest(files)}, indent=1) + "\n")
    for path in [*(path for path in partial.rglob("*") if path.is_dir()), partial]:
        flush(path)
    barrier(f"{folder.name} sealed")
    partial.rename(folder)
    barrier(f"{folder.name} named")
    flush(folder.parent)


def drop_partial(folder: Path) -> None:
    """Remove what is left of an unfinished `folder`."""
    shutil.rmtree(_partial(folder), ignore_errors=True)


def remove_folder(folder: Path) -> None:
    """Remove a published folder; a kill half-way leaves nothing under its name."""
    doomed = folder.with_name(f".{folder.name}{_DELETING}")
    _discard(doomed)
    folder.rename(doomed)
    barrier(f"{folder.name} unnamed")
    _discard(doomed)
    barrier(f"{folder.name} removed")


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
    """
    try:
        manifest: Any = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        files: dict[str, dict[str, Any]] = manifest["files"]
        if manifest["digest"] != _digest(files):
            raise ValueError("its digest does not match")
    except FileNotFoundError:
        raise DamagedError(f"{MANIFEST} is missing") from None
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise DamagedError(f"{MANIFEST} cannot be trusted: {error}") from None
    wrong = []
    for name, facts in files.items():
        try:
            size = (folder / name).stat().st_size
            if size != facts["bytes"]:
                wrong.append(f"{name} has {size} bytes in place of {facts['bytes']}")
            elif _facts(folder / name) != facts:
                wrong.append(f"{name} has other bytes than were written")
        except FileNotFoundError:
            wrong.append(f"{name} is missing")
        except OSError as error:
            wrong.append(f"{name} cannot be read: {error.strerror}")
    here = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    if not foreign:
        wrong += [f"{name} does not belong to it" for name in sorted(here - files.keys() - {MANIFEST})]
    if wrong:
        raise DamagedError("; ".join(wrong[:6]) + (f"; and {len(wrong) - 6} more" if len(wrong) > 6 else ""))


def check_room(folder: Path, needed: int) -> None:
    """Raise NoRoomError if the file system of a folder has too little space for so many bytes."""
    free = shutil.disk_usage(folder).free
    if needed and free < needed + _SPARE:
        raise NoRoomError(
            f"{folder}: {in_words(needed)} needed, {in_words(_SPARE)} more to stay free, but {in_words(free)} are free"
        )


def in_words(count: int) -> str:
    """Return a number of bytes for people."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} bytes"


def flush(path: Path) -> None:
    """Have a file, or the names in a folder, written to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _let_read(path: Path, *, like: Path) -> None:
    """Give a file the permissions that the umask gave a folder; safetensors lets nobody but the owner read."""
    now, wanted = (stat.S_IMODE(one.stat().st_mode) for one in (path, like))
    wanted &= 0o666  # a file need not be executable
    if now != wanted:
        path.chmod(wanted)


def _partial(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}{_PARTIAL}")


def _facts(path: Path) -> dict[str, Any]:
    with open(path, "rb") as file:
        return {"bytes": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def _digest(files: dict[str, dict[str, Any]]) -> str:
    return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()
