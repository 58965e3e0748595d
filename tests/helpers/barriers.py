"""The moments at which the disk has just changed, as humanline names them: counted, and killed at."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from functools import partial


def at_barriers(act: Callable[[str], None]) -> None:
    """Call a function at every write barrier of this process, with the name of the change, from now on."""
    import humanline.train.loop  # noqa: F401, all modules of a run, so that none is imported later
    from humanline.system import files

    passed = files.barrier
    for name, module in list(sys.modules.items()):
        if name.startswith("humanline.") and vars(module).get("barrier") is passed:
            module.barrier = act  # modules that import it by name have one each
    assert files.barrier is act


def do_at(acts: Mapping[int, Callable[[], object]]) -> list[str]:
    """Act at some barriers, counted from 0; return the list that the names of all that are passed are added to."""
    passed: list[str] = []
    one_at_a_time = threading.RLock()  # files are written by several threads

    def act(what: str) -> None:
        with one_at_a_time:
            acts.get(len(passed), lambda: None)()
            passed.append(what)

    at_barriers(act)
    return passed


def send(number: int) -> None:
    """Send this process a signal."""
    os.kill(os.getpid(), number)


def kill_at(number: int) -> None:
    """Kill this process at a barrier, counted from 0."""
    do_at({number: partial(send, signal.SIGKILL)})
