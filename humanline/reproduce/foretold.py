"""Whether what `humanline inspect-data` says of data before a run foretells how the run ends (Figure 6, second half).

Declared before its author had seen a run on a quarter: data are sets that runs of one testbed share, quarters of the
near pairs or pairs of three writers; what is foretold is the score of runs with the same settings; by the level of a
set, nats a token, under the start model (its verdict's first yardstick), and by how far that lies above the level of
the model's own answers (the second). From each start model a line is fitted through the sets, and start models are the
sample. The paper's proxy holds where the line rises.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from pathlib import Path

import numpy as np

from humanline.reproduce.cells import FEW_LRS, FEW_SCALE, FEW_SYNC, OBJECTIVES, Cell, Objective, Variant
from humanline.reproduce.outcome import Outcome
from humanline.reproduce.paper import ALPHA, both_sides
from humanline.reproduce.shown import markdown
from humanline.reproduce.start import make_start
from humanline.reproduce.suite import pairs_at
from humanline.reproduce.tables import rows_csv
from humanline.reproduce.testbeds.base import Source, Testbed
from humanline.stats import mean_estimate
from humanline.system.files import make_folder, write_text

#: Answers of the start model to which a set's level is held; as many as make its own level known to about .01.
OWN_ANSWERS = 256
SOURCES: tuple[Source, ...] = ("near", "far", "better")
QUARTERS = ("quarter 1", "quarter 2", "quarter 3", "quarter 4")
#: Kinds of sets, and how runs on them are told apart: the cell's data, or its quartile.
KINDS: dict[str, tuple[str, ...]] = {"quarters of near pairs": QUARTERS, "writers of the pairs": SOURCES}
LEVELS = "levels.csv"
YARDSTICKS = ("level", "gap")


@dataclass(frozen=True, slots=True)
class DataLevel:
    """What an inspection says of a set before a run.

    Parameters
    ----------
    start, draw : int
    data : str
        One of `SOURCES` or `QUARTERS`.
    level : float
        Nats a token, under the start model.
    own, gap : float
        Level of the start model's own answers, and by how much the set's lies above it.
    paper_side : "below", "within" or "above"
        The paper's range of its lowest quarter.
    own_side : "below", "at", "above" or "unknown"
    """

    start: int
    draw: int
    data: str
    level: float
    own: float
    gap: float
    paper_side: str
    own_side: str


def find_levels(
    testbed: Testbed,
    places: Iterable[tuple[int, int]],
    starts: Path,
    folder: Path,
    *,
    before: Callable[[], object] | None = None,
) -> list[DataLevel]:
    """Inspect the pairs of start models and draws, as `humanline inspect-data --own-samples` does.

    Parameters
    ----------
    testbed : Testbed
    places : iterable of (start, draw)
    starts : Path
        Where start models and pairs are, or are made.
    folder : Path
        Where scores are kept: what was inspected once is read from there.
    before : callable, optional
        Called before each set that was not inspected yet; what it raises ends this, and the same call goes on.

    Raises
    ------
    EvaluationError, ModelError, ValueError, OSError
        As `make_start`, `make_pairs` and `inspect_data` do.
    """
    from humanline.evaluate.inspect_run import NAME, config_of_file, inspect_data
    from humanline.evaluate.verdict import side_of
    from humanline.train.data.levels import quarters_of, side_of_paper

    found = []
    for start, draw in places:
        for source in SOURCES:
            place = folder / f"{source}-{start}-{draw}"
            if before is not None and not (place / NAME).is_file():
                before()
            pairs = pairs_at(testbed, source, start, draw, starts)
            model = make_start(testbed, "near", start, starts).model
            short = f"evaluation.sampling={{max_tokens: {testbed.max_tokens}}}"
            config = config_of_file(str(pairs.file), str(model), [short, f"data.max_length={testbed.max_length}"])
            one = inspect_data(config, out=str(place), own_samples=OWN_ANSWERS, say=lambda text: None)
            verdict = one.verdict
            assert verdict.own_level is not None and verdict.gap is not None
            own = verdict.own_level.mean
            level = verdict.level.mean
            told = DataLevel(start, draw, source, level, own, verdict.gap.mean, verdict.paper, verdict.own)
            found.append(told)
            if source == "near" and one.quartiles is not None:
                quarters = quarters_of(one.scores)
                for name, quarter, gap in zip(QUARTERS, quarters, verdict.gaps, strict=True):
                    mean = quarter.level.nats.mean
                    quarter_told = replace(told, data=name, level=mean, gap=gap.mean)
                    found.append(replace(quarter_told, paper_side=side_of_paper(mean), own_side=side_of(gap)))
    return found


def read_levels(file: Path) -> list[DataLevel]:
    """Return the levels that `write_foretold` wrote; raise ValueError for what is no such file."""
    kinds = {"start": int, "draw": int, "level": float, "own": float, "gap": float}
    try:
        with open(file, encoding="utf-8", newline="") as lines:
            rows = list(csv.DictReader(lines))
        if any(None in row.values() for row in rows):
            raise ValueError("a row is cut off")
        return [DataLevel(**{name: kinds.get(name, str)(text) for name, text in row.items()}) for row in rows]
    except (TypeError, ValueError, csv.Error) as error:
        raise ValueError(f"{file}: no table of levels: {error}") from None


def levels_beside(tables: Iterable[Path]) -> list[DataLevel]:
    """Return the levels in the levels.csv beside each of these tables of runs; of what is told twice, the first."""
    found: dict[tuple[int, int, str], DataLevel] = {}
    for table in tables:
        if (file := table.parent / LEVELS).is_file():
            for one in read_levels(file):
                found.setdefault((one.start, one.draw, one.data), one)
    return list(found.values())


def foretold_rows(outcomes: Iterable[Outcome], levels: Iterable[DataLevel]) -> list[dict[str, object]]:
    """Return how the score of runs goes with what was said of their data.

    Returns
    -------
    list of dict
        For each kind of sets, objective, variant and yardstick: ``sets``, ``starts``, ``slope`` (score a nat a token,
        mean over start models of the least-squares line through the sets, each the mean over draws and the two rates),
        ``low`` and ``high`` (95 % over start models), ``ordered`` (share of pairs of sets whose scores are in the order
        of the yardstick), ``p`` (of a slope above 0, Student's t, one-sided), ``adjusted`` (by Holm, over the rows of a
        kind of sets and a yardstick), ``contrary`` and ``contrary_adjusted`` (the same of a slope below 0) and
        ``verdict``: *holds here* where the first is at most .05, *does not hold here* where the second is,
        *undecided here*, or *not run*.
    """
    runs, said = list(outcomes), list(levels)
    rows = []
    for kind, sets in KINDS.items():
        for objective in OBJECTIVES if kind != "quarters of near pairs" else ("dpo",):
            for variant in ("offline", "humanline"):
                for yardstick in YARDSTICKS:
                    row: dict[str, object] = {"kind": kind, "objective": objective, "variant": variant}
                    scores = _scores(runs, sets, objective, variant)
                    rows.append(row | {"foretold by": yardstick} | _told(scores, said, sets, yardstick))
    for kind in KINDS:
        for yardstick in YARDSTICKS:
            _judge([row for row in rows if (row["kind"], row["foretold by"]) == (kind, yardstick)])
    return rows


def _judge(rows: Sequence[dict[str, object]]) -> None:
    """Give verdicts to the rows of a kind of sets and a yardstick, corrected together."""
    p, contrary = ([float(str(row[name])) for row in rows] for name in ("p", "contrary"))
    for row, one in zip(rows, both_sides(p, contrary), strict=True):
        if one is not None:
            row |= asdict(one)


def cells_on(data: str, objective: Objective, variant: Variant) -> list[Cell]:
    """Return the cells of the grid that learn from a set: two rates, one scale, one k."""
    every = FEW_SYNC if variant == "humanline" else None
    if data in QUARTERS:
        some = {"quartile": QUARTERS.index(data) + 1, "passes": 4}
        return [Cell(objective, variant, lr, every=every, **FEW_SCALE[objective], **some) for lr in FEW_LRS]  # type: ignore[arg-type]
    return [Cell(objective, variant, lr, every=every, data=data, **FEW_SCALE[objective]) for lr in FEW_LRS]  # type: ignore[arg-type]


_Scores = Mapping[str, Mapping[int, float]]


def _scores(runs: Sequence[Outcome], sets: Sequence[str], objective: Objective, variant: Variant) -> _Scores:
    """Return the mean score of the runs on each set from each start; only where all of its cells and draws have one."""
    found: dict[str, dict[int, float]] = {}
    for data in sets:
        cells = cells_on(data, objective, variant)
        mine = [one for one in runs if one.cell in cells]
        draws = {one.draw for one in mine}
        found[data] = {}
        for start in sorted({one.start for one in mine}):
            own = [one.score for one in mine if one.start == start]
            if len(own) == len(cells) * len(draws) and all(map(math.isfinite, own)):
                found[data][start] = sum(own) / len(own)
    return found


def _told(scores: _Scores, said: Sequence[DataLevel], sets: Sequence[str], yardstick: str) -> dict[str, object]:
    """Return a row's numbers."""
    numbers = ("slope", "low", "high", "ordered", "p", "adjusted", "contrary", "contrary_adjusted")
    nothing = dict.fromkeys(numbers, math.nan)
    starts = sorted(set.intersection(*(set(own) for own in scores.values())))
    known = {(one.start, one.data) for one in said}
    starts = [start for start in starts if all((start, data) in known for data in sets)]
    row: dict[str, object] = {"sets": len(sets), "starts": len(starts), **nothing, "verdict": "not run"}
    if len(starts) < 2:
        return row
    slopes, ordered = [], []
    for start in starts:
        x = np.array([_mean(said, start, data, yardstick) for data in sets])
        y = np.array([scores[data][start] for data in sets])
        slopes.append(float(((x - x.mean()) * y).sum() / ((x - x.mean()) ** 2).sum()))
        ordered += [(x[i] - x[j]) * (y[i] - y[j]) > 0 for i, j in combinations(range(len(sets)), 2)]
    estimate = mean_estimate(slopes)
    half = estimate.interval(1 - ALPHA).half_width
    row |= {"slope": estimate.mean, "low": estimate.mean - half, "high": estimate.mean + half}
    row |= {"ordered": float(np.mean(ordered)), "p": estimate.above(0.0)}
    return row | {"contrary": (-estimate).above(0.0)}


def _mean(said: Sequence[DataLevel], start: int, data: str, name: str) -> float:
    return float(np.mean([getattr(one, name) for one in said if (one.start, one.data) == (start, data)]))


def write_foretold(
    folder: Path, outcomes: Sequence[Outcome], find: Callable[[Sequence[tuple[int, int]]], list[DataLevel]]
) -> list[Path]:
    """Write levels.csv, foretold.csv and foretold.md of the runs of one testbed; return the files, or none.

    Parameters
    ----------
    folder : Path
    outcomes : sequence of Outcome
    find : callable
        Returns what is said of the data of starts and draws (`find_levels`); called where there are runs on several
        sets alone.
    """
    wanted = {cell for sets in KINDS.values() for data in sets for o in OBJECTIVES for cell in _both(data, o)}
    several = {(one.cell.data, one.cell.quartile) for one in outcomes if one.cell in wanted}
    if len(several) < 2:
        return []
    levels = find(sorted({(one.start, one.draw) for one in outcomes if one.cell in wanted}))
    rows = foretold_rows(outcomes, levels)
    make_folder(folder)
    write_text(folder / LEVELS, rows_csv([asdict(one) for one in levels]))
    write_text(folder / "foretold.csv", rows_csv(rows))
    lines = [
        f"# Does what inspect-data says foretell a run's end? {outcomes[0].testbed}",
        "",
        "The paper's Figure 6 takes the mean log-probability of a token under the start model for a proxy of how good "
        "data are. Here it is the slope of a run's score on that level, over sets of pairs that differ in it, and on "
        "how far the level lies above that of the model's own answers (gap): mean over start models, with the 95 % "
        "interval over these, not corrected; verdicts for and against are Holm's, over the rows of a kind and a "
        f"yardstick. {len(levels)} sets were inspected.",
        "",
        markdown(rows),
        "## What was said of the sets, means over start models and draws",
        "",
        markdown(_said(levels)),
    ]
    write_text(folder / "foretold.md", "\n".join(lines))
    return [folder / name for name in (LEVELS, "foretold.csv", "foretold.md")]


def _both(data: str, objective: Objective) -> list[Cell]:
    return [*cells_on(data, objective, "offline"), *cells_on(data, objective, "humanline")]


def _said(levels: Sequence[DataLevel]) -> list[dict[str, object]]:
    rows = []
    for data in dict.fromkeys(one.data for one in levels):
        mine = [one for one in levels if one.data == data]
        sides = {name: sorted({getattr(one, name) for one in mine}) for name in ("paper_side", "own_side")}
        means = {name: float(np.mean([getattr(one, name) for one in mine])) for name in ("level", "own", "gap")}
        rows.append({"data": data, **means, **{name: ", ".join(some) for name, some in sides.items()}})
    return rows
