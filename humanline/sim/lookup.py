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

        At the tuned rate, each half of the seeds (even and odd places) has the rate of `chosen`.
        """
        if setting.rate is not None:
            return _gained(self.results[setting.task, setting.objective, setting.rate, variant], measure)
        rates = self.chosen(setting, variant)
        values = [_gained(self.results[setting.task, setting.objective, rate, variant], measure) for rate in rates]
        tuned = np.empty(values[0].shape)
        for half in (0, 1):
            tuned[half::2] = values[half][half::2]
        return tuned

    def rates(self, setting: Setting, variant: str) -> list[float]:
        """Return the learning rates that a variant was run with in a problem with an objective, least first."""
        return sorted(r for t, o, r, v in self.results if (t, o, v) == (setting.task, setting.objective, variant))

    def chosen(self, setting: Setting, variant: str) -> tuple[float, float]:
        """Return the learning rate for each half of the seeds: that of the highest mean final score of the other half.

        Seeds at even places are the first half, those at odd places the second. Of equal scores the least rate counts.
        """
        rates = self.rates(setting, variant)
        scores = np.stack([_gained(self.results[setting.task, setting.objective, r, variant], "score") for r in rates])
        first, second = (rates[int(scores[:, 1 - half :: 2].mean(1).argmax())] for half in (0, 1))
        return first, second

    def edges(self, setting: Setting, variant: str) -> list[float]:
        """Return the least and the largest rate of a variant, each if one half of the seeds has it; else nothing."""
        rates, chosen = self.rates(setting, variant), self.chosen(setting, variant)
        return [rate for rate in dict.fromkeys((rates[0], rates[-1])) if rate in chosen]


def _gained(result: Result, measure: str) -> Array:
    room = result["best"] - result["start"]
    if measure in ("score", "early"):
        return np.where(np.isfinite(result[measure]), (result[measure] - result["start"]) / room, -1.0)
    if measure == "drop":
        return np.where(np.isfinite(result["drop"]), result["drop"] / room, 1.0)
    return result[measure]
