"""How many processor cores there are for this process."""

from __future__ import annotations

import os


def usable_cores() -> int:
    """Return how many cores this process may use; of a system that does not tell (macOS), how many there are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
