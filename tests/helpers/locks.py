"""Locks of other processes, and a clock that only waiting moves."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from humanline.system import lock


def refuse(number: int):
    def call(*_, **__):
        raise OSError(number, os.strerror(number))

    return call


def held(folder: Path, number: int = 1, *, seconds_ago: float = 0.0, **changes) -> Path:
    """The lock of a process of another machine, or of what `changes` say; there whole at once, as a real one is."""
    row = {"host": "elsewhere", "process": 7, "boot": "b", "namespace": "n", "started": "1"}
    path, partial = folder / f"run.lock.{number}", folder / ".run.lock.theirs.partial"
    partial.write_text(json.dumps(row | {"nonce": "x" * 32, "renewals": 0, "free": False} | changes))
    then = time.time() - seconds_ago
    os.utime(partial, (then, then))
    partial.rename(path)
    return path


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def waiting_clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A clock that only waiting moves, and a list of what happens at which second of it."""
    clock = SimpleNamespace(now=0.0, events={})

    def sleep(seconds):
        clock.now += seconds
        for at in [at for at in clock.events if at <= clock.now]:
            clock.events.pop(at)()

    fake = SimpleNamespace(
        monotonic=lambda: clock.now, sleep=sleep, time=time.time, clock_gettime=lambda _: clock.now, CLOCK_MONOTONIC=1
    )
    monkeypatch.setattr(lock, "time", fake)
    return clock
