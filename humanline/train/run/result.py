"""The result of a finished run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from humanline.train.run.folder import RunFolder
from humanline.train.run.metrics import read_metrics


@dataclass(frozen=True, slots=True)
class RunResult:
    """Where a finished run left its model, and its held-out metrics before and after."""

    model: Path
    metrics: Path
    initial: dict[str, float]
    final: dict[str, float]

    @classmethod
    def read(cls, folder: RunFolder) -> Self:
        """Return the result of a run that is finished already."""
        rows = list(read_metrics(folder.metrics)) if folder.metrics.is_file() else []
        held_out = [row["held_out"] for row in rows if "held_out" in row] or [{}]
        return cls(folder.final, folder.metrics, held_out[0], held_out[-1])
