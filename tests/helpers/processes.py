"""Processes that tests start and talk to, and those of which they wait for the end."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.conftest import ROOT


class Answering:
    """A module of ours that runs as a process and answers each line, a job in JSON, with a line; one thread each.

    `before` are words of a command that runs it.
    """

    def __init__(self, module: str, *words: str, before: Iterable[str] = ()) -> None:
        self.process = subprocess.Popen(
            [*before, sys.executable, "-m", module, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=ROOT,
            env=os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"},
        )

    def ask(self, job: dict[str, Any]) -> dict[str, Any]:
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def close(self, *, at_once: bool = False) -> None:
        """End the process, at once where it has nothing left to do but to take itself apart."""
        self.process.stdin.close()
        if at_once:
            self.process.kill()
        self.process.wait()
        self.process.stdout.close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def gone(pids: Iterable[int]) -> bool:
    """Wait for processes to end, far longer than it can take."""
    pids, until = list(pids), time.monotonic() + 60
    while any(map(alive, pids)) and time.monotonic() < until:
        time.sleep(0.02)
    return not any(map(alive, pids))
