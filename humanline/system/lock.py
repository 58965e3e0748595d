"""A lock on a folder that asks one thing of the file system, that a name is made once: no flock, no shared clock.

The lock is a file `run.lock.N`, and whoever made the one with the highest number holds the folder. To take over a lock
is to make the next number, which of many at once exactly one can; lower numbers are then removed. Whatever a former
holder does to its own file after it woke up, it changes nothing. A lock that is given back stays as a file that says
so, since numbers may only grow.

The file names its process (`Identity`) and is renewed every 30 seconds. A holder that is known to be dead is followed
at once. Of any other one we know only when it was last seen, and that by two clocks: the file system's, which stamped
both its file and one that we make to compare, and our own, by which we watch whether the file changes. Neither is the
other machine's. It is followed if its last renewal is 5 minutes old by the first and none comes in 75 seconds by the
second (a file system may take stamps from its clients' clocks, and a laptop that was asleep needs a moment), or if none
comes in 5 minutes by the second alone.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from humanline.system import files
from humanline.system.activity import HERE
from humanline.system.identity import Fate, Identity

RENEW = 30.0  # seconds between renewals
STALE = 300.0  # seconds without one after which a holder counts as gone
LOOK = 75.0  # seconds for which we watch ourselves before we say so: two renewals and a half
_NAME = re.compile(r"run\.lock(?:\.(\d{1,9}))?")
_PARTIAL = re.compile(r"\.run\.lock\..*\.partial")
_OLD = re.compile(r"process (\d{1,9}) on (.+)")  # what earlier versions wrote, in `run.lock` itself
_BYTES = 1024  # of a lock file, always, so that it can be renewed in place on a full disk


class LockHeldError(ValueError):
    """A folder that another process holds; its text goes on after "... is"."""


class LockLostError(ValueError):
    """A lock that another process has taken over meanwhile."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """A lock file as it was read."""

    number: int
    content: bytes
    changed: float  # seconds, by the file system's clock
    holder: Identity | None = None
    nonce: str = ""
    free: bool = False


def is_lock(name: str) -> bool:
    """Return whether a file of this name in a locked folder is the lock's, and not the folder's content."""
    return bool(_NAME.fullmatch(name) or _PARTIAL.fullmatch(name))


class FolderLock:
    """Keep every other process out of a folder, on this machine and on others that see it.

    Parameters
    ----------
    folder : Path
        Must exist when the lock is taken.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._number = 0  # of the file that we hold; 0: none
        self._lost: str | None = None
        self._ended = threading.Event()
        self._renewed = 0.0
        self._renewals = 0
        self._guard = threading.RLock()  # the renewing thread and others look at the files one at a time

    def take(self, *, wait: bool, say: Callable[[str], None]) -> None:
        """Hold the folder, and go on renewing that in a thread until `release`.

        Parameters
        ----------
        wait : bool
            Whether to wait for a holder to show itself, or to count as gone, where nothing else tells whether it is
            alive. False refuses at once, unless its last renewal is 5 minutes old.
        say : callable
            Shows a line about waiting, and about a lock that is taken over.

        Raises
        ------
        LockHeldError
            If the holder is alive, or may be and `wait` is False; the message says for how long it may.
        OSError
            If the folder cannot be read or written.
        """
        self._holder, self._nonce = Identity.own(), secrets.token_hex(16)
        watched: _Seen | None = None
        since = age = 0.0
        while True:
            seen = self._highest()
            fate: Fate = "dead" if seen is None else self._fate(seen)
            if seen is not None and fate != "dead":
                now = time.monotonic()
                if watched is None:
                    watched, since = seen, now
                    age = max(0.0, self._clock() - seen.changed)
                looked = now - since
                if watched != seen:
                    raise LockHeldError(_in_use(seen, "it has just renewed its lock", None))
                rest = min(max(STALE - age, LOOK), STALE) - looked
                if rest > 0:
                    old = not seen.number and fate == "alive"  # which never renews
                    if old or (age + looked < STALE and (fate == "alive" or not wait)):
                        ago = f"last seen {age + looked:.0f} s ago"
                        raise LockHeldError(_in_use(seen, ago, None if fate == "alive" else rest))
                    if looked == 0:
                        say(_waiting(seen, age, rest))
                    HERE.held_up("waiting for the lock of the output folder")
                    try:
                        time.sleep(min(rest, 1.0))
                    finally:
                        HERE.held_up(None)
                    continue
            if self._make(1 if seen is None else seen.number + 1):
                break
        if seen is not None and not seen.free:
            why = "is gone" if fate == "dead" else f"has not renewed it for {age + looked:.0f} s"
            say(f"took over the lock of {_who(seen)}, which {why}")
        self._ended.clear()
        self._thread = threading.Thread(target=self._keep_renewing, name="lock", daemon=True)
        self._thread.start()
        files.barrier("lock taken")

    def release(self) -> None:
        """Give the folder back, if this process holds it."""
        if not self._number or self._holder.process != os.getpid():
            return
        self._ended.set()
        self._thread.join(5)  # a disk that does not answer is no reason to stay
        with contextlib.suppress(OSError), self._looking(5):
            self._look()
            if self._lost is None:
                self._write(free=True)
        self._number = 0

    def lost(self) -> str | None:
        """Return a message if another process is known to have taken the lock over, else None; costs nothing."""
        if self._number and self._lost is None and _clock() - self._renewed > 2 * RENEW:  # we may have been asleep
            with contextlib.suppress(OSError), self._looking(0):
                self._look()
        return self._lost

    def refuse_lost(self) -> None:
        """Look at the folder, and raise LockLostError if another process has taken the lock over."""
        if self._number:
            with contextlib.suppress(OSError), self._looking(60):
                self._look()
        if self._lost is not None:
            raise LockLostError(self._lost)

    def _keep_renewing(self) -> None:
        while not self._ended.wait(RENEW):
            # Tried again in 30 seconds; what matters is whether it is still ours.
            with contextlib.suppress(OSError), self._looking(RENEW):
                self._look()
                if self._lost is not None:
                    return
                self._write()

    @contextlib.contextmanager
    def _looking(self, seconds: float) -> Iterator[None]:
        """Keep other threads from the files; raise OSError if one is at them for longer, as on a disk that hangs."""
        if not self._guard.acquire(timeout=seconds):
            raise TimeoutError
        try:
            yield
        finally:
            self._guard.release()

    def _look(self) -> None:
        """Find out whether the lock is still ours; make its file again where that alone is gone."""
        own = self._read(self._number)  # opened first: over NFS that tells the truth sooner than a listing does
        others = [number for number in self._numbers() if number != self._number]
        if own is None and not others:
            self._make(self._number)
            own = self._read(self._number)
            others = [number for number in self._numbers() if number != self._number]
            if own is None and not others:
                return  # gone again: nobody has the lock, and the next look makes it again
        if own is None or own.nonce not in ("", self._nonce) or any(number > self._number for number in others):
            other = self._highest()
            who = "another process" if other is None else _who(other)
            if own is not None and own.nonce not in ("", self._nonce):  # which no takeover leaves behind
                self._lost = (
                    f"{self.folder} was removed while the run went on, and {who} has begun another run in it. This one "
                    "ends here and writes nothing more; choose another folder for it"
                )
                return
            self._lost = (
                f"{self.folder} was taken over by {who}, because this one did not renew its lock for {STALE / 60:g} "
                "minutes: it was stopped or asleep, or the disk did not answer. It ends here and writes nothing more; "
                "the other one goes on from what was saved before"
            )

    def _text(self, free: bool = False) -> bytes:
        row = self._holder.row() | {
            "nonce": self._nonce,
            "renewals": self._renewals,
            "renewed": datetime.now().astimezone().isoformat(timespec="seconds"),
            "free": free,
        }
        return json.dumps(row).encode().ljust(_BYTES - 1) + b"\n"

    def _write(self, free: bool = False) -> None:
        """Renew our file in place, which takes no space; where it cannot be written its time is, at least."""
        self._renewals += 1
        path = self._path(self._number)
        try:
            handle = os.open(path, os.O_WRONLY)
            try:
                os.pwrite(handle, self._text(free), 0)
                os.fsync(handle)
            finally:
                os.close(handle)
        except OSError:
            os.utime(path)
        self._renewed = _clock()

    def _make(self, number: int) -> bool:
        """Make the lock file of a number, whole; return whether we now hold the folder by it."""
        path, partial = self._path(number), self.folder / f".run.lock.{self._nonce}.partial"
        try:
            with open(partial, "xb") as file:
                file.write(self._text())
                file.flush()
                os.fsync(file.fileno())
            try:
                os.link(partial, path)
            except FileExistsError:
                if not os.path.samefile(partial, path):  # over NFS a link that was made may be asked for once more
                    return False
            except FileNotFoundError:  # another holder has cleared our own file away, or gone with its folder
                return False
            except OSError as error:
                if error.errno not in files.NO_LINKS:
                    raise
                if not self._make_alone(path):
                    return False
        finally:
            with contextlib.suppress(OSError):
                partial.unlink()
        there = self._numbers()
        if any(other > number for other in there):  # we were slow, and have made again what was removed
            path.unlink(missing_ok=True)
            return False
        for other in there:
            if other < number:
                with contextlib.suppress(OSError):
                    self._path(other).unlink()
        self._number, self._lost, self._renewed = number, None, _clock()
        return True

    def _make_alone(self, path: Path) -> bool:
        """Make a lock file where the file system has no links."""
        try:
            with open(path, "xb") as file:
                file.write(self._text())
                file.flush()
                os.fsync(file.fileno())
        except FileExistsError:
            return False
        return True

    def _highest(self) -> _Seen | None:
        """Return the lock file that counts, or None if there is none."""
        while numbers := self._numbers():
            seen = self._read(numbers[-1])
            if seen is not None:
                return seen
        return None

    def _numbers(self) -> list[int]:
        """Return the numbers of the lock files that are there, in order; 0 is that of earlier versions."""
        names = map(_NAME.fullmatch, os.listdir(self.folder))
        return sorted(int(name[1] or 0) for name in names if name is not None)

    def _path(self, number: int) -> Path:
        return self.folder / (f"run.lock.{number}" if number else "run.lock")

    def _read(self, number: int) -> _Seen | None:
        """Return the lock file of a number; None if it is gone."""
        try:
            with open(self._path(number), "rb") as file:
                content, changed = file.read(4 * _BYTES), os.fstat(file.fileno()).st_mtime_ns / 1e9
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ESTALE):
                return None
            raise
        if not number:
            found = _OLD.fullmatch(content.decode("utf-8", "replace").strip())
            holder = None if found is None else Identity(found[2], int(found[1]))
            return _Seen(number, content, changed, holder)
        try:
            row = json.loads(content)
            return _Seen(number, content, changed, Identity.from_row(row), str(row["nonce"]), row["free"] is True)
        except (ValueError, TypeError, KeyError, AttributeError):
            return _Seen(number, content, changed)  # just being made, where a file system has no links, or damaged

    def _fate(self, seen: _Seen) -> Fate:
        """Return the fate of the holder of a lock file."""
        if seen.free:
            return "dead"
        if seen.number:
            return "unknown" if seen.holder is None else seen.holder.fate()
        # Of an earlier version, which held it by flock, where there is such a thing, and renewed nothing.
        try:
            import fcntl

            with open(self._path(0), "r+b") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return "dead"
        except BlockingIOError:
            return "alive"
        except (ImportError, OSError):  # no such call on this system, or for this file
            pass
        own = self._holder
        if seen.holder is None or seen.holder.host != own.host:
            return "unknown"
        there = Identity(own.host, seen.holder.process, own.boot, own.namespace).fate()
        return "dead" if there == "dead" else "alive"

    def _clock(self) -> float:
        """Return the time by the file system's clock, in seconds."""
        probe = self.folder / f".run.lock.{self._nonce}.partial"
        try:
            with open(probe, "wb") as file:
                file.write(b"\n")
                file.flush()
                os.fsync(file.fileno())
                return os.fstat(file.fileno()).st_mtime_ns / 1e9
        finally:
            probe.unlink(missing_ok=True)


def seen_at_work(folder: Path) -> bool:
    """Return whether a process holds a folder, as far as a look at its lock tells; nothing is written or waited for.

    A holder of whom nobody knows here whether it is alive counts as at work while its last renewal is not 5 minutes
    old, by this machine's clock.
    """
    lock = FolderLock(folder)
    try:
        seen = lock._highest()
    except OSError:
        return False
    if seen is None or seen.free:
        return False
    fate = "unknown" if seen.holder is None else seen.holder.fate()
    return fate == "alive" or (fate == "unknown" and abs(time.time() - seen.changed) < STALE)


def last_holder(folder: Path) -> str | None:
    """Return in words which process holds a folder, or held it last, and since when; None where no lock is there."""
    try:
        seen = FolderLock(folder)._highest()
    except OSError:
        return None
    if seen is None:
        return None
    ago = max(0.0, time.time() - seen.changed)
    return f"{_who(seen)}, {'given back' if seen.free else 'renewed'} {ago:,.0f} s ago"


def _clock() -> float:
    """Return seconds that pass while the machine sleeps, too, where it has such a clock."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def _who(seen: _Seen) -> str:
    return "an unknown process" if seen.holder is None else str(seen.holder)


def _in_use(seen: _Seen, ago: str, rest: float | None) -> str:
    """Return who holds a folder and what can be done; `rest` is the time until it counts as gone, None if it lives."""
    advice = "wait for it, stop it, or choose another folder"
    if rest is not None:
        advice = (
            f"it cannot be seen from here whether that is alive: wait for it, or, if it is dead, {math.ceil(rest)} s "
            "until its place is free, or choose another folder"
        )
    return f"in use by another run ({_who(seen)}, {ago}); {advice}"


def _waiting(seen: _Seen, age: float, rest: float) -> str:
    until = datetime.fromtimestamp(time.time() + rest).strftime("%H:%M:%S")
    return (
        f"the lock is held by {_who(seen)}, last seen {age:.0f} s ago, and it cannot be seen from here whether that is "
        f"alive: waiting until {until} ({math.ceil(rest)} s) for it to show itself; if it does not, this run goes on"
    )
