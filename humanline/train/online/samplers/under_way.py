"""Requests under way, on an event loop in a thread of its own: a caller that stops waiting cancels them at once."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable, Coroutine
from typing import Any

from humanline.system.stop import SamplingStopped
from humanline.train.online.types import SamplerError

LOOK = 0.2  # seconds between two looks at `stopping`


class Running:
    """A coroutine in a thread of its own; what it raises goes to `failed`."""

    def __init__(self, work: Coroutine[Any, Any, None], failed: Callable[[BaseException], None]) -> None:
        self._loop = asyncio.new_event_loop()
        self._task = self._loop.create_task(work)
        self._failed = failed
        self._thread = threading.Thread(target=self._run, name="humanline-sampling", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._task)
        except BaseExceptionGroup as group:
            self._failed(_first(group))
        except asyncio.CancelledError:
            self._failed(SamplerError("sampling was closed"))
        except BaseException as error:
            self._failed(error)
        finally:
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()

    def stop(self) -> None:
        """Cancel it, and wait until it is gone."""
        with contextlib.suppress(RuntimeError):  # a closed loop: it is done
            self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join()

    @property
    def alive(self) -> bool:
        """Return whether it still runs."""
        return self._thread.is_alive()

    def wait(self, seconds: float) -> None:
        """Wait until it ends, but no longer than that."""
        self._thread.join(seconds)


def finish(work: Coroutine[Any, Any, None], stopping: Callable[[], bool]) -> None:
    """Run a coroutine to its end, whether or not the caller's thread has a loop (notebooks do).

    Raises
    ------
    Exception
        What the coroutine raises.
    SamplingStopped
        If `stopping` said so; the coroutine is cancelled.
    """
    ended: queue.SimpleQueue[BaseException] = queue.SimpleQueue()
    running = Running(work, ended.put)
    try:
        while running.alive:
            if stopping():
                raise SamplingStopped
            running.wait(LOOK)
    finally:
        running.stop()
    if not ended.empty():
        raise ended.get()


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
