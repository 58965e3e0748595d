"""The reference beside a checkpoint of TRL's: written whole or not at all, and held against its checksums when read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

from humanline.integrations.trl.refusals import TrainerError
from humanline.system.files import DamagedError, UnreadableError, make_folder
from humanline.system.folders import publish_folder, remove_folder, verify_folder

FOLDER = "humanline-reference"  # in each checkpoint-N
TENSORS, SETTINGS = "reference.safetensors", "settings.json"
OPTIMIZER = "optimizer.pt"
STATE = "trainer_state.json"  # the last of the trainer's own files, without which it does not resume


def write(checkpoint: Path, tensors: Mapping[str, Tensor], step: int, settings: dict[str, Any]) -> None:
    """Write a reference into a checkpoint's folder, which need not be there yet; raise WriteError as `patient` does."""
    said = {"step": step} | settings
    folder = checkpoint / FOLDER
    make_folder(checkpoint)
    # Of an earlier run that came as far, and that this one overwrites: stopped in between, the folder would hold the
    # reference of one run and the weights of the other, and look whole.
    (checkpoint / STATE).unlink(missing_ok=True)
    if folder.exists():
        remove_folder(folder)

    def fill(partial: Path) -> None:
        save_file({name: one.contiguous() for name, one in tensors.items()}, partial / TENSORS)
        (partial / SETTINGS).write_text(json.dumps(said, indent=1) + "\n", encoding="utf-8")

    publish_folder(folder, fill, room=sum(one.nbytes for one in tensors.values()))


def check_whole(checkpoint: Path) -> None:
    """Raise TrainerError if a checkpoint that has a reference lacks what a trainer would go on without, in silence."""
    missing = [name for name in (OPTIMIZER, STATE) if not (checkpoint / name).is_file()]
    if missing and (checkpoint / FOLDER).is_dir():
        raise TrainerError(
            f"{checkpoint} holds no {missing[0]}: its saving was cut off, or save_only_model=True left it out, and the "
            "run would go on as a different one. Resume from a whole checkpoint, or start anew from its weights: "
            "model=that folder, and train() without resume_from_checkpoint"
        )


def read(checkpoint: Path, settings: dict[str, Any]) -> tuple[int, dict[str, Tensor]]:
    """Return the step of a checkpoint, and its reference in host memory.

    Raises
    ------
    TrainerError
        If it is not there, is not what was written, or belongs to other settings.
    """
    folder = checkpoint / FOLDER
    if not folder.is_dir():
        raise TrainerError(
            f"{checkpoint} holds no {FOLDER}, so it is not known what its log-ratios were taken against; with another "
            "reference the run would go on as a different one. Resume from a checkpoint that was saved with "
            "apply_humanline, or start anew from its weights: model=that folder, and train() without "
            "resume_from_checkpoint"
        )
    try:
        verify_folder(folder)
        kept = json.loads((folder / SETTINGS).read_text(encoding="utf-8"))
    except (DamagedError, UnreadableError) as error:
        raise TrainerError(f"{folder} cannot be used: {error}; resume from another checkpoint") from None
    step = kept.pop("step")
    changed = sorted(name for name in settings.keys() | kept.keys() if settings.get(name) != kept.get(name))
    if changed:
        told = "; ".join(f"{name} was {kept.get(name)} and is {settings.get(name)}" for name in changed)
        raise TrainerError(f"{checkpoint} belongs to other settings of apply_humanline: {told}. Give it the same")
    return step, load_file(folder / TENSORS)
