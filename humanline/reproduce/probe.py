"""How far a run will end from its start, told from how far it has come early on, and how wrong that is."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.stats import spearmanr

from humanline.reproduce.shown import markdown
from humanline.reproduce.tables import rows_csv
from humanline.system.files import write_text

#: Shares of a run after which its end is told; at half of each it must have been looked at too.
AT = (0.2, 0.4)
#: How far a look may lie from such a share.
_NEAR = 0.02


@dataclass(frozen=True, slots=True)
class Journey:
    """How far one run had travelled at its looks.

    Parameters
    ----------
    cell : str
        Name of its cell.
    kind : str
        Name of its variant, with k where there is one.
    shares : tuple of float in (0, 1]
        Share of its steps at each look, rising; the last is 1.
    distances : tuple of float > 0
        KL(policy || start) at each, nats an answer.
    """

    cell: str
    kind: str
    shares: tuple[float, ...]
    distances: tuple[float, ...]

    def at(self, share: float) -> float:
        """Return the log distance at the look nearest to a share of the run.

        Raises
        ------
        ValueError
            If none is within .02 of it.
        """
        place = min(range(len(self.shares)), key=lambda one: abs(self.shares[one] - share))
        if abs(self.shares[place] - share) > _NEAR:
            raise ValueError(f"{self.cell}: there is no look near {share:g} of the run, but at {self.shares}")
        return math.log(self.distances[place])

    @property
    def end(self) -> float:
        """Return the log distance at the end."""
        return math.log(self.distances[-1])


def own_power(journey: Journey, share: float, others: Sequence[Journey] = ()) -> float:
    """Return the log distance at the end if it grows as a power of the steps, that of its looks at share / 2 and share.

    log KL(1) = log KL(a) + p log(1 / a), p = (log KL(a) - log KL(a / 2)) / log 2; `others` are not asked.
    """
    power = (journey.at(share) - journey.at(share / 2)) / math.log(2)
    return journey.at(share) - power * math.log(share)


def usual_growth(journey: Journey, share: float, others: Sequence[Journey]) -> float:
    """Return the log distance at the end if it grows by what others did on average, log KL(1) - log KL(a)."""
    return journey.at(share) + float(np.mean([one.end - one.at(share) for one in others]))


def growth_of_kind(journey: Journey, share: float, others: Sequence[Journey]) -> float:
    """Return `usual_growth` of other cells of the same variant and k."""
    return usual_growth(journey, share, [one for one in others if one.kind == journey.kind])


FORECASTS = {"its own power": own_power, "growth of other cells": usual_growth, "of its kind": growth_of_kind}


def probe_rows(journeys: Sequence[Journey]) -> list[dict[str, str | float]]:
    """Return how wrong each forecast is, by the share of the run after which it is made and by kind of run.

    Other cells are all but the run's own. Runs that are not finite have no journey and are to be left out before.

    Returns
    -------
    list of dict
        ``share``, ``forecast``, ``kind`` ("all" or a kind), ``runs``, ``factor`` (the median of
        exp |log(told / true)|), ``factor90`` (its 90th percentile), ``bias`` (exp of the mean of log(told / true)) and
        ``order`` (Spearman's rank correlation of what is told with what came, over all its runs).
    """
    rows: list[dict[str, str | float]] = []
    kinds = list(dict.fromkeys(one.kind for one in journeys))
    for share in AT:
        for name, forecast in FORECASTS.items():
            told = [forecast(one, share, [two for two in journeys if two.cell != one.cell]) for one in journeys]
            for kind in ("all", *kinds):
                pairs = [(a, one.end) for a, one in zip(told, journeys, strict=True) if kind in ("all", one.kind)]
                wrong = np.array([a - b for a, b in pairs])
                rows.append(
                    {
                        "share": share,
                        "forecast": name,
                        "kind": kind,
                        "runs": len(pairs),
                        "factor": math.exp(float(np.median(np.abs(wrong)))),
                        "factor90": math.exp(float(np.quantile(np.abs(wrong), 0.9))),
                        "bias": math.exp(float(wrong.mean())),
                        "order": float(spearmanr([a for a, _ in pairs], [b for _, b in pairs]).statistic),
                    }
                )
    return rows


def probe_table(journeys: Sequence[Journey]) -> str:
    """Return the rows as a table in Markdown."""
    numbers = {"factor": "factor, median", "factor90": "90 %", "bias": "bias", "order": "order"}
    rows = []
    for row in probe_rows(journeys):
        said = {"told after": f"{row['share']:.0%} of the steps", "by": row["forecast"]}
        said |= {"kind of run": row["kind"], "runs": row["runs"]}
        rows.append(said | {words: f"{row[name]:.2f}" for name, words in numbers.items()})
    return markdown(rows)


_COLUMNS = ("cell", "kind", "share", "kl_to_start")


def write_journeys(path: Path, journeys: Sequence[Journey]) -> None:
    """Write a row for each look, as CSV."""
    rows = [
        dict(zip(_COLUMNS, (one.cell, one.kind, *look), strict=True))
        for one in journeys
        for look in zip(one.shares, one.distances, strict=True)
    ]
    write_text(path, rows_csv(rows))


def read_journeys(path: Path) -> list[Journey]:
    """Return the journeys of a file that `write_journeys` wrote.

    Raises
    ------
    OSError
        If it cannot be read.
    ValueError
        If it is no such file.
    """
    with open(path, encoding="utf-8", newline="") as lines:
        reader = csv.DictReader(lines)
        if tuple(reader.fieldnames or ()) != _COLUMNS:
            raise ValueError(f"{path}: the first line must name {', '.join(_COLUMNS)}")
        looks: dict[tuple[str, str], list[Mapping[str, str]]] = {}
        for row in reader:
            looks.setdefault((row["cell"], row["kind"]), []).append(row)
    try:
        return [
            Journey(cell, kind, *zip(*((float(one["share"]), float(one["kl_to_start"])) for one in rows), strict=True))
            for (cell, kind), rows in looks.items()
        ]
    except (TypeError, ValueError):
        raise ValueError(f"{path}: a row has no number for share or kl_to_start: is it cut off?") from None
