"""Stopping on request: the first of five signals asks a run to save and end, a second one ends it at once.

SIGTERM, Ctrl+C (SIGINT), SIGHUP (the terminal is gone), SIGUSR1 (what Slurm is mostly told to send before the time is
up) and SIGXCPU (the limit of computing time is near) all ask for the same. They may reach every process of a job, not
only the first: `sparing` and `outlive` keep the others alive, which end when the first one ends them.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any, Self

from humanline.system.launcher import launched_processes

EXIT_STOPPED = 75  # EX_TEMPFAIL, "try again later", of sysexits.h: schedulers can tell it from a failure
ECHO = 2.0  # seconds within which a launcher, a shell or the system repeats a signal
_OFTEN_IGNORED = ("SIGHUP", "SIGUSR1", "SIGXCPU")  # whoever started us with one of them ignored meant that (nohup)
STOPPING = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGINT", *_OFTEN_IGNORED) if hasattr(signal, name))


def handled() -> list[signal.Signals]:
    """Return the signals of `STOPPING` that ask this process to stop: those that nobody had it ignore."""
    found = [(number, signal.getsignal(number)) for number in STOPPING]
    return [
        number
        for number, here in found
        if here is not None and (here != signal.SIG_IGN or number.name not in _OFTEN_IGNORED)
    ]


class StopRequested(BaseException):
    """A run was asked to stop. Like KeyboardInterrupt it is no Exception, so that nothing swallows it by mistake."""

    def __init__(self, signal_name: str, message: str = "") -> None:
        self.signal_name = signal_name
        super().__init__(message or f"stopped by {signal_name}")


class StopSignal:
    """Turn the first signal of `STOPPING` into a request that the run polls; used as a context manager.

    Until `hold` is called there is nothing to save, and the first signal raises StopRequested where it arrives. From
    then on it only sets `requested`, and the run stops at its next safe point. SIGHUP, SIGUSR1 and SIGXCPU are left
    alone where they were ignored before; where a signal was blocked, it is let through.

    After the first signal the others have their default effect again, so a second one ends the process even inside a
    long computation. Not at once, but as soon as two seconds have passed and Python is at work again, it does so where
    signals come twice by themselves: under a launcher of several processes, which passes on what the terminal has sent
    to every process already; after a SIGHUP, which the shell and the system both send, with a SIGTERM behind; and a
    SIGHUP after another. A further SIGXCPU never does, since the system repeats it every second.
    """

    def __init__(self) -> None:
        self.requested: str | None = None
        self.holding = False
        self._since = 0.0
        self._launched = launched_processes() > 1
        self._before: dict[int, Any] = {}
        self._mask: set[Any] = set()

    def __enter__(self) -> Self:
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        try:
            for number in handled():
                self._before[number] = signal.signal(number, self._handle)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, self._before)
        except BaseException:  # one that came at once, or has waited for this
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def hold(self) -> None:
        """Stop at safe points only from now on."""
        self.holding = True

    def _handle(self, number: int, frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        if self.requested is not None:
            if time.monotonic() - self._since > ECHO:
                os._exit(128 + number)
            return
        self.requested, self._since = name, time.monotonic()
        echoes = self._launched or name == "SIGHUP"
        for known in self._before:
            if signal.Signals(known).name == "SIGXCPU":
                signal.signal(known, signal.SIG_IGN)
            elif not echoes and signal.Signals(known).name != "SIGHUP":
                signal.signal(known, signal.SIG_DFL)
        if not self.holding:
            raise StopRequested(name)
        later = f", {ECHO:g} seconds from now," if echoes else ""
        with contextlib.suppress(OSError):  # a terminal that is gone is often why the signal came
            os.write(2, f"\n{name}: saving at the next safe point; once more{later} ends the run at once\n".encode())


@contextlib.contextmanager
def ending_at_once() -> Iterator[None]:
    """End as stopped on a signal of `STOPPING` that Python does not come to, since a library waits for other processes.

    For a time in which there is nothing to save. It does nothing in a thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    signals, wake = os.pipe()
    os.set_blocking(wake, False)
    over = threading.Event()

    def listen() -> None:
        while number := os.read(signals, 1):
            if number[0] in STOPPING and not over.wait(ECHO):
                with contextlib.suppress(OSError):
                    os.write(2, f"\nstopped by {signal.Signals(number[0]).name} before anything was begun\n".encode())
                os._exit(EXIT_STOPPED)
        os.close(signals)

    threading.Thread(target=listen, name="humanline-signals", daemon=True).start()
    before = signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    try:
        yield
    finally:
        over.set()
        signal.set_wakeup_fd(before)
        os.close(wake)


@contextlib.contextmanager
def sparing() -> Iterator[None]:
    """Start processes here that no signal of `STOPPING` ends before they have called `outlive`."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def outlive() -> None:
    """Ignore signals of `STOPPING` in this process, but not in those that it starts."""
    for number in STOPPING:
        signal.signal(number, _pass_by)
    os.register_at_fork(after_in_child=_heed_again)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)


def _pass_by(number: int, frame: FrameType | None) -> None:
    """Do nothing; unlike SIG_IGN this is not handed on to programs that are started."""


def _heed_again() -> None:
    for number in STOPPING:
        if signal.getsignal(number) is _pass_by:
            signal.signal(number, signal.SIG_DFL)


class SamplingStopped(Exception):
    """Sampling was given up because the run was asked to stop."""
