"""What this process is doing, noted in passing for whoever watches over it: a phase, the updates so far, a count.

A note costs a few attribute writes. It is of the process, not of an object, since a process has one run at a time and
notes come from wherever work is done. `humanline.train.run.neighbours` reads them in a second thread.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

_WHILE = "humanline_while"  # attribute of an error: what was being done
EXIT_NEIGHBOUR = 69  # EX_UNAVAILABLE of sysexits.h: of a process that ends because of another one
EXIT_FOLLOWED = 70  # to the launcher of --processes alone: another process has failed, and says why by itself


class NeighbourError(RuntimeError):
    """Another process of the run is gone, has failed or stands still, so that this one cannot go on."""


class Activity:
    """What one process is doing.

    Attributes
    ----------
    phases : list of str
        From the outermost in, such as evaluating, sampling.
    updates : int or None
        Updates done; None until the run has begun or gone on.
    count : int
        Rises with everything that gets done: where it does not, the process stands still.
    waiting : bool
        Whether it waits for the other processes.
    held : str or None
        What it waits for, other processes aside, such as space on the disk.
    alone : bool
        Whether the others wait for it, so that what it does is worth finishing though one of them may be gone.
    """

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Forget an earlier run."""
        self.phases: list[str] = ["loading"]
        self.updates: int | None = None
        self.count, self.waiting, self.alone = 0, False, False
        self.held: str | None = None

    def touch(self) -> None:
        """Note that something got done."""
        self.count += 1

    def trained(self, updates: int) -> None:
        """Note the updates that are done."""
        self.phases[0], self.updates = "training", updates
        self.count += 1

    def held_up(self, by: str | None) -> None:
        """Note what is waited for, other processes aside, each time it is looked for; None when that is over."""
        self.held = by
        self.count += 1

    @contextlib.contextmanager
    def doing(self, phase: str) -> Iterator[None]:
        """Note a phase, for the length of the context; serves as a decorator too."""
        self.phases.append(phase)
        self.count += 1
        try:
            yield
        except BaseException as error:
            if not hasattr(error, _WHILE):
                setattr(error, _WHILE, str(self))
            raise
        finally:
            self.phases.remove(phase)
            self.count += 1

    @contextlib.contextmanager
    def waits(self) -> Iterator[None]:
        """Note that the others are waited for, for the length of the context."""
        self.waiting = True
        try:
            yield
        finally:
            self.waiting = False
            self.count += 1

    @contextlib.contextmanager
    def works_alone(self) -> Iterator[None]:
        """Note that the others wait for this process, for the length of the context."""
        self.alone = True
        self.count += 1
        try:
            yield
        finally:
            self.alone = False
            self.count += 1

    def at(self, error: BaseException) -> str:
        """Return, in words, what was being done when an error was raised."""
        return str(getattr(error, _WHILE, self))

    def __str__(self) -> str:
        """Return the activity in words, as in: evaluating: sampling, after 12 updates."""
        phases = self.phases[1:] or self.phases
        after = "" if self.updates is None else f", after {self.updates} update{'' if self.updates == 1 else 's'}"
        return ": ".join([*phases, *([self.held] if self.held else [])]) + after


HERE = Activity()  # of this process
