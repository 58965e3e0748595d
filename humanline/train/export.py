"""Folders of a run: claimed once, and filled so that nothing is ever half-written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from humanline.train.durable import publish_folder


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


def save_model(folder: Path, model: Any, tokenizer: Any) -> None:
    """Write weights, tokenizer and template in Hugging Face format, complete or not at all.

    The folder appears under its name only when every file in it is written and flushed to disk, with a manifest of
    sizes and checksums.

    Parameters
    ----------
    folder : Path
        Must not exist; its parent must.
    model, tokenizer
        Of transformers; weights go to safetensors.

    Raises
    ------
    OSError
        If there is too little space or a write fails; nothing is left of it.
    """

    def fill(partial: Path) -> None:
        model.save_pretrained(partial)
        tokenizer.save_pretrained(partial)

    publish_folder(folder, fill, room=sum(tensor.nbytes for tensor in model.parameters()))
