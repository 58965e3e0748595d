"""The verdict of a study on each of the paper's claims, setting by setting."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from humanline.plots import _style
from humanline.plots._table import Row, Table, points

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    from humanline.sim.report import Report

_VERDICTS = ("holds", "contrary", "undecided", "not tested")


def rows(report: Report) -> list[Row]:
    """Return the numbers of the figure.

    Returns
    -------
    list of Row
        Panel: a claim with its verdict over all settings; series: ``task, objective``; x: the learning rate, infinite
        for the tuned one; y: 0 holds, 1 contrary, 2 undecided, 3 not tested.
    """
    out = []
    for judgement in report.judgements:
        for f in judgement.findings:
            rate = math.inf if f.setting.rate is None else f.setting.rate
            panel = f"{judgement.claim.name}: {judgement.verdict}"
            series = f"{f.setting.task}, {f.setting.objective}"
            out += points(panel, series, rate, _VERDICTS.index(f.verdict))
    return out


def draw(rows: Sequence[Row]) -> Figure:
    """Draw the figure from its rows."""
    with _style.style():
        return _draw(Table(rows), list(dict.fromkeys(row.panel for row in rows)))


def _draw(table: Table, claims: list[str]) -> Figure:
    from matplotlib.patches import Patch

    looks = {
        "holds": (_style.GREEN, ""),
        "contrary": (_style.RED, "xxxx"),
        "undecided": ("#d0d0d0", ""),
        "not tested": ("#ffffff", "...."),
    }
    groups = list(dict.fromkeys(series for claim in claims for series in table.series(claim)))
    rates = sorted({x for claim in claims for series in table.series(claim) for x in table.xy(claim, series)[0]})
    title = "The paper's claims on small exact problems: where each holds"
    figure, (axes,) = _style.panels([11.0], height=1.6 + 0.27 * len(claims), title=title)
    width = len(rates) + 0.6
    for down, claim in enumerate(claims):
        for series in table.series(claim):
            left = groups.index(series) * width
            for rate, verdict in zip(*table.xy(claim, series), strict=True):
                colour, hatch = looks[_VERDICTS[int(verdict)]]
                axes.add_patch(_box(left + rates.index(rate), down, colour, hatch))
    axes.set(xlim=(-0.3, len(groups) * width - 0.3), ylim=(len(claims), -0.1))
    axes.set_yticks([down + 0.5 for down in range(len(claims))], claims, fontsize=8)
    axes.set_xticks(
        [group * width + place + 0.5 for group in range(len(groups)) for place in range(len(rates))],
        [("tuned" if math.isinf(rate) else f"{rate:g}") for _ in groups for rate in rates],
        rotation=90,
        fontsize=6.5,
    )
    for group, name in enumerate(groups):
        axes.text(group * width + len(rates) / 2, -0.3, name, ha="center", va="bottom", fontsize=8)
    axes.grid(False)
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.set_xlabel("learning rate")
    patches = [
        Patch(facecolor=c, hatch=h, edgecolor=_style.GREY, linewidth=0.4, label=n) for n, (c, h) in looks.items()
    ]
    axes.legend(handles=patches, ncols=4, loc="upper center", bbox_to_anchor=(0.4, -0.11))
    return figure


def _box(left: float, top: float, colour: str, hatch: str) -> Rectangle:
    from matplotlib.patches import Rectangle

    return Rectangle(
        (left + 0.06, top + 0.08), 0.88, 0.84, facecolor=colour, hatch=hatch, edgecolor=_style.GREY, linewidth=0.4
    )
