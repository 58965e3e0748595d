"""How many cores a process may use."""

from __future__ import annotations

import os

from humanline.system.cores import usable_cores


def test_cores_are_those_that_the_process_may_use(monkeypatch):
    """Not all that the machine has, where the system tells; all of them where it does not, as on macOS."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {3, 5, 7}, raising=False)
    assert usable_cores() == 3
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 11)
    assert usable_cores() == 11
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert usable_cores() == 1
