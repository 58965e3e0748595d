"""How far the reading of a set is: reported by its reader, for whoever shows it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import TypeAlias

# Entered with the short name of a set; gives what is called with the rows read so far and the share of the set, from 0
# to 1, that they make up. It is called now and then, and with a share of 1 at the end.
Counting: TypeAlias = Callable[[str], AbstractContextManager[Callable[[int, float], None]]]


@contextlib.contextmanager
def uncounted(name: str) -> Iterator[Callable[[int, float], None]]:
    """Show nothing."""
    yield lambda rows, share: None
