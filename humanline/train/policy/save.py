"""Finished models, written so that nothing is ever half-written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from humanline.system.activity import HERE
from humanline.system.files import claim_folder, publish_folder


@HERE.doing("saving the model")
def save_model(folder: Path, model: Any, tokenizer: Any) -> None:
    """Write weights, tokenizer and template in Hugging Face format, complete or not at all.

    The folder appears under its name only when every file in it is written and flushed to disk, with a manifest of
    sizes and checksums. Its generation_config.json says do_sample, without which transformers serve takes the most
    probable token at any temperature; all else in it stays as the model has it.

    Parameters
    ----------
    folder : Path
        Must not exist; its parent must.
    model, tokenizer
        Model of transformers; its weights go to safetensors.

    Raises
    ------
    OSError
        If there is too little space or a write fails; nothing is left of it.
    """

    def fill(partial: Path) -> None:
        model.save_pretrained(partial)
        tokenizer.save_pretrained(partial)
        _let_servers_sample(partial / "generation_config.json")

    publish_folder(folder, fill, room=sum(tensor.nbytes for tensor in model.parameters()))


def _let_servers_sample(file: Path) -> None:
    if not file.is_file():  # an adapter has none
        return
    settings = json.loads(file.read_text(encoding="utf-8"))
    if settings.get("temperature") != 0:  # which cannot be sampled at
        settings["do_sample"] = True
        file.write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def create_model(path: str | Path, model: Any, tokenizer: Any) -> Path:
    """Write a model (`save_model`) to a folder that is free to be made, and return its absolute path.

    Raises
    ------
    OutputError
        As `claim_folder` does.
    OSError
        As `save_model` does.
    """
    folder = claim_folder(path)
    folder.rmdir()  # it appears under its name only when it is complete
    save_model(folder, model, tokenizer)
    return folder
