"""Where humanline is stable and where it helps: learning rate against sync interval and against DPO's beta."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from humanline.plots import _names, _style
from humanline.plots._table import Row, Table, points, settings

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from humanline.sim.report import Report

_STALE, _STALE_COLLAPSED = "stale: score", "stale: collapsed"
_GRPO, _DPO, _BETA = "grpo, k", "dpo, k", "dpo, beta"
_SCATTER = "saturation"


def rows(report: Report) -> list[Row]:
    """Return the numbers of the figure.

    Returns
    -------
    list of Row
        Panels ``stale: score`` and ``stale: collapsed`` (GRPO on right-or-wrong sequences sampled every 64 steps; y:
        mean final score, share of runs that ended below their start), ``grpo, k`` and ``dpo, k`` (graded sequences,
        fixed data; y: humanline minus offline), ``dpo, beta`` (the same at k = 1). Series: k or beta; x: the learning
        rate. Panel ``saturation``: x: mean saturation of offline DPO, y: humanline minus offline, series the task.
        Panel ``setting``: seeds.
    """
    out = settings(seeds=report.scale.seeds)
    for (task, objective, rate, variant), result in report.results.items():
        if rate not in report.scale.rates:
            continue
        k = re.fullmatch(r".* k=(\d+)", variant)
        if task == "verifiable" and objective == "grpo" and k and variant.startswith("online+humanline every=64"):
            out += points(_STALE, k[1], rate, _mean(_gain(result)))
            out += points(_STALE_COLLAPSED, k[1], rate, _mean(result["collapsed"]))
        offline = report.results.get((task, objective, rate, "offline"))
        if task == "sequence" and offline is not None and re.fullmatch(r"offline\+humanline k=\d+", variant):
            panel = {"grpo": _GRPO, "dpo": _DPO}.get(objective)
            if panel and k:
                out += points(panel, k[1], rate, _mean(_gain(result) - _gain(offline)))
        if variant == "offline+humanline" and objective.startswith("dpo") and offline is not None:
            beta = objective.partition("beta ")[2] or "0.1"
            difference = _mean(_gain(result) - _gain(offline))
            if task == "sequence":
                out += points(_BETA, beta, rate, difference)
            out += points(_SCATTER, task, _mean(offline["saturation"]), difference)
    return out


def _gain(result: dict[str, Any]) -> Any:
    gain = (result["score"] - result["start"]) / (result["best"] - result["start"])
    return np.where(np.isfinite(gain), gain, -1.0)


def _mean(values: Any) -> float:
    return float(np.mean(values))


def draw(rows: Sequence[Row]) -> Figure:
    """Draw the figure from its rows."""
    with _style.style():
        return _draw(Table(rows))


def _draw(table: Table) -> Figure:
    title = "Stability and gain depend on the learning rate, on how often the reference is synced, and on beta"
    figure, axes = _style.panels([3.6, 3.4, 3.4, 2.9, 3.4], height=4.7, title=title)
    _grid(
        axes[0],
        table,
        _STALE,
        "k",
        "viridis",
        None,
        "GRPO, right or wrong, samples 64 steps old\nscore (% of runs below their start)",
    )
    limit = max(float(np.abs(table.xy(p, s)[1]).max()) for p in (_GRPO, _DPO, _BETA) for s in table.series(p))
    _grid(axes[1], table, _GRPO, "k", "RdBu", limit, "GRPO, graded sequences, fixed data\nhumanline − offline")
    _grid(axes[2], table, _DPO, "k", "RdBu", limit, "DPO (beta 0.1), graded sequences\nhumanline − offline")
    _grid(axes[3], table, _BETA, "beta", "RdBu", limit, "DPO, graded, k = 1\nhumanline − offline")
    right = axes[4]
    marks = {"bandit": ("o", _style.BLUE), "sequence": ("s", _style.RED), "verifiable": ("^", _style.GREEN)}
    for task in table.series(_SCATTER):
        marker, colour = marks[task]
        right.plot(*table.xy(_SCATTER, task), marker, color=colour, markersize=5, label=_names.TASKS[task])
    right.axhline(0, color=_style.GREY, linewidth=0.9)
    right.set(xlabel="mean saturation of offline DPO", ylabel="humanline − offline", title="Every DPO cell, k = 1")
    right.set_ylim(top=0.8)
    right.legend(loc="upper left")
    _style.note(
        figure,
        f"Means over n = {table.setting('seeds'):g} seeds of the final score, as a share of what there is to gain: "
        "0 is the start policy, 1 the best response to every context; humanline − offline: the difference of two such "
        "shares.  k: optimizer steps between syncs of the reference.\n"
        "Saturation: mean sigmoid(margin) over pairs and steps, 1/2 where the policy is its reference and 1 where "
        "pairs no longer teach; a point is a beta and a learning rate.",
    )
    return figure


def _grid(axes: Axes, table: Table, panel: str, name: str, colours: str, limit: float | None, title: str) -> None:
    series = sorted(table.series(panel), key=float)
    rates = np.unique(np.concatenate([table.xy(panel, each)[0] for each in series]))
    values = np.array([[dict(zip(*table.xy(panel, each), strict=True))[rate] for rate in rates] for each in series])
    low, high = (float(values.min()), float(values.max())) if limit is None else (-limit, limit)
    axes.imshow(values, cmap=colours, vmin=low, vmax=high, aspect="auto", origin="lower")
    middle = (low + high) / 2
    for (down, across), value in np.ndenumerate(values):
        text = f"{value:.2f}" if limit is None else f"{value:+.2f}".replace("-", "−")
        if panel == _STALE:
            collapsed = dict(zip(*table.xy(_STALE_COLLAPSED, series[down]), strict=True))[rates[across]]
            text += f"\n({collapsed:.0%})"
        strong = abs(value - middle) > 0.3 * (high - low) if limit is not None else value < middle
        axes.text(across, down, text, ha="center", va="center", fontsize=6.5, color="white" if strong else "black")
    axes.set_xticks(range(len(rates)), [f"{rate:g}" for rate in rates])
    axes.set_yticks(range(len(series)), series)
    axes.set(xlabel="learning rate", ylabel=name)
    axes.set_title(title, fontsize=8.5)
    axes.grid(False)
