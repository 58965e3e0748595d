"""The checkpoints of a run: when one is written, which are kept, and from which the run goes on."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch

from humanline.system.activity import HERE
from humanline.system.disk import StoppedWaiting, WriteError, patience
from humanline.system.files import OutputError
from humanline.system.folders import remove_folder
from humanline.system.launcher import too_slow_to_stop
from humanline.system.lock import LockLostError
from humanline.system.stop import StopRequested
from humanline.train.config.run import CheckpointConfig
from humanline.train.run.checkpoint import CheckpointError, Contents, Position
from humanline.train.run.found import checkpoints_in, free_name, name_of, newest, put_aside_newer
from humanline.train.run.processes import MainProcessError, MainProcessFault, Reduce, is_agreed, on_main
from humanline.train.run.saving import Saving, overlaps, together
from humanline.train.run.tensor_files import HostCopies

_BEGINNING = (0, False, ())


@dataclass(frozen=True, slots=True)
class _UnderWay:
    """A checkpoint that a thread is writing, where the run stood, and who is told what becomes of it."""

    saving: Saving
    mark: tuple[Any, ...]
    say: Callable[[str], None]


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
        self._copies = HostCopies()
        self._under_way: _UnderWay | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        """Wait for a checkpoint that a thread is writing, if the processes can still meet, and publish it."""
        now, lost = self._under_way, isinstance(error, LockLostError)
        if now is None:
            return
        if error is None or (isinstance(error, Exception) and not lost and is_agreed(error, self.contents.ranks)):
            try:
                self._settled()
            except Exception as second:
                if error is None:
                    raise
                now.say(f"warning: the checkpoint that was being written is lost: {second}")
            return
        self._under_way = None
        now.saving.give_up()
        if self.contents.ranks == 1 and not lost:  # the others may be writing still; the next start clears up
            now.saving.drop()

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
        begun = self._under_way.mark if self._under_way is not None else ()
        return (by_steps or by_clock) and self._mark(position) not in (self._saved_at, begun, _BEGINNING)

    def save_if_due(
        self, position: Position, say: Callable[[str], None], *, scoring: Callable[[], None] | None = None
    ) -> None:
        """Save if it is time to (`due`), and say where; one that fails is said too, and the run goes on.

        Where this overlaps the steps to come (`CheckpointConfig.overlap`), a later call, or `save`, gives it its name.
        In the middle of a window `scoring` is called first, which refuses log-probabilities that must not be saved.
        """
        again = self._under_way is not None and self._under_way.saving.is_written() and not self._settled()
        if not again and not self.due(position, scoring=scoring is not None):
            return
        if scoring is not None:
            scoring()
        try:
            overlapping = not again and overlaps(self.settings, self.contents, self._copies, self.meet)
            if overlapping and self._start(position, say):
                return
            began = time.monotonic()
            target = self.save(position)
            self._say(target, time.monotonic() - began, say)
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
        self._settled()
        on_main(self.accelerator, self.meet, self.refuse_lost)
        last = self.saved  # which someone may have removed
        if last and self._mark(position) == self._saved_at and on_main(self.accelerator, self.meet, last.is_dir):
            return last
        saving, remade = self._saving(position), False
        while True:
            try:
                with saving.dropping():
                    saving.at_once()
                break
            except (OSError, MainProcessError) as error:
                if isinstance(error, MainProcessFault):  # which the main process does not get over either
                    raise
                self._last = time.monotonic()
                gone, waited = saving.mended(error)
                if not waited and (remade or not gone):
                    raise CheckpointError(saving.complaint(error, self.saved, ending=ending)) from error
                remade |= gone  # once, by `ready`
        self._published(saving.target, self._mark(position))
        return saving.target

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

    def _saving(self, position: Position) -> Saving:
        return Saving(
            target=free_name(self.folder, position.updates),
            position=position,
            contents=self.contents,
            refuse_lost=self.refuse_lost,
            ready=self.ready,
            accelerator=self.accelerator,
            meet=self.meet,
        )

    @HERE.doing("saving")
    def _start(self, position: Position, say: Callable[[str], None]) -> bool:
        """Copy what is to be saved, and leave the writing to a thread; return False where that could not be done."""
        self._settled()
        on_main(self.accelerator, self.meet, self.refuse_lost)
        saving, mark, began = self._saving(position), self._mark(position), time.monotonic()
        try:
            with saving.dropping():
                if saving.start(self._copies):
                    self._under_way, self._last = _UnderWay(saving, mark, say), began
                    return True
        except (OSError, MainProcessError) as error:
            if isinstance(error, MainProcessFault):
                raise
            return False
        self._published(saving.target, mark)
        self._say(saving.target, time.monotonic() - began, say)
        return True

    @HERE.doing("saving")
    def _settled(self) -> bool:
        """Wait for the checkpoint that a thread is writing, if there is one, and give it its name.

        One that has failed is said, as in `save_if_due`. Return False if it is worth being saved again, which may wait
        for space.
        """
        now, self._under_way = self._under_way, None
        if now is None:
            return True
        try:
            with now.saving.dropping():
                seconds = now.saving.finish()
        except (OSError, MainProcessError) as error:
            if isinstance(error, MainProcessFault):
                raise
            self._last = time.monotonic()
            now.say(f"warning: {now.saving.complaint(error, self.saved)}")
            gone, full = now.saving.told(error)
            waits = patience()
            return not (gone or (full and waits is not None and waits.mode == "wait"))
        self._published(now.saving.target, now.mark)
        self._say(now.saving.target, seconds, now.say)
        return True

    def _published(self, target: Path, mark: tuple[Any, ...]) -> None:
        now = patience()
        if now is not None:
            now.goes_on()
        self.saved, self._saved_at, self._last = target, mark, time.monotonic()
        if self.accelerator.is_main_process:
            self._prune()

    def _say(self, target: Path, seconds: float, say: Callable[[str], None]) -> None:
        """Say where a checkpoint is and, once, if a run that is asked to stop may have too little time for one."""
        say(f"checkpoint: {target}")
        remark = too_slow_to_stop(seconds)
        if remark and not self._warned:
            self._warned = True
            say(remark)

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
        number = on_main(self.accelerator, self.meet, lambda: newest(self.folder, self.contents, say)) - 1
        if number < 0:
            return None
        folder = self.folder / name_of(number)
        elsewhere = CheckpointError(f"{folder}: another process could not take it over; its own message says why")
        position = together(lambda: self.contents.load(folder, say), self.meet, elsewhere)

        def take_up() -> None:
            self.contents.restore_metrics(folder)
            put_aside_newer(folder)

        on_main(self.accelerator, self.meet, take_up)
        self.contents.renew(position.updates)
        self.saved, self._saved_at = folder, self._mark(position)
        ahead = max(self.contents.ahead, default=0) - position.updates
        more = f" and {ahead} steps scored ahead" if ahead > 1 else ""
        say(f"going on after {position.updates} updates{more}, from {folder}")
        return position

    def _prune(self) -> None:
        """Remove old checkpoints; one that resists is tried again after the next save."""
        with contextlib.suppress(CheckpointError):
            for old in checkpoints_in(self.folder)[: -self.settings.keep]:
                with contextlib.suppress(OSError):
                    remove_folder(old)

    def _mark(self, position: Position) -> tuple[Any, ...]:
        """Return a value that changes whenever there is something new to save: updates, evaluation, steps ahead."""
        ahead = self.contents.ahead
        return position.updates, position.evaluated, ahead if any(ahead) else ()


class Unsaved(Checkpoints):
    """The checkpoints of a run that is only looked at: none is ever written, nor is its model."""

    def save(self, position: Position, *, ending: bool = False) -> Path:
        """Write nothing, and return where checkpoints of a run would be."""
        return self.folder

    def save_if_due(
        self, position: Position, say: Callable[[str], None], *, scoring: Callable[[], None] | None = None
    ) -> None:
        """Write nothing."""

    def save_or_keep(self, position: Position, write: Callable[[], None]) -> None:
        """Write nothing."""
