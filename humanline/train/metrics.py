"""The metrics file of a run: JSON lines, one a step and one an evaluation."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class MetricsLog:
    """Append one JSON line after another; a reader always finds whole lines."""

    def __init__(self, path: Path | None) -> None:
        self.handle = None if path is None else open(path, "a", encoding="utf-8")  # noqa: SIM115

    def __enter__(self) -> MetricsLog:
        return self

    def __exit__(self, *error: object) -> None:
        if self.handle is not None:
            with contextlib.suppress(OSError):  # a full disk has been named by then
                self.handle.flush()
                os.fsync(self.handle.fileno())
            self.handle.close()

    def write(self, row: dict[str, Any]) -> None:
        """Write one row; raise OSError, saying how to go on, if the disk is full."""
        if self.handle is not None:
            try:
                self.handle.write(json.dumps(row, allow_nan=False) + "\n")
                self.handle.flush()
            except OSError as error:
                raise OSError(
                    f"{self.handle.name} cannot be written: {error.strerror}; when there is space again, add --resume "
                    "to the same command to go on from the newest checkpoint"
                ) from error


def read_metrics(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a metrics file."""
    with open(path, encoding="utf-8") as lines:
        yield from map(json.loads, lines)
