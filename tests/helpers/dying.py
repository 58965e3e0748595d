"""Work that its process does not survive, or that fails; of its own, so that workers import nothing else."""

from __future__ import annotations

import os
import signal
from pathlib import Path


def die(*_: object) -> None:
    """End the process as the kernel does where memory runs out."""
    os.kill(os.getpid(), signal.SIGKILL)


def must_not_be_called(*_: object, **__: object) -> None:
    """Fail the test that has put this in the place of work that is not to be done."""
    raise AssertionError("what was not to be done was begun")


def write_nowhere(path: str) -> None:
    """Fail as a write does whose folder is not there."""
    from humanline.system.files import write_text

    write_text(Path(path), "text")
