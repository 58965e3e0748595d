"""What a run does when its disk is full: it names file, need and space, and ends, or waits until there is space again.

Every write of a run goes through `patient` (or, where processes write together, `Checkpoints.save`), so that the
setting `training.disk_full` holds for all of them, in every process. `of_run` says which run this process is in;
outside of one, a write that fails only says what failed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal, TypeVar

from humanline.system.log import LOG
from humanline.system.stop import StopRequested, StopSignal
from humanline.system.terminal import told

T = TypeVar("T")

LOOK_AGAIN = 60.0  # seconds between two tries
PHASE = "waiting for space on the disk"
_SAY_AGAIN = 3600.0  # seconds after which it is said once more that a run waits
_FULL = (errno.ENOSPC, errno.EDQUOT)
_CHECKPOINT = re.compile(r"step-\d{8,}(\.\d{6})?")


class NoRoomError(OSError):
    """A file system with less free space than a write needs, which the message says; nothing was written."""

    def __init__(self, message: str) -> None:
        super().__init__(errno.ENOSPC, message)

    def __str__(self) -> str:
        return str(self.strerror)


class WriteError(OSError):
    """A file that could not be written: the message has its name, the reason, bytes needed and free, and a way on.

    The way on is asked for when the message is shown: a checkpoint may be saved between the failure and that.
    """

    def __init__(self, path: Path, error: OSError, needed: int = 0, advice: Callable[[], str] = lambda: "") -> None:
        super().__init__(error.errno, error.strerror or str(error))
        self.path, self.needed = path, needed
        self.reason = f"{path} cannot be written: {error.strerror or error}"
        if error.errno in (*_FULL, errno.EFBIG) and not isinstance(error, NoRoomError):
            self.reason += f": {in_words(needed)} needed, {_free(path)}"
        self._advice = advice

    def __str__(self) -> str:
        advice = self._advice()
        return self.reason + (f"; {advice}" if advice else "")


class StoppedWaiting(WriteError):
    """A run that waited for space, here or in another process, and was asked to stop meanwhile."""


def stopped_elsewhere() -> StoppedWaiting:
    """Return the error that the other processes raise where the main one was asked to stop while it waited."""
    return StoppedWaiting(Path("a file of the main process"), OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))


def is_full(error: BaseException) -> bool:
    """Return whether a write failed for want of space, which can come back by itself."""
    return isinstance(error, OSError) and error.errno in _FULL


def in_words(count: int) -> str:
    """Return a number of bytes in words, as in 1.5 GiB."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} bytes"


def nearest(path: str | Path) -> Path:
    """Return the path, or the nearest parent that is there; of a link to nothing, that of what it leads to."""
    place = Path(path).expanduser().absolute()
    while not place.exists() and place != place.parent:
        place = Path(os.path.realpath(place)).parent if place.is_symlink() else place.parent
    return place


def _free(path: Path) -> str:
    try:
        place = nearest(path)
        free = f"{in_words(shutil.disk_usage(place).free)} free"
        files = os.statvfs(place)
    except OSError:
        return "nobody can tell how much is free"
    return f"{free}, but no room for another file (inodes)" if files.f_files and not files.f_favail else free


def tell(text: str) -> None:
    """Say what a person must know, also where progress is not shown."""
    LOG.note(text)
    rank = os.environ.get("RANK", "0")
    with contextlib.suppress(OSError):  # nobody reads any more
        print(told(text if rank == "0" else f"process {rank}: {text}", keep="\n"), file=sys.stderr, flush=True)


@dataclass(slots=True)
class Patience:
    """How one run takes a full disk.

    Parameters
    ----------
    mode : "stop" or "wait"
    checkpoints : Path or None
        Where the run's checkpoints are, for advice; None gives none.
    stopping : callable
        Returns the name of the signal that asked this process to stop, or None.
    phase : callable
        Called with `PHASE` several times a second while the run waits, and with None when that is over: for whoever
        watches that the run goes on.
    """

    mode: Literal["stop", "wait"]
    checkpoints: Path | None
    stopping: Callable[[], str | None]
    phase: Callable[[str | None], None]
    _waiting: bool = field(default=False, init=False)
    _said: float = field(default=0.0, init=False)

    def advice(self, error: OSError) -> str:
        """Return how to go on with a run that a failed write has ended."""
        if self.checkpoints is None:
            return ""
        when = "when there is space again" if is_full(error) else "when that is mended"
        return f"{when}, add --resume to the same command: the run goes on from {self.saved()}"

    def saved(self) -> str:
        """Return the newest checkpoint by name, or that there is none."""
        found: list[str] = []
        if self.checkpoints is not None:
            with contextlib.suppress(OSError):
                found = sorted(name for name in os.listdir(self.checkpoints) if _CHECKPOINT.fullmatch(name))
        return found[-1] if found else "its beginning, as there is no checkpoint"

    def look_away(self, error: OSError | None, part: int = 1) -> bool:
        """Wait for `LOOK_AGAIN` seconds, or until this process is asked to stop; return whether it was.

        Parameters
        ----------
        error : OSError or None
            What is said of the wait, at its beginning and then sparingly; None where another process says it.
        part : int
            How many calls make up the whole wait, for processes that listen to each other in between; above 0.
        """
        if self.stopping():
            return True
        now = time.monotonic()
        if error is not None and (not self._waiting or now - self._said >= _SAY_AGAIN):
            reason = error.reason if isinstance(error, WriteError) else error
            tell(f"{reason}; training.disk_full is wait: it is tried again every {LOOK_AGAIN:g} seconds")
            self._said = now
        self._waiting = True
        while time.monotonic() - now < LOOK_AGAIN / part:
            self.phase(PHASE)
            if self.stopping():
                return True
            time.sleep(min(0.2, LOOK_AGAIN))
        return False

    def goes_on(self) -> None:
        """Take note that a write has succeeded."""
        if self._waiting:
            self._waiting = False
            self.phase(None)
            tell("there is space on the disk again: the run goes on")


_now: Patience | None = None  # of the run that this process is in


def patience() -> Patience | None:
    """Return how the run that this process is in takes a full disk, if it is in one."""
    return _now


@contextlib.contextmanager
def of_run(
    mode: Literal["stop", "wait"],
    checkpoints: Path | None,
    stop: StopSignal | None = None,
    phase: Callable[[str | None], None] = lambda _: None,
) -> Iterator[None]:
    """Apply a run's setting for a full disk to every write of this process, until the context ends.

    Parameters
    ----------
    mode, checkpoints, phase
        As `Patience` has them.
    stop : StopSignal, optional
        Asked while waiting.

    Raises
    ------
    StopRequested
        Where a wait was ended by a request to stop, with what is saved and what is not.
    """
    global _now
    _now = Patience(mode, checkpoints, lambda: None if stop is None else stop.requested, phase)
    try:
        yield
    except StoppedWaiting as error:
        name = _now.stopping() or "a signal to another process"
        raise StopRequested(
            name,
            f"stopped by {name} while it waited for space: {error.reason}; what was trained after the newest "
            f"checkpoint is not saved; when there is space again, add --resume to the same command: the run goes on "
            f"from {_now.saved()}",
        ) from None
    finally:
        _now = None  # whatever was there before: runs are not nested, and a thread's may have ended meanwhile


def _advice(run: Patience | None, error: OSError) -> str:
    return "" if run is None else run.advice(error)


def patient(path: Path, act: Callable[[], T], needed: int | Callable[[], int] = 0) -> T:
    """Write something: `act` leaves nothing of a try that failed, so that it can be done again.

    Parameters
    ----------
    path : Path
        What is written, for messages.
    act : callable
    needed : int or callable
        Bytes, or what counts them where a write has failed.

    Raises
    ------
    WriteError
        If it cannot be written; where there is no space, only in a run that is not to wait for it.
    StoppedWaiting
        (A WriteError.) If the run was asked to stop while it waited.
    """
    while True:
        try:
            done = act()
        except WriteError:
            raise  # of a part, which has had its own tries
        except OSError as error:
            now, size = _now, needed() if callable(needed) else needed
            failed = WriteError(path, error, size, partial(_advice, now, error))
            if now is None or now.mode == "stop" or not is_full(error):
                raise failed from error
            if now.look_away(failed):
                raise StoppedWaiting(path, error, size) from error
        else:
            if _now is not None:
                _now.goes_on()
            return done
