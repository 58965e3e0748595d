"""What the whole grid has said of score and distance, as the demo uses it: a small file, made from a study's runs."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from humanline.reproduce.cells import Cell, Objective, core
from humanline.reproduce.outcome import Outcome
from humanline.reproduce.report import cell_rows, curves_of, start_score
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
    curves = {name: [(_short(x), _short(y)) for x, y in points] for name, points in curves_of(outcomes, rules).items()}
    grid = {cell.name for cell in core()}
    distances = {
        row["cell"]: _short(row["kl_to_start"])
        for row in cell_rows(outcomes)
        if row["cell"] in grid and row["kl_to_start"] > 0
    }
    return Rule(outcomes[0].testbed, _short(start_score(outcomes)), curves, distances)


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
