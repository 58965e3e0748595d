"""What belongs to the steps of a run, made by a second thread while the first one trains.

Each of it is a function of the step's number alone, so that it does not matter who makes it, when, or how often.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

T = TypeVar("T")


class MadeAhead(Generic[T]):
    """Make something for each step before it is asked for, and keep what will be asked for again, within limits.

    A step may be asked for several times, in any order: steps are scored in windows, and trained on one by one. Made in
    advance is the step after the one that was asked for last, or else the first one that is not there; kept are the
    next steps to be trained on.

    Parameters
    ----------
    make : callable
        Gives what belongs to a step; called in the second thread.
    size : callable
        Gives how much of the limit it takes.
    limit : int
        What is kept, beside the few that are always.
    end : int
        There are no steps from this one on.
    begin : callable, optional
        Called by the second thread before anything else.
    """

    def __init__(
        self,
        make: Callable[[int], T],
        size: Callable[[T], int],
        limit: int,
        end: int,
        begin: Callable[[], None] | None = None,
    ) -> None:
        self.make, self.size, self.limit, self.end, self.begin = make, size, limit, end, begin
        self._thread: ThreadPoolExecutor | None = None
        self._made: dict[int, Future[tuple[T, int]]] = {}
        self._sizes: dict[int, int] = {}  # of those that were found to be there
        self._first = 0  # steps before it are over
        self._asked = self._furthest = -1

    def over(self, before: int) -> None:
        """Let go of the steps before one, which is about to be trained on, and see to it that it is made."""
        self._first = before
        for step in [step for step in self._made if step < before]:
            self._drop(step)
        if before < self.end:
            self._start(before)

    def get(self, step: int) -> T:
        """Return what belongs to a step; raise what making it has raised."""
        future = self._start(step)
        try:
            made, _ = future.result()
        except BaseException:
            if future.done():
                self._drop(step)  # whoever asks again has it made again
            raise
        self._asked, self._furthest = step, max(self._furthest, step)
        self._let_go()
        self._start_next()
        return made

    def close(self) -> None:
        """End the second thread, once it has made what it is making."""
        if self._thread is not None:
            self._thread.shutdown(wait=True, cancel_futures=True)
        self._thread, self._made, self._sizes = None, {}, {}

    def _start(self, step: int) -> Future[tuple[T, int]]:
        if step not in self._made:
            if self._thread is None:
                self._thread = ThreadPoolExecutor(1, "humanline-batches", initializer=self.begin)
            self._made[step] = self._thread.submit(self._make, step)
        return self._made[step]

    def _make(self, step: int) -> tuple[T, int]:
        made = self.make(step)
        return made, self.size(made)

    def _start_next(self) -> None:
        wanted = (self._asked + 1, *range(self._first, self._furthest + 2))
        missing = next((step for step in wanted if step < self.end and step not in self._made), None)
        if missing is not None and (missing in self._always or self._held() < self.limit):
            self._start(missing)

    def _let_go(self) -> None:
        """Keep within the limit: what is trained on last goes first."""
        held = self._held()
        for step in sorted(self._made.keys() - self._always, reverse=True):
            if held > self.limit:
                held -= self._drop(step)

    @property
    def _always(self) -> set[int]:
        """Return the steps that are kept whatever their size."""
        return {self._first, self._asked, self._asked + 1, self._furthest + 1}

    def _held(self) -> int:
        """Return how much of the limit is taken by what is there; each future is asked once, for that is a lock."""
        for step, future in self._made.items():
            if step not in self._sizes and future.done() and not future.cancelled() and future.exception() is None:
                self._sizes[step] = future.result()[1]
        return sum(self._sizes.values())

    def _drop(self, step: int) -> int:
        """Forget a step, and return how much of the limit it was found to take."""
        self._made.pop(step, None)
        return self._sizes.pop(step, 0)
