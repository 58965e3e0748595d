"""Learning curves of runs of one kind: a small panel for each number, every run a line in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from humanline.plots import _style
from humanline.plots._table import Row, Table, points, write

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: How the lines of runs are told apart, in order: by colour, then by dashes too; as many as a report has runs.
LOOKS = tuple(
    (colour, dashes)
    for dashes in ("", "5 2", "1.5 1.5", "7 2 1.5 2", "1.5 4.5", "7 1.5 1.5 1.5 1.5 1.5", "10 5", "7 1.5 3.5 1.5")
    for colour in (
        _style.BLUE,
        _style.RED,
        _style.GREEN,
        _style.ORANGE,
        _style.PINK,
        _style.SKY,
        _style.BLACK,
        _style.GREY,
    )
)
MOST = 200  # points of a line of steps: of a longer run each is the mean of as many neighbours
LOW, HIGH = ", low end", ", high end"
UPDATES, ROUND, KL = "updates", "round", "KL(start || policy), nats an answer"


def _clipped(row: Mapping[str, float]) -> float | None:
    return row["clipped_low"] + row["clipped_high"] if {"clipped_low", "clipped_high"} <= row.keys() else None


def _named(name: str) -> Callable[[Mapping[str, float]], float | None]:
    return lambda row: row.get(name)


#: Panels of steps, of held-out looks and of rounds: their titles, and what they show of a row.
STEPS = {
    "loss": _named("loss"),
    "margin (chosen over rejected), times beta": _named("margin"),
    "share of tokens beyond humanline's clip": _clipped,
    "share of tokens beyond GRPO's own clip": _named("inner_clipped"),
    "distance from the reference, nats a token (rms)": _named("log_ratio_rms"),
    "KL from the anchor of the penalty, nats a token": _named("kl"),
    "gradient norm": _named("grad_norm"),
}
LOOKED = {
    "held out: score": "score",
    "held out: preference accuracy": "accuracy",
    "held out: margin, nats": "margin",
    "held out: loss": "loss",
    "held out: perplexity": "perplexity",
    "held out: length of answers, tokens": "completion_tokens",
    "distance: KL(start || policy), nats an answer": "kl_from_start",
    "distance: KL(policy || start), nats an answer": "kl_to_start",
}
ROUNDS = {
    "rounds: score": "score",
    "rounds: length of answers, tokens": "completion_tokens",
    "rounds: answers cut short, share": "truncated",
}
TRAVELLED = "held-out score and distance"
LOOKED_TRAVELLED = "held-out preference accuracy and distance"


@dataclass(frozen=True, slots=True)
class Look:
    """A look at held-out data: after how many updates, its numbers, and the ends of their intervals."""

    updates: int
    metrics: Mapping[str, float]
    intervals: Mapping[str, tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Lines:
    """What a run has to show.

    Parameters
    ----------
    name : str
        Unlike that of any other.
    steps : mapping from a step to its numbers
    looks : sequence of Look
    rounds : mapping from a round to its numbers
    """

    name: str
    steps: Mapping[int, Mapping[str, float]]
    looks: Sequence[Look]
    rounds: Mapping[int, Mapping[str, float]]


def rows(runs: Iterable[Lines]) -> list[Row]:
    """Return the numbers of all panels: a panel each that some run has numbers for, a series each run.

    x is the count of updates before a step, or until a look, the number of a round, or a distance. The panels
    ``..., low end`` and ``..., high end`` hold the ends of 95 % intervals.
    """
    runs = list(runs)
    out: list[Row] = []
    for title, read in STEPS.items():
        for run in runs:
            found = [(step, value) for step, row in run.steps.items() if (value := read(row)) is not None]
            out += _of(title, run.name, _thinned(found))
    for title, name in LOOKED.items():
        for run in runs:
            having = [look for look in run.looks if name in look.metrics]
            out += _of(title, run.name, [(look.updates, look.metrics[name]) for look in having])
            for number, end in enumerate((LOW, HIGH)):
                ends = [(one.updates, one.intervals[name][number]) for one in having if name in one.intervals]
                out += _of(title + end, run.name, ends)
    for title, name in {TRAVELLED: "score", LOOKED_TRAVELLED: "accuracy"}.items():
        for run in runs:
            both = [one.metrics for one in run.looks if {name, "kl_from_start"} <= one.metrics.keys()]
            out += _of(title, run.name, [(one["kl_from_start"], one[name]) for one in both])
    for title, name in ROUNDS.items():
        for run in runs:
            out += _of(title, run.name, [(number, row[name]) for number, row in run.rounds.items() if name in row])
    return out


def _of(panel: str, series: str, found: Sequence[tuple[float, float]]) -> list[Row]:
    return points(panel, series, *np.array(found, dtype=float).T) if found else []


def _thinned(found: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return at most `MOST` points, of more the means of neighbours."""
    size = -(-len(found) // MOST)
    parts = [found[at : at + size] for at in range(0, len(found), max(1, size))]
    return [(sum(x for x, _ in part) / len(part), sum(y for _, y in part) / len(part)) for part in parts]


def write_rows(file: Path, rows: Iterable[Row]) -> Path:
    """Write the numbers of panels as CSV, and return the file."""
    return write(file, rows)


def panels(rows: Iterable[Row]) -> list[str]:
    """Return the titles of the panels that `draw` draws, in order: of those in which some series has two points."""
    counts = Counter((row.panel, row.series) for row in rows)
    drawn = dict.fromkeys(panel for (panel, _), count in counts.items() if count > 1)
    return [name for name in drawn if not name.endswith((LOW, HIGH))]


def draw(rows: Sequence[Row], panel: str, names: Sequence[str]) -> Figure:
    """Draw one panel from the rows of all.

    Parameters
    ----------
    rows : sequence of Row
    panel : str
    names : sequence of str
        Of all runs; the place of each says how its line looks (`LOOKS`, over and over).
    """
    with _style.style():
        return _draw(Table(rows), panel, {name: LOOKS[place % len(LOOKS)] for place, name in enumerate(names)})


def _draw(table: Table, panel: str, looks: Mapping[str, tuple[str, str]]) -> Figure:
    from matplotlib.ticker import MaxNLocator

    figure, (axis,) = _style.panels([4.2], height=2.5, title="")
    ends = [set(table.series(panel + end)) for end in (LOW, HIGH)]
    for name in table.series(panel):
        colour, dashes = looks[name]
        across, up = table.xy(panel, name)
        style: dict[str, Any] = {"color": colour, "linestyle": _dashed(dashes), "linewidth": 1.4}
        if panel not in STEPS or len(across) == 1:  # of a single point no line is drawn
            style |= {"marker": "o", "markersize": 3.5}
        axis.plot(across, up, **style)
        if name in ends[0] & ends[1]:
            at, low = table.xy(panel + LOW, name)
            _, high = table.xy(panel + HIGH, name)
            axis.vlines(at, low, high, color=colour, linewidth=1.0, alpha=0.7)
    across_is = KL if panel in (TRAVELLED, LOOKED_TRAVELLED) else ROUND if panel in ROUNDS else UPDATES
    axis.set_xlabel(across_is)
    if across_is != KL:
        axis.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True, steps=[1, 2, 4, 5, 10]))
    axis.margins(x=0.03)
    return figure


def _dashed(dashes: str) -> Any:
    return (0, tuple(map(float, dashes.split()))) if dashes else "-"
