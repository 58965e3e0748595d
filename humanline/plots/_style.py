"""How the figures look, and how they are saved so that the same rows give the same bytes."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from humanline.system.files import write_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Okabe and Ito's colours, which colour-blind readers can tell apart; line styles tell series apart in grey.
BLACK, GREY, RED, BLUE, GREEN, ORANGE, PINK, SKY = (
    *("#000000", "#777777", "#D55E00", "#0072B2"),
    *("#009E73", "#E69F00", "#CC79A7", "#56B4E9"),
)
DPI = 150
NOTE = 7.5  # points, of the letters of a note
_STYLE = {
    "font.size": 9.0,
    "axes.titlesize": 9.5,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "legend.fontsize": 8.0,
    "lines.linewidth": 1.7,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "svg.hashsalt": "humanline",
}


def check_matplotlib() -> None:
    """Raise ModuleNotFoundError if there is no matplotlib."""
    import matplotlib  # noqa: F401


def style() -> Any:
    """Return the context in which figures are drawn and saved: matplotlib's defaults with the settings above."""
    import matplotlib

    settings: Any = dict(matplotlib.rcParamsDefault)
    for name in [name for name in settings if name.startswith(("backend", "interactive", "toolbar"))]:
        del settings[name]
    settings.update(_STYLE)
    return matplotlib.rc_context(settings)


def panels(widths: list[float], *, height: float, title: str, down: int = 1) -> tuple[Figure, list[Axes]]:
    """Return a figure of panels (widths and height of all in inches), row by row, with a title above them all."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(sum(widths), height), layout="constrained")
    axes = figure.subplots(down, len(widths), width_ratios=widths, squeeze=False)
    figure.suptitle(title, x=0.012, ha="left", fontsize=11.5, fontweight="bold")
    return figure, list(axes.flat)


def note(figure: Figure, text: str) -> None:
    """Write below the panels what a reader needs to know to read them."""
    figure.supxlabel(text, x=0.012, ha="left", fontsize=NOTE, color="#444444")


def save(figure: Figure, stem: Path) -> list[Path]:
    """Write stem.svg and stem.png, each whole or not at all, without a date or a version, and return the paths."""
    svg, png = io.BytesIO(), io.BytesIO()
    with style():
        figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
        figure.savefig(png, format="png", dpi=DPI, metadata={"Software": None})
    paths = [stem.with_name(f"{stem.name}.{kind}") for kind in ("svg", "png")]
    for path, drawn in zip(paths, (svg, png), strict=True):
        write_bytes(path, drawn.getvalue())
    return paths
