"""The folder of a run: what is where in it, and the lock that keeps a second run out.

config.json data.json    what the run was given, and what became of its data
start.json               fingerprints of what it began with: weights, data, template, tokenizer
levels.json              how probable the start policy finds the data (humanline.train.step.data_level); not in rounds
metrics.jsonl            a line a step, an evaluation and a round, and one if the run has broken; `kind` says which
run.log                  what the run has said, with the time, and how each of its processes has ended
distance/start.jsonl     answers of the start, by which the policy's distance from it is measured
rounds/                  what each round sampled and what it was worth (humanline.train.online.make)
checkpoints/step-N/      everything that is needed to go on after N updates
final/                   the finished model, with its card (humanline.train.run.card)
run.lock.N               who trains here, or did last (humanline.system.lock)
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from humanline import __version__
from humanline.system.disk import StoppedWaiting, nearest, tell
from humanline.system.files import (
    DamagedError,
    OutputError,
    UnreadableError,
    flush,
    free_name,
    make_folder,
    output_path,
    refuse_used_folder,
    where_links_lead,
    write_text,
)
from humanline.system.folders import sweep, verify_folder
from humanline.system.lock import FolderLock, LockHeldError, LockLostError, is_lock
from humanline.system.log import BEGUN, LOG, RESUMED, RUN_LOG
from humanline.train.config.own_sources import OWN_CODE, REWARD_CODE
from humanline.train.run.card import card_files
from humanline.train.run.facts import facts_of
from humanline.train.run.fingerprint import comparable, differences, same_settings, software
from humanline.train.run.found import told_by_newest
from humanline.train.run.metrics import MetricsLog, lenient_rows, read_object

_READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)  # what a lock is refused with where nothing can be written


class RunFolder:
    """The output folder of a run, which nothing is done to yet.

    Parameters
    ----------
    path : path
    resume : bool
        False demands a folder that is free; True takes over a run that was stopped or killed, or starts one.
    say : callable
        Shows what a person should know about the folder's lock.

    Raises
    ------
    OutputError
        If no folder can have such a path.
    """

    def __init__(self, path: str | Path, *, resume: bool, say: Callable[[str], None] = print) -> None:
        self.path, self.resume, self.say = output_path(path), resume, say
        self._given = str(path)
        self._lock = FolderLock(self.path)
        self.release, self.lost, self.refuse_lost = self._lock.release, self._lock.lost, self._lock.refuse_lost
        self._texts: dict[Path, str] = {}  # of small files that the run was begun with
        self._device, self._has_rounds, self._read_only = -1, False, False
        self._log: MetricsLog | None = None
        self.also: list[Callable[[], None]] = []  # what else `ready` has to see to
        self.config, self.data, self.start = (self.path / f"{n}.json" for n in ("config", "data", "start"))
        self.metrics, self.checkpoints, self.final = (self.path / n for n in ("metrics.jsonl", "checkpoints", "final"))
        self.rounds, self.distance = self.path / "rounds", self.path / "distance"
        self.levels = self.path / "levels.json"

    def refuse_unfit(self) -> None:
        """Raise OutputError if the folder is not free, or, with `resume`, holds something else than a run."""
        if not self.resume:
            if self._is_run() and not self._only_lock():
                raise OutputError(
                    f"output {self._given!r} holds a run already: add --resume to go on with it (resume=True in "
                    "Python), or choose another folder"
                )
            if not self._only_lock():  # left by a call that was refused before it began
                refuse_used_folder(self._given)
        elif self.path.exists() and not self._is_run() and (not self.path.is_dir() or any(self.path.iterdir())):
            raise OutputError(f"output {self._given!r} holds no run to resume, but something else; choose another")

    def take(self) -> None:
        """Create the folder if need be, lock it and clear away what a kill has left; one process of a run calls it.

        With `resume` it waits where another machine's process holds the lock and may be dead. A finished run that can
        be read only is left as it is, without a lock: `is_finished` says so, and nothing will be written.

        Raises
        ------
        OutputError
            If another process holds the lock, the folder is no longer free, or it cannot be written.
        """
        try:
            place = where_links_lead(self.path)
            place.mkdir(parents=True, exist_ok=True)
            flush(place.parent)
            self._lock.take(wait=self.resume, say=lambda text: self.say(f"output {self._given!r}: {text}"))
        except LockHeldError as error:
            raise OutputError(f"output {self._given!r} is {error}") from None
        except OSError as error:
            seen = self.resume and error.errno in _READ_ONLY and os.path.exists(self.final)
            self._read_only = seen and bool(self.is_finished())
            if self._read_only:
                return
            raise OutputError(f"output {self._given!r} cannot be used: {error.strerror}") from None
        if not self.resume and not self._only_lock():
            self.release()
            raise OutputError(f"output {self._given!r} was filled by another run meanwhile; choose another folder")
        sweep(self.path)
        sweep(self.checkpoints)

    def refuse_other_settings(self, config: dict[str, Any]) -> None:
        """Raise OutputError, with a table, if the run in the folder was configured differently where it matters."""
        try:
            before = json.loads(self.config.read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return  # killed before it was written; checkpoints have their own copy
        except OSError as error:
            raise OutputError(f"{self.config} cannot be read: {error.strerror}; mend that, and try again") from None
        table = differences(same_settings(before), same_settings(config))
        if table:
            raise OutputError(
                f"the run in {self._given!r} has other settings, so it cannot be resumed with these:\n{table}\n"
                "Use the values of then, or start a new run in another folder."
            )

    def began(self) -> dict[str, Any]:
        """Return the facts that a resumed run began with; those that an older version left out, by a checkpoint."""
        return told_by_newest(self.checkpoints) | _facts_in(self.start) if self.resume else {}

    def refuse_other_code(self, now: dict[str, str]) -> None:
        """Raise OutputError, with a table, if files of the user's own are not those that the run began with.

        What is finished is not what they would make. Data and start weights are not read again for that.
        """
        if not (begun := self.began()):
            return
        before = {name: digest for name, digest in begun.items() if name.startswith((OWN_CODE, REWARD_CODE))}
        table = differences(before, comparable(begun, now))
        if table:
            raise OutputError(
                f"the run in {self._given!r} is finished, and was made by other code than is here now:\n{table}\n"
                "Put the code of then back, or start a new run in another folder."
            )

    def refuse_other_start(self, now: dict[str, str]) -> None:
        """Raise OutputError, with a table, if a resumed run would be refused for its data, template or code.

        Parameters
        ----------
        now : dict
            Those facts of `run_facts` that are known without the weights.
        """
        if not (begun := self.began()):
            return
        there = {name: one for name, one in comparable(begun, now).items() if name in begun}
        table = differences({name: begun[name] for name in there}, there)
        if table:
            raise OutputError(
                f"the run in {self._given!r} began with other data or code than is here now, so that --resume would be "
                f"refused:\n{table}\nPut those of then back, or start a new run in another folder."
            )

    def is_finished(self) -> int:
        """Return 1 if the finished model is there and whole, whatever else was put beside it.

        Raises
        ------
        OutputError
            If it cannot be read, or is damaged and there is no checkpoint.
        """
        if self._read_only:
            return 1  # as `take` has found out
        if not self.final.exists():
            return 0
        try:
            verify_folder(self.final, foreign=True)
            return 1
        except UnreadableError as error:
            raise OutputError(
                f"{self.final} cannot be read, so that nobody knows whether it is whole: {error.strerror}; mend that, "
                "and try again: nothing was changed"
            ) from None
        except DamagedError as error:
            if not any(self.checkpoints.glob("step-*")):
                raise OutputError(
                    f"{self.final} is damaged ({error}), and there is no checkpoint to make it from again; start a "
                    "new run in another folder"
                ) from None
        return 0

    def begin(
        self,
        config: dict[str, Any],
        data: dict[str, Any],
        start: dict[str, Any] | None,
        say: Callable[[str], None],
    ) -> None:
        """Write down what the run is given; files of an earlier start are renamed, with a message, and not deleted.

        Parameters
        ----------
        config, data : dict
        start : dict or None
            Fingerprints of what the run begins with, and the metrics begin anew; None: a checkpoint was taken up, and
            then a finished model that is still there is a damaged one, which will be made again.
        say : callable

        Raises
        ------
        OutputError
            With a table, if an earlier start, of which no checkpoint is there, began with other weights or data.
        """
        if start is None and self.final.exists():
            aside = free_name(self.path, "damaged-final")
            self.final.rename(aside)
            say(f"the finished model is damaged and will be made again; the damaged one is now {aside}")
        if start is None:
            with contextlib.suppress(OSError, ValueError):  # runs of earlier versions have none
                self._texts[self.start] = self.start.read_text(encoding="utf-8")
        else:
            self._begin_alike(start)
            said = f"no checkpoint in {self.checkpoints}: starting from the beginning"
            if self.metrics.exists() and self.metrics.stat().st_size:
                aside = free_name(self.path, "metrics-before.jsonl")
                self.metrics.rename(aside)
                said += f"; the earlier metrics are now {aside}"
            if self.resume:
                say(said)
            write_text(self.metrics, "")
        mark = BEGUN if start is not None else RESUMED
        LOG.open(self.path / RUN_LOG, f"{mark} by process {os.getpid()}, humanline {__version__}", self.lost)
        with contextlib.suppress(OSError, ValueError):  # of an earlier process of the run
            self._texts[self.levels] = self.levels.read_text(encoding="utf-8")
        trees = {self.config: config, self.data: data}
        for path, tree in trees.items():
            self._texts[path] = json.dumps(tree, indent=2) + "\n"
            write_text(path, self._texts[path])
        self._device, self._has_rounds = self.path.stat().st_dev, config["source"]["kind"] == "rounds"

    def card(self) -> dict[str, str]:
        """Return the files of the finished model that tell of the run, as it is now, by name."""
        given = {path.stem: read_object(text) for path, text in self._texts.items()}
        rows = lenient_rows(self.metrics).rows
        return card_files(facts_of(given["config"], given["data"], given.get("start", {}), rows, software()))

    def open_log(self, writes: bool) -> MetricsLog:
        """Return the log of the run's metrics, which `ready` looks after; a process that does not write has none."""
        self._log = MetricsLog(self.metrics if writes else None, self.remake, self.refuse_lost, self.lost)
        return self._log

    def kept_levels(self) -> dict[str, Any] | None:
        """Return what `keep_levels` has kept, None if there is nothing that can be read."""
        with contextlib.suppress(OSError, ValueError):
            tree = json.loads(self.levels.read_text(encoding="utf-8"))
            return tree if isinstance(tree, dict) else None
        return None

    def keep_levels(self, tree: dict[str, Any]) -> None:
        """Write down how probable the start policy finds the data; raise WriteError if that cannot be.

        Where the run is asked to stop while it waits for space, or has lost its folder, `ready` writes it later.
        """
        self._texts[self.levels] = json.dumps(tree, indent=1, allow_nan=False) + "\n"
        with contextlib.suppress(StoppedWaiting, LockLostError):
            self.refuse_lost()
            write_text(self.levels, self._texts[self.levels])

    def ready(self) -> None:
        """Make sure, before a save, that the folder and all metrics are there; raise as `remake` and `patient` do."""
        self.remake()
        if self._log is not None:
            self._log.flush()
        for remake in self.also:
            remake()

    def leave(self) -> None:
        """Let go of the lock, and of the log, which refers back to the folder: what `also` names would stay."""
        self.release()
        self._log = None

    def remake(self) -> None:
        """Make the folder again, with its lock and settings, if it is gone while the run goes on, and say so.

        Raises
        ------
        OutputError, LockLostError
            If another run has taken its place.
        OSError
            If it cannot be made.
        """
        if not self.path.is_dir():
            elsewhere = nearest(self.path).stat().st_dev != self._device
            place = where_links_lead(self.path)
            link = f", by links {place}," if place != self.path else ""
            make_folder(self.path)
            self.release()
            self.take()
            where = ", on another file system than before: is one no longer mounted?" if elsewhere else ""
            tell(
                f"warning: the output folder {self.path}{link} was gone while the run went on, with every checkpoint "
                f"in it: it is made again, and what comes is saved there{where}"
            )
            if self._has_rounds:
                make_folder(self.rounds)
        missing = {path: text for path, text in self._texts.items() if not path.exists()}
        if missing:
            self.refuse_lost()
        for path, text in missing.items():
            write_text(path, text)

    def _begin_alike(self, start: dict[str, Any]) -> None:
        """Write down what the run begins with; raise OutputError if it began with something else before."""
        now = {name: value for name, value in start.items() if not name.startswith("processes")}  # all begin alike
        before = now
        if self.resume and self.start.is_file():
            with contextlib.suppress(ValueError):
                before = json.loads(self.start.read_text(encoding="utf-8"))
        table = differences(before, comparable(before, now))
        if table:
            raise OutputError(
                f"the run in {self._given!r} has no checkpoint, and began with other weights or data than it would "
                f"begin with now:\n{table}\nUse those of then, or start a new run in another folder."
            )
        self._texts[self.start] = json.dumps(now, indent=1) + "\n"
        write_text(self.start, self._texts[self.start])

    def _only_lock(self) -> bool:
        names = [item.name for item in self.path.iterdir()] if self.path.is_dir() else []
        return bool(names) and all(map(is_lock, names))

    def _is_run(self) -> bool:
        if not self.path.is_dir():
            return False
        names = {item.name for item in self.path.iterdir()}
        return any(map(is_lock, names)) or {"config.json", "metrics.jsonl"} <= names


def _facts_in(file: Path) -> dict[str, Any]:
    try:
        facts: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return facts
