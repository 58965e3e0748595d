"""What the whole grid has said of score and distance, as the demo uses it: a small file, made from a study's runs."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from humanline.reproduce.cells import OBJECTIVES, Cell, Objective, core
from humanline.reproduce.frontier import arrange, is_finite
from humanline.reproduce.hypotheses import compare
from humanline.reproduce.outcome import Outcome
from humanline.reproduce.rules import Rules
from humanline.system.files import write_text

#: The rule of the letters task, which studies/frontier/letters/runs.csv gives.
LETTERS = Path(__file__).parent / "rule.json"


@dataclass(frozen=True, slots=True)
class Rule:
    """Curves of score in distance, and how far each cell of the grid went.

    Parameters
    ----------
    testbed : str
    start : float
        Mean score of the start models.
    curves : dict of objective to list of (float, float)
        (KL(policy || start), score) along the curve of the offline cells, mean over start models.
    distances : dict of str to float
        Mean KL(policy || start) by the name of a cell, nats an answer.
    """

    testbed: str
    start: float
    curves: dict[Objective, list[tuple[float, float]]]
    distances: dict[str, float]

    def peak(self, objective: Objective) -> tuple[float, float]:
        """Return distance and score where the curve is highest."""
        return max(self.curves[objective], key=lambda point: point[1])

    def expected(self, cell: Cell) -> tuple[float, float] | None:
        """Return how far a cell went in the grid, and the score that the offline curve has there.

        Beyond the curve's range it is that at its end. None if the grid does not know the cell.
        """
        if cell.name not in self.distances or not self.curves.get(cell.objective):
            return None
        distance = self.distances[cell.name]
        across, up = np.array(self.curves[cell.objective]).T
        return distance, float(np.interp(math.log(distance), np.log(across), up))


def rule_of(outcomes: Sequence[Outcome], rules: Rules) -> Rule:
    """Return the rule that the runs of one testbed give.

    Raises
    ------
    ValueError
        As `arrange` does.
    """
    table = arrange(outcomes, core())
    curves: dict[Objective, list[tuple[float, float]]] = {}
    for objective in OBJECTIVES:
        found = compare(table, objective, "humanline", rules).front.curves
        curves[objective] = [] if found is None else [(_short(x), _short(y)) for x, y in found.mean_points(51)]
    distances = {}
    for cell in table.cells:
        moved = [run.kl_to_start for (of, _, _), run in table.runs.items() if of == cell and is_finite(run)]
        if moved and min(moved) > 0:
            distances[cell.name] = _short(float(np.mean(moved)))
    starts = {start: run.start_score for (_, start, _), run in table.runs.items()}
    testbed = next(iter(table.runs.values())).testbed
    return Rule(testbed, _short(float(np.mean(list(starts.values())))), curves, distances)


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def write_rule(path: Path, rule: Rule) -> None:
    """Write a rule as JSON."""
    write_text(path, json.dumps(asdict(rule), indent=1) + "\n")


def read_rule(path: Path = LETTERS) -> Rule:
    """Return the rule of a file that `write_rule` wrote."""
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    content["curves"] = {name: [(x, y) for x, y in points] for name, points in content["curves"].items()}
    return Rule(**content)
