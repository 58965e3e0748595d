"""One picture of all results that are there: a panel a benchmark, a line a row, each ratio against its target."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.report import FAILED

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ORDER = (
    "steps",
    "equality",
    "memory",
    "trl",
    "packed",
    "overlap",
    "sharded",
    "large",
    "logprobs",
    "beta",
    "capacity",
    "fits",
    "simulator",
    "reading",
)
LINE, HEAD, FOOT = 0.215, 0.50, 0.30  # inches: a row, a panel's title, its axis
LABELS, SCALE, NUMBERS = 6.1, 3.4, 5.6  # inches across: what is compared, the scale, the numbers
RATIO, SIDES, AIM = 0.1, 2.05, 3.85  # where the columns of numbers begin, inches to the right of the scale
SMALL = 7.5


def plot_results(folder: Path) -> list[Path]:
    """Draw every result of a folder into one figure, summary.svg and summary.png beside them.

    Parameters
    ----------
    folder : Path
        With the files that `write_result` made.

    Returns
    -------
    list of Path

    Raises
    ------
    FileNotFoundError
        If there is no result.
    """
    from matplotlib.figure import Figure

    from humanline.plots._style import save, style

    trees = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]
    if not trees:
        raise FileNotFoundError(f"{folder} holds no results to draw: run python -m benchmarks first")
    trees.sort(key=lambda tree: (_place(tree["name"]), tree["name"]))
    width, top = LABELS + SCALE + NUMBERS, 0.75
    height = top + sum(HEAD + FOOT + LINE * len(tree["rows"]) for tree in trees)
    with style():
        figure = Figure(figsize=(width, height))
        figure.text(0.15 / width, 1 - 0.28 / height, "What was measured", fontsize=13, fontweight="bold", va="center")
        figure.text(
            0.15 / width,
            1 - 0.55 / height,
            "Dot: the ratio; bar: its 95 % interval; tick: its target. Green: met; orange: missed or failed; black: no "
            "target. What was not measured has no dot. "
            "All scales are logarithmic.",
            fontsize=8.5,
            va="center",
        )
        at = top
        for tree in trees:
            tall = LINE * len(tree["rows"])
            at += HEAD
            axes = figure.add_axes((LABELS / width, 1 - (at + tall) / height, SCALE / width, tall / height))
            _panel(axes, tree, 0.15 / width, 1 - (at - 0.17) / height)
            at += tall + FOOT
    return save(figure, folder / "summary")


def target_of(text: str) -> float | None:
    """Return the number that a ratio is held against, None where a target is not about the ratio."""
    found = re.fullmatch(r"(?:upper end )?[<>]=? ?(\d*\.?\d+)(?: GiB| s)?", text)
    return float(found[1]) if found else None


def _place(name: str) -> int:
    stem = name.split("-")[0]
    return ORDER.index(stem) if stem in ORDER else len(ORDER)


def _panel(axes: Axes, tree: dict[str, Any], left: float, title: float) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
    from matplotlib.transforms import blended_transform_factory

    from humanline.plots._style import BLACK, GREEN, GREY, RED

    rows, figure = tree["rows"], axes.figure
    facts = tree["machine"]
    on = facts["gpu"]["name"] if facts["gpu"] else f"{facts['cpu']}, {facts['torch_threads']} threads"
    for inches, text in ((RATIO, "ratio"), (SIDES, "one : other"), (AIM, "target")):
        across = axes.get_position().x1 + inches / (LABELS + SCALE + NUMBERS)
        figure.text(across, title, text, fontsize=SMALL, color=GREY, va="center")
    figure.text(left, title, tree["name"], fontsize=10.5, fontweight="bold", va="center")
    figure.text(
        axes.get_position().x0, title, f"{on}; torch {facts['versions']['torch']}; {tree['date']}", fontsize=SMALL,
        color=GREY, va="center",
    )  # fmt: skip
    beside = blended_transform_factory(axes.transAxes, axes.transData)
    reach: list[float] = []
    for place, row in enumerate(rows):
        colour = RED if row["note"].startswith(FAILED) else {None: BLACK, True: GREEN, False: RED}[row["met"]]
        value, limit = row["value"], target_of(row["target"])
        if place % 2 == 0:
            band = (-(LABELS - 0.1) / SCALE, 1 + (NUMBERS - 0.1) / SCALE)
            axes.fill_between(
                band, place - 0.5, place + 0.5, transform=beside, color="#f4f4f4", linewidth=0, zorder=-2, clip_on=False
            )

        def write(inches: float, text: str, colour: str = BLACK, at: int = place) -> None:
            axes.text(inches / SCALE, at, text, transform=beside, va="center", fontsize=SMALL, color=colour)

        write(0.15 - LABELS, "" if row["number"] == "-" else row["number"], GREY)
        write(0.55 - LABELS, row["what"])
        if value is not None and value > 0 and " / " in row["what"]:  # gaps and the like are no ratios
            low, high = row["interval"] or (value, value)
            axes.plot([low, high], [place, place], color=colour, linewidth=2.4, solid_capstyle="butt", alpha=0.55)
            axes.plot([value], [place], "o", color=colour, markersize=4.2)
            reach += [low, high]
            if limit is not None:
                axes.plot([limit, limit], [place - 0.34, place + 0.34], color=BLACK, linewidth=1.5)
                reach.append(limit)
        ratio, sides = _numbers(row)
        write(SCALE + RATIO, ratio, colour)
        write(SCALE + SIDES, sides)
        write(SCALE + AIM, row["target"], GREY)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_yticks([])
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)
    if not reach:
        axes.set_xticks([])
        return
    axes.set_xscale("log")
    low, high = min([*reach, 0.9]), max([*reach, 1.1])
    room = (high / low) ** 0.06
    axes.set_xlim(low / room, high * room)
    decades = math.log10(high / low)
    steps = (1.0,) if decades > 2.5 else (1.0, 3.0) if decades > 1.2 else (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)
    axes.xaxis.set_major_locator(LogLocator(subs=steps, numticks=12))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.tick_params(axis="x", which="both", length=0, labelsize=7, colors=GREY)
    axes.axvline(1.0, color=GREY, linewidth=0.8, zorder=0)


def _numbers(row: dict[str, Any]) -> tuple[str, str]:
    """Return a row's ratio with its interval, or why it has none, and its sides."""
    sides = " : ".join(side for side in row["sides"] if side)
    if row["value"] is None:
        note = row["note"] if row["note"].startswith(("not measured: ", FAILED)) else ""
        return (note if len(note) < 54 else f"{note[:52]}..."), sides
    text = _short(row["value"])
    if row["interval"]:
        text += " ({} to {})".format(*map(_short, row["interval"]))
    return text, sides


def _short(value: float) -> str:
    if value and abs(value) < 0.001:
        return f"{value:.2e}"
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"
