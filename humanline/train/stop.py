"""Stopping on request: the first SIGTERM or Ctrl+C asks a run to save and end, the second ends it at once."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from types import FrameType
from typing import Any, Self

from humanline.train.launcher import launched_processes

_ECHO = 2.0  # seconds within which a launcher's own signal repeats the one that the terminal has sent


class StopRequested(BaseException):
    """A run was asked to stop. Like KeyboardInterrupt it is no Exception, so that nothing swallows it by mistake."""

    def __init__(self, signal_name: str, message: str = "") -> None:
        self.signal_name = signal_name
        super().__init__(message or f"stopped by {signal_name}")


class StopSignal:
    """Turn the first SIGTERM or Ctrl+C into a request that the run polls; used as a context manager.

    Until `hold` is called there is nothing to save, and the first signal raises StopRequested where it arrives. From
    then on it only sets `requested`, and the run stops at its next safe point. After the first signal both have their
    default effect again, so a second one ends the process even inside a long computation. Under a launcher of several
    processes a repetition within two seconds counts as the same signal, because launchers pass on what the terminal
    has sent to every process already.
    """

    def __init__(self) -> None:
        self.requested: str | None = None
        self.holding = False
        self._since = 0.0
        self._launched = launched_processes() > 1
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._handle) for number in (signal.SIGTERM, signal.SIGINT)}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def hold(self) -> None:
        """Stop at safe points only from now on."""
        self.holding = True

    def _handle(self, number: int, frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        if self.requested is not None:
            if time.monotonic() - self._since > _ECHO:
                os._exit(128 + number)
            return
        self.requested, self._since = name, time.monotonic()
        if not self._launched:
            for known in self._before:
                signal.signal(known, signal.SIG_DFL)
        if not self.holding:
            raise StopRequested(name)
        with contextlib.suppress(OSError):  # a terminal that is gone is often why the signal came
            os.write(2, f"\n{name}: saving at the next safe point; once more ends the run at once\n".encode())
