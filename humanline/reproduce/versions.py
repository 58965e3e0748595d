"""What a result depends on besides its settings: how runs are made and measured here, the task, and all other code."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable
from pathlib import Path

_PACKAGE = Path(__file__).parent.parent
#: Raised when what a run is, or how it is measured, changes: results kept under an older number are not used.
PROTOCOL = 1
#: Modules of this room that decide it.
_DECIDE = ("answers", "recipe", "run", "start")


@functools.cache
def task_digest(module: str) -> str:
    """Return a digest of a testbed's module."""
    testbeds = _PACKAGE / "reproduce" / "testbeds"
    return _digest([testbeds / "base.py", testbeds / f"{module}.py"])


@functools.cache
def code_digest() -> str:
    """Return a digest of the code that trains and measures and of the libraries' versions: kept with each result.

    Results of other code are used and counted: most changes there change no number.
    """
    import torch
    import transformers

    parts = ("train", "objectives", "theory")
    files = [path for part in parts for path in sorted((_PACKAGE / part).rglob("*.py"))]
    files += [_PACKAGE / "reproduce" / f"{name}.py" for name in _DECIDE]
    return _digest([*files, _PACKAGE / "schedule.py"], f"{torch.__version__} {transformers.__version__}")


def _digest(files: Iterable[Path], said: str = "") -> str:
    digest = hashlib.sha256(said.encode())
    for path in files:
        digest.update(path.relative_to(_PACKAGE).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()[:16]
