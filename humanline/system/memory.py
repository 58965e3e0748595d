"""How much memory the processes of this host may have, and can still get."""

from __future__ import annotations

import contextlib
from pathlib import Path

_SPARE = 0.1  # of all that there is: what stays free beside what is asked for
_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
_USED = (  # of the group: what it has taken, and where it says how much of that are files that can be let go
    ("/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory.stat", "inactive_file"),
    ("/sys/fs/cgroup/memory/memory.usage_in_bytes", "/sys/fs/cgroup/memory/memory.stat", "total_inactive_file"),
)


def in_proc(file: str, name: str) -> float | None:
    """Return the bytes that a file of Linux' /proc gives under a name; None where there is no such thing."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc", file).read_text().splitlines():
            if line.startswith(f"{name}:"):
                return 1024.0 * int(line.split()[1])
    return None


def host_memory() -> float:
    """Return the bytes that processes here may have in all, by the machine and by their group; inf if unknown."""
    limits = [_number(path) for path in _LIMITS]
    known = [limit for limit in (*limits, in_proc("meminfo", "MemTotal")) if limit is not None]
    return min(known, default=float("inf"))


def available() -> float:
    """Return the bytes that processes here can still get without anything being swapped; inf if unknown."""
    left = [in_proc("meminfo", "MemAvailable")]
    for limit_at, (used_at, files_at, name) in zip(_LIMITS, _USED, strict=True):
        limit, used = _number(limit_at), _number(used_at)
        if limit is not None and used is not None:
            left.append(limit - used + (_listed(files_at, name) or 0.0))
    return min((count for count in left if count is not None), default=float("inf"))


def room_for(count: int, processes: int) -> bool:
    """Return whether each of so many processes of this host can get so many bytes, and a tenth of all stays free.

    Where nobody can tell how much there is, there is no room.
    """
    left = available()
    return left < float("inf") and processes * count + _SPARE * host_memory() <= left


def _number(path: str) -> float | None:
    with contextlib.suppress(OSError, ValueError):  # no such limit, or "max"
        return float(int(Path(path).read_text()))
    return None


def _listed(path: str, name: str) -> float | None:
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path(path).read_text().splitlines():
            if line.split()[0] == name:
                return float(line.split()[1])
    return None
