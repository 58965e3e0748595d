"""The checkpoints of a run: when one is written, which are kept, and from which the run goes on."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import re
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch

from humanline.system import disk
from humanline.system.activity import HERE
from humanline.system.disk import StoppedWaiting, WriteError, is_full, patience
from humanline.system.files import DamagedError, OutputError, flush, partial_of
from humanline.system.folders import begin_folder, drop_partial, flush_files, remove_folder, seal_folder
from humanline.system.launcher import too_slow_to_stop
from humanline.system.lock import LockLostError
from humanline.system.stop import StopRequested
from humanline.train.config.run import CheckpointConfig
from humanline.train.run.checkpoint import CheckpointError, Contents, Position
from humanline.train.run.processes import MainProcessError, MainProcessFault, Reduce, gathered, is_agreed, on_main

T = TypeVar("T")
E = TypeVar("E", bound=Exception)

_AGAIN = 10**6  # checkpoints after the same number of updates that can be told apart
_STEP = re.compile(r"step-(\d{8,})(?:\.(\d{6}))?")
_BEGINNING = (0, False, ())
_LISTEN = 2.0  # seconds for which a process that waits for space does not hear that another one was asked to stop


class Checkpoints:
    """Save a run, and go on from what was saved.

    Parameters
    ----------
    folder : Path
        Holds `step-N/`, one a checkpoint.
    settings : CheckpointConfig
    contents : Contents
        What each of them holds.
    refuse_lost : callable
        Asked before anything is published; raises LockLostError if another run has taken over the folder.
    ready : callable
        Called by the main process before anything is saved: it sees to it that the run's folder and the metrics so
        far are there.
    accelerator
    meet : callable
        `Meeting.reduce`: one process may write for hours while the others wait.
    """

    def __init__(
        self,
        folder: Path,
        settings: CheckpointConfig,
        contents: Contents,
        *,
        refuse_lost: Callable[[], None],
        ready: Callable[[], None],
        accelerator: Any,
        meet: Reduce,
    ) -> None:
        self.folder, self.settings, self.contents = folder, settings, contents
        self.refuse_lost, self.ready = refuse_lost, ready
        self.accelerator, self.meet = accelerator, meet
        self.saved: Path | None = None  # the newest whole checkpoint
        self._saved_at: tuple[Any, ...] = ()  # and where it stands (`_mark`)
        self._last, self._warned = time.monotonic(), False

    def due(self, position: Position, *, scoring: bool = False) -> bool:
        """Return whether the settings ask for a checkpoint here; all processes agree.

        Parameters
        ----------
        position : Position
        scoring : bool
            In the middle of a window, where only the clock counts.
        """
        waited = self.settings.minutes is not None and time.monotonic() - self._last >= 60 * self.settings.minutes
        every, updates = self.settings.every, position.updates
        by_steps = every is not None and updates > 0 and updates % every == 0 and not scoring
        by_clock = bool(self.meet(torch.tensor(float(waited)), "max").item())
        return (by_steps or by_clock) and self._mark(position) not in (self._saved_at, _BEGINNING)

    def save_if_due(self, position: Position, say: Callable[[str], None], *, scoring: bool = False) -> None:
        """Save if it is time to (`due`), and say where; one that fails is said too, and the run goes on."""
        if self.due(position, scoring=scoring):
            began = time.monotonic()
            try:
                say(f"checkpoint: {self.save(position)}")
                remark = too_slow_to_stop(time.monotonic() - began)
                if remark and not self._warned:
                    self._warned = True
                    say(remark)
            except CheckpointError as error:  # the run is worth more than this checkpoint
                say(f"warning: {error}")

    @HERE.doing("saving")
    def save(self, position: Position, *, ending: bool = False) -> Path:
        """Write a checkpoint, then remove all but the newest few; called by all processes alike.

        Where nothing has changed since the newest one, that one is returned. Where a full disk is to be waited for
        (training.disk_full), all processes wait, and try again.

        Parameters
        ----------
        position : Position
        ending : bool
            Whether the run ends if it cannot be written, which decides over the advice.

        Raises
        ------
        CheckpointError
            If the disk is full or cannot be written; earlier checkpoints are as they were, and nothing is left of
            this one.
        StoppedWaiting
            If a process was asked to stop while they waited.
        LockLostError
            If another run has taken over the folder, in the main process; MainProcessError in the others.
        """
        on_main(self.accelerator, self.meet, self.refuse_lost)
        if self.saved is not None and self._mark(position) == self._saved_at and self._is_there(self.saved):
            return self.saved
        target, remade = _free_name(self.folder, position.updates), False
        while True:
            try:
                self._attempt(target, position)
                break
            except (OSError, MainProcessError) as error:
                if isinstance(error, MainProcessFault):  # which the main process does not get over either
                    raise
                if self.accelerator.is_main_process:
                    drop_partial(target)
                self._last = time.monotonic()
                gone, waited = self._mended(target, error)
                if not waited and (remade or not gone):
                    raise CheckpointError(self._complaint(position, error, ending)) from error
                remade |= gone  # once, by `ready`
            except LockLostError:
                raise  # what is there under this checkpoint's name may be the other run's
            except BaseException:
                if self.accelerator.is_main_process:
                    drop_partial(target)
                raise
        now = patience()
        if now is not None:
            now.goes_on()
        self.saved, self._saved_at, self._last = target, self._mark(position), time.monotonic()
        if self.accelerator.is_main_process:
            self._prune()
        return target

    def save_or_keep(self, position: Position, write: Callable[[], None]) -> None:
        """Write the finished model, all processes together; where that fails, keep its weights in a checkpoint.

        Raises
        ------
        OutputError
            If it could not be written, with where the weights are.
        LockLostError
            As `save` does.
        StopRequested
            If the run was asked to stop while it waited for space; they are in a checkpoint too.
        Exception
            What `write` raises in this process alone, where the others cannot save with it.
        """
        on_main(self.accelerator, self.meet, self.refuse_lost)
        try:
            on_main(self.accelerator, self.meet, self.ready)
            write()
        except StoppedWaiting as error:
            kept, now = self.save(position, ending=True), patience()
            name = (now and now.stopping()) or "a signal to another process"
            raise StopRequested(
                name,
                f"stopped by {name} while it waited for space for the finished model: {error.reason}; its weights are "
                f"in {kept}; add --resume to the same command to go on",
            ) from None
        except Exception as error:  # whatever a library makes of it, the weights are worth keeping
            if not is_agreed(error, self.accelerator.num_processes):
                raise
            reason = error.reason if isinstance(error, WriteError) else error
            try:
                kept = self.save(position, ending=True)
            except CheckpointError as second:
                raise OutputError(f"the finished model could not be written: {reason}; {second}") from error
            raise OutputError(
                f"the finished model could not be written: {reason}; its weights are in {kept}: mend that (on a full "
                "disk, free some space), then add --resume to the same command"
            ) from error

    def _attempt(self, target: Path, position: Position) -> None:
        on_main(self.accelerator, self.meet, lambda: self._begin(target))
        partial, flushed = partial_of(target), dict[str, Any]()

        def write() -> None:
            written = [*self.contents.write_own(partial), *self.contents.write_slices(partial)]
            flushed.update(flush_files(target, written))

        _together(write, self.meet, OSError("another process could not write its part"))
        for facts in gathered(json.dumps(flushed), self.contents.rank, self.contents.ranks, self.meet):
            flushed.update(json.loads(facts))
        on_main(self.accelerator, self.meet, lambda: self._finish(target, position, flushed))

    def _mended(self, target: Path, error: OSError | MainProcessError) -> tuple[bool, bool]:
        """Return, in all processes alike, whether the folder is gone, and whether they have waited for space.

        Raises
        ------
        StoppedWaiting
            In all of them, if one was asked to stop meanwhile.
        """
        own = error if isinstance(error, OSError) else OSError(errno.EIO, str(error))
        now = patience()

        def anywhere(fact: bool) -> bool:
            return bool(self.meet(torch.tensor(float(fact)), "max").item())

        gone, full = anywhere(own.errno in (errno.ENOENT, errno.ENOTDIR)), anywhere(is_full(own))
        stopped = anywhere(isinstance(error, StoppedWaiting))
        waited = full and not stopped and now is not None and now.mode == "wait"
        if waited and now is not None:
            failed = own if isinstance(own, WriteError) else WriteError(target, own, self.contents.size())
            parts = max(1, math.ceil(disk.LOOK_AGAIN / _LISTEN))  # counted: by their clocks they would not agree
            for _ in range(parts):
                stopped = stopped or anywhere(now.look_away(failed if is_full(own) else None, parts))
        if stopped:
            raise StoppedWaiting(target, own, self.contents.size()) from error
        return gone, waited

    def _complaint(self, position: Position, error: OSError | MainProcessError, ending: bool) -> str:
        own = error if isinstance(error, OSError) else OSError(errno.EIO, str(error))
        reason = own.reason if isinstance(own, WriteError) else own.strerror or str(own)
        there = self.saved is not None and self.saved.is_dir()
        last = f"{self.saved.name} is kept" if self.saved is not None and there else "there is no earlier one"
        text = f"no checkpoint could be written after {position.updates} updates: {reason}; {last}"
        if is_full(own):
            text += f". Free some space for {self.folder}, or lower checkpoint.keep if it is above 2"
        now = patience()
        return f"{text}; {now.advice(own)}" if ending and now is not None else text

    def _is_there(self, folder: Path) -> bool:
        """Return whether the main process sees a checkpoint: someone may have removed it."""
        return bool(on_main(self.accelerator, self.meet, folder.is_dir))

    def restore(self, say: Callable[[str], None]) -> Position | None:
        """Load the newest checkpoint that is whole, and return where the run stands; None if there never was one.

        Parameters
        ----------
        say : callable
            Told which checkpoint was taken and which were skipped, and why; skipped ones are renamed `damaged-step-N`.

        Raises
        ------
        CheckpointError
            If checkpoints are there but none is whole, or the newest one cannot be read (it may be whole, so that no
            older one is taken in its place), or was made with other settings, data, template or tokenizer; the message
            has a table of what changed.
        """
        number = on_main(self.accelerator, self.meet, lambda: self._newest(say)) - 1
        if number < 0:
            return None
        folder = self.folder / _name(number)
        elsewhere = CheckpointError(f"{folder}: another process could not take it over; its own message says why")
        position = _together(lambda: self.contents.load(folder, say), self.meet, elsewhere)
        on_main(self.accelerator, self.meet, lambda: self._take_up(folder))
        self.contents.renew(position.updates)
        self.saved, self._saved_at = folder, self._mark(position)
        ahead = max(self.contents.ahead, default=0) - position.updates
        more = f" and {ahead} steps scored ahead" if ahead > 1 else ""
        say(f"going on after {position.updates} updates{more}, from {folder}")
        return position

    def _take_up(self, folder: Path) -> None:
        """Put the metrics back to where the checkpoint has them, and damaged newer checkpoints aside."""
        self.contents.restore_metrics(folder)
        for newer in _checkpoints_in(self.folder):
            if _number(newer) > _number(folder):
                aside = newer.with_name(f"damaged-{newer.name}")
                shutil.rmtree(aside, ignore_errors=True)
                newer.rename(aside)

    def _newest(self, say: Callable[[str], None]) -> int:
        """Return 1 + the number (`_name`) of the newest whole checkpoint, 0 if there are no checkpoints."""
        skipped = []
        for folder in reversed(_checkpoints_in(self.folder)):
            try:
                self.contents.refuse(folder)
            except DamagedError as error:
                skipped.append(f"  {folder.name}: {error}")
                continue
            if skipped:
                say("\n".join(["skipped, because damaged or incomplete:", *skipped]))
            return 1 + _number(folder)
        if skipped:
            raise CheckpointError("\n".join([f"no checkpoint in {self.folder} is whole:", *skipped]))
        return 0

    def _begin(self, target: Path) -> None:
        self.ready()
        if not self.folder.is_dir():
            self.folder.mkdir()
            flush(self.folder.parent)
        begin_folder(target, room=self.contents.size())

    def _finish(self, target: Path, position: Position, flushed: Mapping[str, dict[str, Any]]) -> None:
        self.contents.write_shared(partial_of(target), position)
        self.refuse_lost()
        seal_folder(target, flushed)

    def _prune(self) -> None:
        """Remove old checkpoints; one that resists is tried again after the next save."""
        with contextlib.suppress(CheckpointError):
            for old in _checkpoints_in(self.folder)[: -self.settings.keep]:
                with contextlib.suppress(OSError):
                    remove_folder(old)

    def _mark(self, position: Position) -> tuple[Any, ...]:
        """Return a value that changes whenever there is something new to save: updates, evaluation, steps ahead."""
        ahead = self.contents.ahead
        return position.updates, position.evaluated, ahead if any(ahead) else ()


def _checkpoints_in(folder: Path) -> list[Path]:
    """Return the checkpoints' folders, oldest first; raise CheckpointError if nobody can tell what there is."""
    try:
        with os.scandir(folder) as entries:
            found = [
                folder / entry.name
                for entry in entries
                if _STEP.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False)
            ]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise CheckpointError(
            f"{folder} cannot be read: {error.strerror}; nothing was changed: mend that, and try again"
        ) from None
    return sorted(found, key=_number)


def _free_name(folder: Path, updates: int) -> Path:
    """Return a folder that sorts after all of so many updates: a run may be stopped twice while it scores."""
    taken = [number for number in map(_number, _checkpoints_in(folder)) if number // _AGAIN == updates]
    return folder / _name(max(taken) + 1 if taken else _AGAIN * updates)


def _name(number: int) -> str:
    """Return a checkpoint's name: of its updates, and of how many others were saved after so many before it."""
    updates, again = divmod(number, _AGAIN)
    return f"step-{updates:08d}" + (f".{again:06d}" if again else "")


def _number(folder: Path) -> int:
    found = _STEP.fullmatch(folder.name)
    assert found is not None
    return _AGAIN * int(found[1]) + int(found[2] or 0)


def _together(act: Callable[[], T], reduce: Reduce, elsewhere: E) -> T:
    """Run `act` in every process; where it raises such an error in one, raise `elsewhere` in the others."""
    result: list[T] = []
    error = None
    try:
        result.append(act())
    except type(elsewhere) as own:
        error = own
    if reduce(torch.tensor(float(error is not None)), "max").item():
        raise error or elsewhere
    return result[0]
