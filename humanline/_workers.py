"""Worker processes of a command: none outlives it, and one that dies ends it with words."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any


class WorkerError(ChildProcessError):
    """A worker process that died before it had done its work."""


class _Pool(ProcessPoolExecutor):
    """A pool in which an error that cannot travel between processes arrives in words, and does not break the pool."""

    def submit(self, work: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        return super().submit(_with_plain_errors, work, arguments, named)


def _with_plain_errors(work: Callable[..., Any], arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
    try:
        return work(*arguments, **named)
    except Exception as error:
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:
            raise WorkerError(f"in a worker process: {type(error).__name__}: {error}") from None
        raise


@contextlib.contextmanager
def worker_processes(
    count: int, *, begin: Callable[[], object] | None = None, then: str
) -> Iterator[ProcessPoolExecutor]:
    """Give a pool of processes, for the length of the context; if that is left by an error they are killed.

    Parameters
    ----------
    count : int
    begin : callable, optional
        Called first in each of them; a function of a module.
    then : str
        What a person can do if one dies, for the message.

    Raises
    ------
    WorkerError
        In place of the executor's error, if a process died.
    """
    spawn = multiprocessing.get_context("spawn")
    with _Pool(count, mp_context=spawn, initializer=_begin, initargs=(begin,)) as pool:
        try:
            yield pool
        except BaseException as error:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in list((getattr(pool, "_processes", None) or {}).values()):
                process.kill()  # waiting for what it is doing would take as long as that does
            if isinstance(error, BrokenProcessPool):
                raise WorkerError(
                    "a worker process has died: it was killed, or memory ran out, of which fewer processes at a time "
                    f"take less; {then}"
                ) from error
            raise


def _begin(begin: Callable[[], object] | None) -> None:
    for name in ("SIGINT", "SIGHUP", "SIGUSR1", "SIGXCPU"):  # these reach every process; the first one acts on them
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    if begin is not None:
        begin()


def _leave_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
