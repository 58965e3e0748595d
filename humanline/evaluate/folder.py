"""The folder of an evaluation: made once, gone on with by the same command, and left alone by every other one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from humanline.evaluate.records import EvaluationError
from humanline.system.files import OutputError, write_text
from humanline.system.folders import remove_folder
from humanline.system.lock import is_lock
from humanline.train.run.fingerprint import as_planned, is_planned

_PLAN = "plan.json"


def take_folder(folder: Path, plan: dict[str, Any]) -> None:
    """Make the folder of an evaluation, or go on with one of the same plan."""
    file = folder / _PLAN
    if folder.exists() and not folder.is_dir():
        raise OutputError(f"--out {str(folder)!r} is a file")
    if file.is_file():
        try:
            before = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise EvaluationError(f"{file} cannot be read: {error}") from None
        if not isinstance(before, dict) or not is_planned(before, plan):
            raise EvaluationError(
                f"{folder} holds an evaluation of another model, other prompts or other settings; choose another --out"
            )
        return
    if folder.is_dir() and any(not is_lock(path.name) for path in folder.iterdir()):
        raise OutputError(f"--out {str(folder)!r} is not empty and no evaluation; choose another folder")
    folder.mkdir(parents=True, exist_ok=True)
    write_text(file, json.dumps(as_planned(plan), indent=1) + "\n")


def drop_unbegun(folder: Path) -> None:
    """Remove the folder of an evaluation of which nothing was done."""
    if [path.name for path in folder.iterdir() if not is_lock(path.name)] == [_PLAN]:
        remove_folder(folder)
