"""The result of a finished run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from humanline._checks import one_of
from humanline.train.run.folder import RunFolder
from humanline.train.run.metrics import KINDS, read_metrics


@dataclass(frozen=True, slots=True)
class RunResult:
    """Where a finished run left its model and its metrics, and its held-out metrics before and after.

    Parameters
    ----------
    model : Path
        Folder in Hugging Face format.
    metrics_file : Path
        JSON lines.
    initial, final : dict of str to float
        Empty without held-out data.
    """

    model: Path
    metrics_file: Path
    initial: dict[str, float]
    final: dict[str, float]

    def metrics(self, kind: str | None = None) -> list[dict[str, Any]]:
        """Return the rows of the metrics file, each with its `kind`.

        Parameters
        ----------
        kind : "train", "look", "sample" or "break", optional
            Return only those of optimizer steps, of looks at held-out data, of rounds, or of a break; default: all.

        Raises
        ------
        ValueError
            If there is no such kind.

        Examples
        --------
        `pandas.DataFrame(result.metrics("train")).plot(x="step", y="loss")`
        """
        if kind is not None:
            one_of("kind", kind, tuple(KINDS.values()))
        return [row for row in read_metrics(self.metrics_file) if kind in (None, row["kind"])]

    @classmethod
    def read(cls, folder: RunFolder) -> Self:
        """Return the result of a run that is finished already."""
        rows = list(read_metrics(folder.metrics)) if folder.metrics.is_file() else []
        held_out = [row["held_out"] for row in rows if "held_out" in row] or [{}]
        return cls(folder.final, folder.metrics, held_out[0], held_out[-1])
