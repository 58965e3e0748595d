"""Benchmarks that stand in for real ones, each with a fate of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.report import Result, Row

GOOD = Row("-", "a / b", ("1 s", "2 s"), 0.5)


def well(**_: object) -> Result:
    return Result({"a": 1}, [GOOD], {"a": [1.0]})


def raises(**_: object) -> Iterator[Result]:
    yield Result({}, [GOOD])
    raise ValueError("the first line\nand more of it")


def hangs(note: str = "", **_: object) -> Iterator[Result]:
    yield Result({}, [GOOD])
    helper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    if note:
        Path(note).write_text(f"{os.getpid()} {helper.pid}")
    while True:
        time.sleep(60)


def out_of_memory(**_: object) -> Result:
    raise MemoryError


class OutOfMemoryError(RuntimeError):
    """What torch raises has this name."""


def out_of_gpu_memory(**_: object) -> Result:
    try:
        raise OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
    except OutOfMemoryError as error:
        raise ValueError("the step needs more memory than there is") from error


def killed(**_: object) -> Result:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def gone(**_: object) -> Result:
    print("the last thing that it said", flush=True)
    os._exit(7)


def silent(**_: object) -> Result:
    os._exit(0)
