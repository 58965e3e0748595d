"""The folder of a run: what is where in it, and the lock that keeps a second run out.

config.json data.json    what the run was given, and what became of its data
metrics.jsonl            a line a step, an evaluation and a round, and one if the run has broken
rounds/                  what each round sampled and what it was worth (humanline.train.rounds)
checkpoints/step-N/      everything that is needed to go on after N updates
final/                   the finished model
run.lock                 held while a process trains here; a killed one leaves no lock behind, only the file
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from humanline.train.durable import (
    DamagedError,
    NoRoomError,
    check_room,
    flush,
    sweep,
    verify_folder,
    write_text,
)
from humanline.train.export import OutputError, refuse_used_folder
from humanline.train.fingerprint import differences, same_settings


class RunFolder:
    """Claim the output folder of a run.

    Parameters
    ----------
    path : path
    resume : bool
        False demands a folder that is free; True takes over a run that was stopped or killed, or starts one.

    Raises
    ------
    OutputError
        If the folder is not free, or, with `resume`, holds something else than a run.
    """

    def __init__(self, path: str | Path, *, resume: bool) -> None:
        self.path, self.resume = Path(path).expanduser().absolute(), resume
        self._given = str(path)
        self._lock: FileLock | None = None
        self.config, self.data = self.path / "config.json", self.path / "data.json"
        self.metrics, self.checkpoints, self.final = (self.path / n for n in ("metrics.jsonl", "checkpoints", "final"))
        self.rounds = self.path / "rounds"
        if not resume:
            if self._is_run() and not self._only_lock():
                raise OutputError(
                    f"output {self._given!r} holds a run already: add --resume to go on with it (resume=True in "
                    "Python), or choose another folder"
                )
            if not self._only_lock():  # left by a call that was refused before it began
                refuse_used_folder(path)
        elif self.path.exists() and not self._is_run() and (not self.path.is_dir() or any(self.path.iterdir())):
            raise OutputError(f"output {self._given!r} holds no run to resume, but something else; choose another")

    def take(self) -> None:
        """Create the folder if need be, lock it and clear away what a kill has left; one process of a run calls it.

        Raises
        ------
        OutputError
            If another process holds the lock, the folder is no longer free, or it cannot be written.
        """
        lock = self.path / "run.lock"
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            flush(self.path.parent)
            self._lock = FileLock(lock, timeout=0)
            self._lock.acquire()
        except Timeout:
            self._lock = None
            holder = lock.read_text(encoding="utf-8", errors="replace").strip()
            raise OutputError(
                f"output {self._given!r} is in use by another run ({holder or 'no name given'}); wait for it, stop it, "
                "or choose another folder"
            ) from None
        except OSError as error:
            self._lock = None
            raise OutputError(f"output {self._given!r} cannot be used: {error.strerror}") from None
        if not self.resume and {item.name for item in self.path.iterdir()} != {"run.lock"}:
            self.release()
            raise OutputError(f"output {self._given!r} was filled by another run meanwhile; choose another folder")
        lock.write_text(f"process {os.getpid()} on {platform.node()}\n", encoding="utf-8")
        sweep(self.path)
        sweep(self.checkpoints)

    def release(self) -> None:
        """Give the lock back, if it is held."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def refuse_other_settings(self, config: dict[str, Any]) -> None:
        """Raise OutputError, with a table, if the run in the folder was configured differently where it matters."""
        try:
            before = json.loads(self.config.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return  # killed before it was written; checkpoints have their own copy
        table = differences(same_settings(before), same_settings(config))
        if table:
            raise OutputError(
                f"the run in {self._given!r} has other settings, so it cannot be resumed with these:\n{table}\n"
                "Use the values of then, or start a new run in another folder."
            )

    def is_finished(self) -> int:
        """Return 1 if the finished model is there and whole, whatever else was put beside it.

        Raises
        ------
        OutputError
            If it is damaged and there is no checkpoint.
        """
        if not self.final.exists():
            return 0
        try:
            verify_folder(self.final, foreign=True)
            return 1
        except DamagedError as error:
            if not any(self.checkpoints.glob("step-*")):
                raise OutputError(
                    f"{self.final} is damaged ({error}), and there is no checkpoint to make it from again; start a "
                    "new run in another folder"
                ) from None
        return 0

    def check_room(self, needed: int) -> None:
        """Raise OutputError if the disk has no room for so many bytes; the folder need not exist yet."""
        place = next(path for path in (self.path, *self.path.parents) if path.is_dir())
        try:
            check_room(place, needed)
        except NoRoomError as error:
            raise OutputError(f"a checkpoint and the finished model do not fit on the disk: {error}") from None

    def begin(self, config: dict[str, Any], data: dict[str, Any], restored: bool, say: Callable[[str], None]) -> None:
        """Write down what the run is given; nothing of an earlier start is deleted, but it is renamed, and said.

        Parameters
        ----------
        config, data : dict
        restored : bool
            Whether a checkpoint was taken up. If not, the metrics begin anew; if so, a finished model that is still
            there is a damaged one, which will be made again.
        say : callable
        """
        if restored and self.final.exists():
            aside = _free(self.path, "damaged-final")
            self.final.rename(aside)
            say(f"the finished model is damaged and will be made again; the damaged one is now {aside}")
        if not restored:
            said = f"no checkpoint in {self.checkpoints}: starting from the beginning"
            if self.metrics.exists() and self.metrics.stat().st_size:
                aside = _free(self.path, "metrics-before.jsonl")
                self.metrics.rename(aside)
                said += f"; the earlier metrics are now {aside}"
            if self.resume:
                say(said)
            write_text(self.metrics, "")
        write_text(self.config, json.dumps(config, indent=2) + "\n")
        write_text(self.data, json.dumps(data, indent=2) + "\n")

    def _only_lock(self) -> bool:
        return self.path.is_dir() and {item.name for item in self.path.iterdir()} == {"run.lock"}

    def _is_run(self) -> bool:
        if not self.path.is_dir():
            return False
        names = {item.name for item in self.path.iterdir()}
        return "run.lock" in names or {"config.json", "metrics.jsonl"} <= names


def _free(folder: Path, name: str) -> Path:
    """Return a name in a folder that nothing has yet, numbered if need be."""
    path, number = folder / name, 1
    while path.exists():
        number += 1
        path = (folder / name).with_stem(f"{Path(name).stem}-{number}")
    return path
