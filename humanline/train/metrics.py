"""The metrics file of a run: JSON lines, one a step and one an evaluation."""

from __future__ import annotations

import json
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
            self.handle.close()

    def write(self, row: dict[str, Any]) -> None:
        """Write one row."""
        if self.handle is not None:
            self.handle.write(json.dumps(row, allow_nan=False) + "\n")
            self.handle.flush()


def read_metrics(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a metrics file."""
    with open(path, encoding="utf-8") as lines:
        yield from map(json.loads, lines)
