"""Folders of a run: claimed once, and filled so that nothing is ever half-written."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any


class OutputError(ValueError):
    """An output folder that cannot be used."""


def refuse_used_folder(path: str | Path) -> Path:
    """Return the absolute path of an output folder that is free to be made.

    Raises
    ------
    OutputError
        If the path is a file, or a folder that already holds something: nothing of an earlier run is overwritten.
    """
    folder = Path(path).expanduser().absolute()
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


def save_model(folder: Path, model: Any, tokenizer: Any) -> Path:
    """Write weights, tokenizer and template in Hugging Face format, complete or not at all.

    The folder appears under its name only when every file in it is written and flushed to disk.

    Parameters
    ----------
    folder : Path
        Must not exist; its parent must.
    model, tokenizer
        Of transformers; weights go to safetensors.
    """
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        model.save_pretrained(partial)
        tokenizer.save_pretrained(partial)
        for path in [*partial.rglob("*"), partial]:
            _flush(path)
        partial.rename(folder)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    _flush(folder.parent)
    return folder


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
