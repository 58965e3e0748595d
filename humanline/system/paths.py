"""Paths as people write them: in full, and refused where no library could open or make such a file."""

from __future__ import annotations

import errno
import os
from pathlib import Path

DEMO = "demo-out"  # what `humanline demo` writes, and recipes such as tiny begin from


def made_by(path: str | Path) -> str:
    """Return what to add to a message that a path does not exist, if a command makes it."""
    return "; humanline demo makes it, in some three minutes" if DEMO in Path(path).parts else ""


class PathError(ValueError):
    """A path that cannot be used; the message goes on from the path's name."""


def absolute(path: str | Path) -> Path:
    """Return a path in full, `~` and `~name` written out; nothing needs to be there.

    Raises
    ------
    PathError
        If it holds a NUL character or half of a surrogate pair, names a user who is not known, leads in a circle of
        links, or is longer than the file system allows.
    """
    if "\0" in str(path):
        raise PathError("names no file: it holds a NUL character")
    try:
        full = Path(path).expanduser().absolute()
    except RuntimeError:
        raise PathError("begins with the home folder of a user who is not known here") from None
    try:
        os.stat(full)
    except UnicodeEncodeError:  # a file system's names are bytes, and no bytes are read as this
        raise PathError(f"names no file: it holds a character that no file name has, as in {str(path)!r}") from None
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENAMETOOLONG):
            raise PathError(f"names no file: {os.strerror(error.errno).lower()}") from None
    return full


def absolute_utf8(path: str | Path) -> Path:
    """Return a path as `absolute` does, of a model or a run: safetensors and tokenizers open no other names.

    Raises
    ------
    PathError
        As `absolute` does, or if the whole path is not UTF-8.
    """
    full = absolute(path)
    try:
        str(full).encode()
    except UnicodeEncodeError:
        raise PathError(f"is {str(full)!r} in full, a name that is not UTF-8; choose another folder") from None
    return full
