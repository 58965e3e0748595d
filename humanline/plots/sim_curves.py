"""How the exact score grows in a study: offline, online, and the humanline variant of each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from humanline.plots import _names, _style
from humanline.plots._table import SETTING, Row, Table, points, settings
from humanline.stats import mean_interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from humanline.sim.report import Report

_OBJECTIVES = ("dpo", "kto", "grpo")
_LOOKS = {
    "offline": (_style.RED, ":"),
    "offline+humanline": (_style.ORANGE, "-"),
    "online": (_style.BLUE, "--"),
    "online+humanline": (_style.GREEN, "-."),
}


def rows(report: Report) -> list[Row]:
    """Return the numbers of the figure.

    Returns
    -------
    list of Row
        Panel: ``task, objective``. Series: a variant with its best learning rate, the one of the highest mean final
        score; x: share of the steps done; y: mean score as a share of what there is to gain; series ending in
        ``half-width``: of its 95 % Student interval. Panel ``setting``: seeds and steps.
    """
    out = settings(seeds=report.scale.seeds, steps=report.scale.steps)
    for task in dict.fromkeys(task for task, *_ in report.results):
        for objective in _OBJECTIVES:
            for variant in _LOOKS:
                found = {
                    rate: _curves(result)
                    for (t, o, rate, v), result in report.results.items()
                    if (t, o, v) == (task, objective, variant)
                }
                if not found:
                    continue
                rate = max(found, key=lambda rate: found[rate][-1].mean())
                curves, panel, series = found[rate], f"{task}, {objective}", f"{variant}, lr {rate:g}"
                done = np.linspace(0, 1, len(curves))
                intervals = [mean_interval(scores.tolist()) for scores in curves]
                out += points(panel, series, done, [interval.mean for interval in intervals])
                out += points(panel, f"{series} half-width", done, [interval.half_width for interval in intervals])
    return out


def _curves(result: dict[str, Any]) -> Any:
    names = sorted((name for name in result if name.startswith("curve")), key=lambda name: int(name.split()[1]))
    scores = np.stack([result[name] for name in names])
    return np.nan_to_num((scores - result["start"]) / (result["best"] - result["start"]), nan=-1.0)


def draw(rows: Sequence[Row]) -> Figure:
    """Draw the figure from its rows."""
    with _style.style():
        return _draw(Table(rows), list(dict.fromkeys(row.panel for row in rows if row.panel != SETTING)))


def _draw(table: Table, names: list[str]) -> Figure:
    from matplotlib.figure import Figure

    down = -(-len(names) // 3)
    figure = Figure(figsize=(10.5, 1.3 + 2.7 * down), layout="constrained")
    figure.suptitle(
        "Exact score at each variant's best learning rate", x=0.012, ha="left", fontsize=11.5, fontweight="bold"
    )
    grid = figure.subplots(down, min(3, len(names)), squeeze=False, sharex=True, sharey="row")
    for axes, name in zip(grid.flat, names, strict=False):
        for series in table.series(name):
            if series.endswith("half-width"):
                continue
            x, y = table.xy(name, series)
            half = table.xy(name, f"{series} half-width")[1]
            colour, line = _LOOKS[series.partition(",")[0]]
            axes.plot(x, y, color=colour, linestyle=line, label=series)
            axes.fill_between(x, y - half, y + half, color=colour, alpha=0.18, linewidth=0)
        axes.set_title(": ".join(_names.setting(name)))
        axes.legend(fontsize=6.8, loc="best", handlelength=2.4)
    for axes in grid[-1]:
        axes.set_xlabel("share of the steps done")
    for axes in grid[:, 0]:
        axes.set_ylabel("score, share of what there is to gain")
    _style.note(
        figure,
        f"Means over n = {table.setting('seeds'):g} seeds, {table.setting('steps'):g} optimizer steps; bands: 95 % "
        "Student intervals, often narrower than the lines.\n"
        "Score: 0 is the start policy, 1 the best response to every context.  lr: the learning rate (Adam) with the "
        "highest mean final score.",
    )
    return figure
