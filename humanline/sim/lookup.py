"""The results of a study, looked up by setting, variant and measure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from humanline.sim.study import Result

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Setting:
    """Name a problem, an objective and a learning rate (None: the best for each variant)."""

    task: str
    objective: str
    rate: float | None

    def __str__(self) -> str:
        return f"{self.task}, {self.objective}, " + ("tuned" if self.rate is None else f"lr {self.rate:g}")


class Study:
    """Look up the results of a study.

    Parameters
    ----------
    results : mapping from (task, objective, rate, variant) to a Result
    """

    def __init__(self, results: Mapping[tuple[str, str, float, str], Result]) -> None:
        self.results = results

    def get(self, setting: Setting, variant: str, measure: str) -> Array:
        """Return a measure of each seed; scores as a share of what there is to gain.

        At the tuned rate, each half of the seeds (even and odd places) has the rate at which the variant's mean final
        score over the other half is highest.
        """
        if setting.rate is not None:
            return _gained(self.results[setting.task, setting.objective, setting.rate, variant], measure)
        rates = [r for t, o, r, v in self.results if (t, o, v) == (setting.task, setting.objective, variant)]
        tables = [self.results[setting.task, setting.objective, rate, variant] for rate in rates]
        scores = np.stack([_gained(table, "score") for table in tables])
        values = np.stack([_gained(table, measure) for table in tables])
        tuned = np.empty(values.shape[1])
        for half in (0, 1):
            best = scores[:, 1 - half :: 2].mean(1).argmax()
            tuned[half::2] = values[best, half::2]
        return tuned


def _gained(result: Result, measure: str) -> Array:
    room = result["best"] - result["start"]
    if measure in ("score", "early"):
        return np.where(np.isfinite(result[measure]), (result[measure] - result["start"]) / room, -1.0)
    if measure == "drop":
        return np.where(np.isfinite(result["drop"]), result["drop"] / room, 1.0)
    return result[measure]
