"""How probable a model finds the rows of a set: a histogram of their levels, with what they are held against."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from humanline.evaluate.levels import bins_of
from humanline.plots import _style
from humanline.plots._table import SETTING, Row, Table, points, settings
from humanline.train.data.levels import PAPER_RANGE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from humanline.evaluate.inspection import Inspection

_COUNT, _EDGE = "rows", "quartile"


def rows(inspection: Inspection) -> list[Row]:
    """Return the numbers of the figure.

    Returns
    -------
    list of Row
        Panel ``rows``, one series named by what a level is taken of: the lower edge of each bin, and rows in it; a last
        point with the upper edge of the last bin and 0. Panel ``quartile``: the edges of quartiles. Panel ``setting``:
        the level of all rows, the paper's range and, where it is known, the model's own level.
    """
    counts, edges = bins_of(inspection.scores.levels)
    level = inspection.levels()[inspection.deciding]
    out = settings(level=level.nats.mean, paper_low=PAPER_RANGE[0], paper_high=PAPER_RANGE[1])
    out += points(_COUNT, inspection.deciding, edges, [*counts, 0])
    if inspection.verdict.own_level is not None:
        out += settings(own=inspection.verdict.own_level.mean)
    if (found := inspection.quartiles) is not None:
        out += points(_EDGE, "edges", found.edges, 0)
    return out


def draw(rows: Sequence[Row]) -> Figure:
    """Draw the figure from its rows."""
    with _style.style():
        return _draw(Table(rows))


def _draw(table: Table) -> Figure:
    (part,) = table.series(_COUNT)
    figure, (axis,) = _style.panels([6.5], height=3.4, title="How probable the model finds the data")
    edges, counts = table.xy(_COUNT, part)
    axis.bar(edges[:-1], counts[:-1], np.diff(edges), align="edge", color=_style.SKY, edgecolor="white", linewidth=0.5)
    low, high = table.setting("paper_low"), table.setting("paper_high")
    width = edges[-1] - edges[0]
    seen = edges[0] - width, edges[-1] + width  # as far as the paper's range is drawn, for the data to fill the panel
    text = f"The worst quartile of the paper's data, of one model and tokenizer, goes from {low:g} to {high:g}"
    if low < seen[1] and high > seen[0]:
        axis.axvspan(max(low, seen[0]), min(high, seen[1]), color=_style.ORANGE, alpha=0.18, linewidth=0)
        text += " (shaded)."
    else:
        text += f": far to the {'right' if low > edges[0] else 'left'} of all rows."
    axis.axvline(table.setting("level"), color=_style.BLUE, label="level of all tokens")
    if "own" in table.series(SETTING):
        axis.axvline(table.setting("own"), color=_style.RED, linestyle="--", label="the model's own level")
    if table.series(_EDGE):
        for number, edge in enumerate(table.xy(_EDGE, "edges")[0]):
            label = "edges of quartiles" if number == 0 else None
            axis.axvline(edge, color=_style.GREY, linestyle=":", linewidth=1.2, label=label)
    axis.set_xlabel(f"mean log-probability of a row ({part}), nats per token")
    axis.set_ylabel("rows")
    axis.legend(loc="upper left")
    _style.note(figure, text)
    return figure
