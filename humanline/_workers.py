"""Worker processes of a command: none outlives it, and one that dies ends it with words."""

from __future__ import annotations

import contextlib
import copy
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

Item = TypeVar("Item")
Made = TypeVar("Made")


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
            copy.copy(error)  # made anew of its arguments, as in the process that asked for the work
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
                    f"take less; or it could not begin, and its own error is above; {then}"
                ) from error
            raise


def as_made(
    items: Iterable[Item],
    submit: Callable[[Item], Future[Made]],
    *,
    at_once: int,
    before: Callable[[], object] | None = None,
) -> Generator[tuple[Item, Made], None, None]:
    """Yield each item with what is made of it, as it is there; if one fails, no other one is begun.

    Parameters
    ----------
    items : iterable
        In the order in which they are begun.
    submit : callable
        Begins to make something of an item, in a pool.
    at_once : int >= 1
        How many are made at a time.
    before : callable, optional
        Called before each is begun.

    Raises
    ------
    BaseException
        What is raised first where something is made, or by `before`; those under way are yielded before.
    """
    left, waiting = deque(items), dict[Future[Made], Item]()
    failure: BaseException | None = None
    while waiting or (left and failure is None):
        while left and failure is None and len(waiting) < at_once:
            try:
                if before is not None:
                    before()
            except BaseException as error:
                failure = error
            else:
                item = left.popleft()
                waiting[submit(item)] = item
        for future in wait(waiting, return_when=FIRST_COMPLETED).done:
            item, error_there = waiting.pop(future), future.exception()
            if error_there is None:
                yield item, future.result()
            elif failure is None:
                failure = error_there
    if failure is not None:
        raise failure


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
