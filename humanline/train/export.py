"""Folders of a run: claimed once, and filled so that nothing is ever half-written."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any


class OutputError(ValueError):
    """An output folder that cannot be used."""


def claim_folder(path: str | Path) -> Path:
    """Create an output folder.

    Raises
    ------
    OutputError
        If the path is a file, or a folder that already holds something: nothing of an earlier run is overwritten.
    """
    folder = Path(path)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise OutputError(
            f"output {str(folder)!r} already exists and is not an empty folder; choose another or remove it"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"output {str(folder)!r} cannot be created: {error.strerror}") from None
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
    model.save_pretrained(partial)
    tokenizer.save_pretrained(partial)
    for file in partial.rglob("*"):
        if file.is_file():
            with open(file, "rb+") as handle:
                os.fsync(handle.fileno())
    partial.rename(folder)
    return folder
