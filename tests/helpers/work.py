"""How much work something is, counted and not timed: on a busy machine it is no more."""

from __future__ import annotations

import cProfile
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def at_most(calls: int, *of: object) -> Iterator[None]:
    """Fail where functions, of Python or C, are called more often than that within, by this thread."""
    counter = cProfile.Profile()
    try:
        with counter:
            yield
    finally:
        made = sum(entry.callcount for entry in counter.getstats())
        assert made <= calls, (made, *of)
