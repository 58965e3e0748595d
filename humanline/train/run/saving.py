"""One checkpoint on its way to its name: begun, its tensors written here and now or by a thread, then published.

Where a thread writes, it writes copies, and does nothing else: whatever processes agree on, and whatever gives a
checkpoint its name, happens where the run calls, at its safe points.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch

from humanline.system import disk
from humanline.system.activity import HERE
from humanline.system.disk import StoppedWaiting, WriteError, is_full, patience
from humanline.system.files import flush, partial_of
from humanline.system.folders import begin_folder, drop_partial, seal_folder
from humanline.system.launcher import local_processes
from humanline.system.lock import LockLostError
from humanline.system.memory import room_for
from humanline.train.config.run import CheckpointConfig
from humanline.train.run.checkpoint import Contents, Position
from humanline.train.run.processes import MainProcessError, Reduce, gathered, on_main
from humanline.train.run.tensor_files import HostCopies, TensorFile, write_files

T = TypeVar("T")
E = TypeVar("E", bound=Exception)
Facts = dict[str, dict[str, Any]]  # size and SHA-256 of files, by their names
_LOOK = 0.2  # seconds between two looks at how far a thread has come that is waited for
_LISTEN = 2.0  # seconds for which a process that waits for space does not hear that another one was asked to stop


@dataclass(slots=True, kw_only=True)
class Saving:
    """A checkpoint that is being written; all processes of a run have one, and call its methods alike.

    Parameters
    ----------
    target : Path
        Its folder.
    position : Position
    contents : Contents
    refuse_lost, ready, accelerator, meet
        As in `Checkpoints`.
    """

    target: Path
    position: Position
    contents: Contents
    refuse_lost: Callable[[], None]
    ready: Callable[[], None]
    accelerator: Any
    meet: Reduce
    _writing: Writing | None = field(default=None, init=False)

    def at_once(self) -> None:
        """Write all of it and give it its name.

        Raises
        ------
        OSError
            If the disk fails this process, or another one; in the others MainProcessError where it fails the main one.
        LockLostError
            If another run has taken over the folder, in the main process; MainProcessError in the others.
        """
        self._begin()
        self._publish(lambda: write_files(self.target, self.contents.files(), HERE.touch))

    def start(self, copies: HostCopies) -> bool:
        """Begin it, copy what it holds, leave the writing to a thread, and return True; raise as `at_once` does.

        Where the memory for the copies is not to be had in every process, write it at once, and return False.
        """
        self._begin()
        files = self.contents.files()
        try:
            held = copies.of(files)
        except (MemoryError, RuntimeError):  # what torch raises; if it means anything else, writing meets it again
            held = []
        if _anywhere(not held, self.meet):
            copies.let_go()
            self._publish(lambda: write_files(self.target, files, HERE.touch))
            return False
        self._writing = Writing(self.target, held)
        return True

    def is_written(self) -> bool:
        """Return whether the threads of all processes have ended, whatever has become of their files."""
        busy = self._writing is not None and not self._writing.ended
        return not _anywhere(busy, self.meet)

    def finish(self) -> float:
        """Wait for the threads of all processes, give the checkpoint its name, and return how long writing took.

        Raises as `at_once` does.
        """
        writing = self._writing
        assert writing is not None
        self._publish(writing.result)
        return writing.seconds

    def give_up(self) -> None:
        """End the thread of this process; what it has written stays, hidden, until `drop` or the next start."""
        if self._writing is not None:
            self._writing.give_up()

    def drop(self) -> None:
        """End the thread of this process, and remove what the main one sees of it."""
        self.give_up()
        if self.accelerator.is_main_process:
            drop_partial(self.target)

    @contextlib.contextmanager
    def dropping(self) -> Iterator[None]:
        """Leave nothing of a save that fails within the context."""
        try:
            yield
        except LockLostError:
            raise  # what is there under this checkpoint's name may be the other run's
        except BaseException:
            self.drop()
            raise

    def told(self, error: OSError | MainProcessError) -> tuple[bool, bool]:
        """Return, in all processes alike, whether an error says that the folder is gone, and that the disk is full."""
        own = of_disk(error)
        return _anywhere(own.errno in (errno.ENOENT, errno.ENOTDIR), self.meet), _anywhere(is_full(own), self.meet)

    def mended(self, error: OSError | MainProcessError) -> tuple[bool, bool]:
        """Return, in all processes alike, whether the folder is gone, and whether they have waited for space.

        Raises
        ------
        StoppedWaiting
            In all of them, if one was asked to stop meanwhile.
        """
        own, now = of_disk(error), patience()
        gone, full = self.told(error)
        stopped = _anywhere(isinstance(error, StoppedWaiting), self.meet)
        waited = full and not stopped and now is not None and now.mode == "wait"
        if waited and now is not None:
            failed = own if isinstance(own, WriteError) else WriteError(self.target, own, self.contents.size())
            parts = max(1, math.ceil(disk.LOOK_AGAIN / _LISTEN))  # counted: by their clocks they would not agree
            for _ in range(parts):
                stopped = stopped or _anywhere(now.look_away(failed if is_full(own) else None, parts), self.meet)
        if stopped:
            raise StoppedWaiting(self.target, own, self.contents.size()) from error
        return gone, waited

    def complaint(self, error: OSError | MainProcessError, earlier: Path | None, *, ending: bool = False) -> str:
        """Return what is said of one that could not be written: why, what is kept, and what to do.

        Parameters
        ----------
        error
        earlier : Path or None
            The newest whole checkpoint.
        ending : bool
            Whether the run ends with it, which decides over the advice.
        """
        own = of_disk(error)
        reason = own.reason if isinstance(own, WriteError) else own.strerror or str(own)
        last = f"{earlier.name} is kept" if earlier is not None and earlier.is_dir() else "there is no earlier one"
        text = f"no checkpoint could be written after {self.position.updates} updates: {reason}; {last}"
        if is_full(own):
            text += f". Free some space for {self.target.parent}, or lower checkpoint.keep if it is above 2"
        now = patience()
        return f"{text}; {now.advice(own)}" if ending and now is not None else text

    def _begin(self) -> None:
        on_main(self.accelerator, self.meet, self._begin_folder)

    def _begin_folder(self) -> None:
        self.ready()
        folder = self.target.parent
        if not folder.is_dir():
            folder.mkdir()
            flush(folder.parent)
        begin_folder(self.target, room=self.contents.size())
        self.contents.write_facts(partial_of(self.target), self.position)

    def _publish(self, write: Callable[[], Facts]) -> None:
        written = dict(together(write, self.meet, OSError("another process could not write its part")))
        for facts in gathered(json.dumps(written), self.contents.rank, self.contents.ranks, self.meet):
            written.update(json.loads(facts))
        on_main(self.accelerator, self.meet, lambda: self._seal(written))

    def _seal(self, written: Facts) -> None:
        self.refuse_lost()
        seal_folder(self.target, written)


class GivenUpError(Exception):
    """What ends a thread that writes what nobody wants any more."""


class Writing:
    """A thread that writes tensor files.

    Parameters
    ----------
    target : Path
        The checkpoint that they belong to.
    files : sequence of TensorFile
        Of tensors that do not change meanwhile.
    """

    def __init__(self, target: Path, files: Sequence[TensorFile]) -> None:
        self.seconds = 0.0  # that it took
        self._target, self._files, self._began = target, files, time.monotonic()
        self._unwanted, self._pieces = threading.Event(), 0
        self._facts: Facts = {}
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="checkpoint", daemon=True)
        self._thread.start()

    @property
    def ended(self) -> bool:
        """Return whether it has come to an end, good or bad."""
        return not self._thread.is_alive()

    def result(self) -> Facts:
        """Wait for it and return what `write_files` returned; raise what it raised.

        What it gets done meanwhile is noted as done here: on a slow disk this process does not stand still.
        """
        while not self.ended:
            pieces = self._pieces
            self._thread.join(_LOOK)
            if self._pieces > pieces:
                HERE.touch()
        if self._error is not None:
            raise self._error
        return self._facts

    def give_up(self) -> None:
        """End it within a few pieces."""
        self._unwanted.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            self._facts = write_files(self._target, self._files, self._piece)
        except BaseException as error:
            self._error = error
        self.seconds = time.monotonic() - self._began

    def _piece(self) -> None:
        """Count a piece; nothing is noted as done by it, or training that stands still would not be found out."""
        self._pieces += 1
        if self._unwanted.is_set():
            raise GivenUpError


def overlaps(settings: CheckpointConfig, contents: Contents, copies: HostCopies, meet: Reduce) -> bool:
    """Return whether the next save is left to a thread; all processes agree."""
    if settings.overlap != "auto":
        return settings.overlap == "always"
    needed = contents.bytes_beside_host()
    if _anywhere(not needed or not room_for(needed - copies.nbytes, local_processes()), meet):
        copies.let_go()
        return False
    return True


def of_disk(error: OSError | MainProcessError) -> OSError:
    """Return an error of the disk as it is, and in its place one that says what another process's was."""
    return error if isinstance(error, OSError) else OSError(errno.EIO, str(error))


def _anywhere(fact: bool, meet: Reduce) -> bool:
    return bool(meet(torch.tensor(float(fact)), "max").item())


def together(act: Callable[[], T], reduce: Reduce, elsewhere: E) -> T:
    """Run `act` in every process; where it raises such an error in one, raise `elsewhere` in the others."""
    result: list[T] = []
    error = None
    try:
        result.append(act())
    except type(elsewhere) as own:
        error = own
    if _anywhere(error is not None, reduce):
        raise error or elsewhere
    return result[0]
