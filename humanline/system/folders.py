"""Folders that appear under their name only when they are whole, and of which it can be told whether they still are.

A folder published here holds `manifest.json`, written last, with the size and SHA-256 of every other file; a folder
that is there under its name is complete, and `verify_folder` tells whether it still is. Neither safetensors nor a file
system notices an overwritten byte.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import shutil
import stat
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from humanline.system.disk import patient
from humanline.system.files import (
    PARTIAL,
    DamagedError,
    UnreadableError,
    barrier,
    check_room,
    disk_errors,
    flush,
    partial_of,
    write_text,
)
from humanline.system.hashing import at_once, facts_of

MANIFEST = "manifest.json"
_DELETING = ".deleting"
_GONE = (errno.ENOENT, errno.ENOTDIR)


def publish_folder(folder: Path, fill: Callable[[Path], None], *, room: int = 0, to_edit: Collection[str] = ()) -> None:
    """Make a folder appear under its name with everything that `fill` writes, or not at all.

    Parameters
    ----------
    folder : Path
        Must not exist; its parent must.
    fill : callable
        Writes the files into the folder it is given, which is empty; called again where a full disk is waited for.
    room : int
        Bytes that will be written.
    to_edit : collection of str
        As in `seal_folder`.

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
            seal_folder(folder, to_edit=to_edit)
        except BaseException:
            drop_partial(folder)
            raise

    patient(folder, act, room)


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
        return facts_of(path)

    facts = {}
    with _hashers() as pool:
        for path, its in zip(paths, pool.map(flushed, paths), strict=True):
            facts[path.relative_to(partial).as_posix()] = its
            barrier(f"{folder.name}: {path.name} flushed")
    return facts


def seal_folder(
    folder: Path, known: Mapping[str, dict[str, Any]] | None = None, *, to_edit: Collection[str] = ()
) -> None:
    """Flush a prepared folder, write its manifest last, and give it its name.

    Parameters
    ----------
    folder : Path
    known : mapping, optional
        What `flush_files` has said of files that need not be read again.
    to_edit : collection of str
        Files that people may change: the manifest does not hold them.

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
    files = dict(sorted((name, facts) for name, facts in {**known, **rest}.items() if name not in to_edit))
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


def sweep(parent: Path) -> None:
    """Remove what kills have left in a folder: unfinished files and folders, and half-removed ones."""
    for path in parent.iterdir() if parent.is_dir() else ():
        if path.name.startswith(".") and path.name.endswith((PARTIAL, _DELETING)):
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
            elif facts_of(folder / name) != facts:
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


def _let_read(path: Path, *, like: Path) -> None:
    """Give a file the permissions that the umask gave a folder; safetensors lets nobody but the owner read."""
    now, wanted = (stat.S_IMODE(one.stat().st_mode) for one in (path, like))
    wanted &= 0o666  # a file need not be executable
    if now != wanted:
        path.chmod(wanted)


def _doomed(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}{_DELETING}")


def _hashers() -> ThreadPoolExecutor:
    """Return threads that read files and hash them, which keeps one of them busy as long as the disk is faster."""
    return ThreadPoolExecutor(at_once(), thread_name_prefix="hash")


def _digest(files: dict[str, dict[str, Any]]) -> str:
    return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()
