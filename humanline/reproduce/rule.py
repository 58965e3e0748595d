"""What the whole grid has said of score and distance, as the demo uses it: a small file, made from a study's runs."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from humanline.reproduce.cells import OBJECTIVES, Cell, Objective, core
from humanline.reproduce.frontier import arrange, best_clips, frontier
from humanline.reproduce.outcome import Outcome
from humanline.reproduce.report import cell_rows, start_score
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
        (KL(policy || start), score) along the curve of the offline cells, mean over start models; of GRPO the two clips
        with the best cells.
    distances : dict of str to float
        Mean KL(policy || start) by the name of a cell, nats an answer.
    scores : dict of str to float
        Mean score by the name of a cell.
    """

    testbed: str
    start: float
    curves: dict[Objective, list[tuple[float, float]]]
    distances: dict[str, float]
    scores: dict[str, float]

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
    curves = {name: [(_short(x), _short(y)) for x, y in _curve(outcomes, name, rules)] for name in OBJECTIVES}
    grid = {cell.name for cell in core()}
    rows = [row for row in cell_rows(outcomes) if row["cell"] in grid and row["kl_to_start"] > 0]
    distances, scores = ({row["cell"]: _short(row[name]) for row in rows} for name in ("kl_to_start", "score"))
    return Rule(outcomes[0].testbed, _short(start_score(outcomes)), curves, distances, scores)


def _curve(outcomes: Sequence[Outcome], objective: Objective, rules: Rules) -> list[tuple[float, float]]:
    """Return points along the curve of the offline cells from all draws that there are; of GRPO's the best clips."""
    draws = tuple(sorted({outcome.draw for outcome in outcomes} & set(rules.draws)))
    table = arrange(outcomes, core(), replace(rules, draws=draws))
    cells = [cell for cell in table.cells if cell.objective == objective and cell.variant == "offline"]
    if objective == "grpo":
        clips = best_clips(table, cells, rules.offline_clips, draws[0])
        cells = [cell for cell in cells if cell.clip_eps in clips]
    curves = frontier(table.of(cells=cells), objective, rules).curves
    return [] if curves is None else curves.mean_points(51)


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
