"""The moments at which the disk has just changed, as humanline names them: counted, and killed at."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Mapping


def at_barriers(act: Callable[[str], None]) -> None:
    """Have a function called at every write barrier of this process, by the name of the change; for good."""
    for name, module in list(sys.modules.items()):
        if name.startswith("humanline.train.") and hasattr(module, "barrier"):
            module.barrier = act  # modules that import it by name have one each


def signal_at(signals: Mapping[int, int]) -> list[str]:
    """Send this process signals at barriers, counted from 0; return the list that the names of all are added to."""
    passed: list[str] = []

    def act(what: str) -> None:
        if len(passed) in signals:
            os.kill(os.getpid(), signals[len(passed)])
        passed.append(what)

    at_barriers(act)
    return passed


def kill_at(number: int) -> None:
    """Kill this process at a barrier, counted from 0."""
    signal_at({number: signal.SIGKILL})
