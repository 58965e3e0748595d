"""The folder of an evaluation: made once, gone on with by the same command, and left alone by every other one."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from humanline.evaluate.records import EvaluationError
from humanline.system.files import OutputError, write_text
from humanline.system.folders import remove_folder
from humanline.system.lock import FolderLock, LockHeldError, is_lock
from humanline.train.online.commands import Say
from humanline.train.run.fingerprint import as_planned, plan_differences

LEFT_OUT = "left-out.json"  # how many prompts are not asked, by reason; written before the first is
_PLAN = "plan.json"


@contextlib.contextmanager
def held_folder(folder: Path, plan: dict[str, Any], say: Say) -> Iterator[None]:
    """Make the folder of an evaluation, or go on with one of the same plan, and keep every other process out meanwhile.

    If nothing comes of it, it is removed.

    Raises
    ------
    EvaluationError, OutputError
        If it holds something else, or another process works in it.
    LockLostError
        If another process has taken it over by the end.
    """
    _refuse_other(folder, plan)
    folder.mkdir(parents=True, exist_ok=True)
    lock = FolderLock(folder)
    try:
        lock.take(wait=True, say=lambda text: say(f"--out {str(folder)!r}: {text}"))
    except LockHeldError as error:
        raise EvaluationError(f"--out {str(folder)!r} is {error}") from None
    except OSError as error:
        raise OutputError(f"--out {str(folder)!r} cannot be written: {error.strerror}") from None
    try:
        _refuse_other(folder, plan)  # still, now that nobody else is at it
        if not (folder / _PLAN).is_file():
            write_text(folder / _PLAN, json.dumps(as_planned(plan), indent=1) + "\n")
        yield
        lock.refuse_lost()
    finally:
        if lock.lost() is None:
            _drop_unbegun(folder)
        lock.release()


def _refuse_other(folder: Path, plan: dict[str, Any]) -> None:
    """Raise EvaluationError or OutputError unless a folder is free, or holds an evaluation of this plan."""
    file = folder / _PLAN
    if folder.exists() and not folder.is_dir():
        raise OutputError(f"--out {str(folder)!r} is a file")
    if file.is_file():
        try:
            before = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise EvaluationError(f"{file} cannot be read: {error}") from None
        if not (isinstance(before, dict) and isinstance(before.get("settings"), dict)):
            raise EvaluationError(f"{file} is damaged: it holds no plan of an evaluation; choose another --out")
        if table := plan_differences(before, plan):
            raise EvaluationError(
                f"{folder} holds an evaluation of another model, other prompts or other settings; choose another --out"
                f"\n{table}"
            )
        return
    if folder.is_dir() and any(not is_lock(path.name) for path in folder.iterdir()):
        raise OutputError(f"--out {str(folder)!r} is not empty and no evaluation; choose another folder")


def _drop_unbegun(folder: Path) -> None:
    """Remove the folder of an evaluation of which nothing was done."""
    names = {path.name for path in folder.iterdir() if not is_lock(path.name)}
    if _PLAN in names and names <= {_PLAN, LEFT_OUT}:
        remove_folder(folder)
