"""A keeper between a run and one of its workers: nothing that the worker has started outlives it.

Orphans among a worker's descendants fall to the keeper, which has made itself their reaper (Linux), so also those that
left the worker's group by setsid or by forking twice. When the worker ends, however it does, or the run's end of the
lifeline closes, since the run wants that or was killed, the keeper kills whatever is left, and ends as the worker did.

Elsewhere than on Linux there is no such reaper: there only the worker's own group ends with it, and what has left it by
setsid stays. A worker that kills its keeper dies with it, but what it has started may stay, too.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import time

from humanline.system.parent import adopt_orphans, die_with_parent

_LONGEST = 10.0  # seconds for killing what is left: a descendant may be another user's, or forks all the time


def keep(lifeline: int) -> None:
    """Fork a worker and return in it alone; in the keeper, wait for its end and end too.

    Parameters
    ----------
    lifeline : int
        Descriptor of a pipe whose other end only the run holds, and on which nothing is ever sent.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    adopt_orphans()
    wakes, wake = os.pipe()
    os.set_blocking(wakes, False)
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    before = signal.set_wakeup_fd(wake)
    keeper = os.getpid()
    worker = os.fork()
    if worker == 0:
        signal.set_wakeup_fd(before)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.close(wakes)
        os.close(wake)
        os.setpgid(0, 0)  # by itself the keeper would die in its group
        die_with_parent(keeper)
        return
    nowhere = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nowhere, standard)  # the worker's output ends with the worker
    status: int | None = None
    while status is None:
        ready, _, _ = select.select([lifeline, wakes], [], [])
        if wakes in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(wakes, 2**10)
        status = _reap(worker)
        if lifeline in ready:
            break
    _kill_all(worker)
    if status is not None and os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        with contextlib.suppress(OSError, ValueError):  # SIGKILL has no handler to be reset
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(0 if status is None else os.waitstatus_to_exitcode(status))


def _reap(worker: int) -> int | None:
    """Collect all children that have ended; return the status of the worker if it is one of them."""
    found = None
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == worker:
                found = ended[1]
    return found


def _kill_all(worker: int) -> None:
    """Kill the worker's group, then children until there are none: those of a killed one become this process's own."""
    until = time.monotonic() + _LONGEST
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(worker, signal.SIGKILL)
    while time.monotonic() < until:
        for child in _children():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(child, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.002)


def _children() -> list[int]:
    """Return the children of this process; none where there is no /proc."""
    found, mine = [], str(os.getpid())
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc"):
            if name.isdigit():
                with contextlib.suppress(OSError, IndexError), open(f"/proc/{name}/stat", "rb") as file:
                    if file.read().rpartition(b")")[2].split()[1].decode() == mine:
                        found.append(int(name))
    return found
