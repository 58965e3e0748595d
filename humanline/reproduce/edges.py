"""Where tuned cells lie at an edge of what was run: a better cell may lie beyond, and a verdict turn on it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace

from humanline.reproduce.cells import Cell

#: The settings that have a next value on either side, with the least that each can be.
SETTINGS: dict[str, float] = {"lr": 0.0, "beta": 0.0, "clip_eps": 0.0, "every": 1.0, "passes": 1.0}
NONE = "none"
#: What `edges` tells, for people.
SAYS = (
    "At an edge is a chosen cell where none of all these runs has a setting lower (or higher) and all others alike: "
    "what lies beyond may be better. Settings of which a side has a single value are not named."
)


def edges(chosen: Mapping[int, Cell], side: Collection[Cell], tried: Collection[Cell]) -> str:
    """Return at which edges of what was run the chosen cells lie.

    A cell is at an edge of a setting where no tried cell has that setting lower, or none has it higher, and all other
    settings alike. A setting that is the same in all cells of a side was not chosen, and has no edge; nor is there one
    below 1 pass, or k = 1.

    Parameters
    ----------
    chosen : mapping of int to Cell
        Of each start model the cell that the others chose (`best.tuned_cells`).
    side : collection of Cell
        Those that there were to choose from.
    tried : collection of Cell
        All that were run, of other sides as well, and collapsed ones: what lies beyond a cell was tried there, too.

    Returns
    -------
    str
        As ``"beta highest, lr lowest (2 of 3)"``, with of how many start models where not of all; ``"none"`` without
        any; empty where nothing was chosen.
    """
    if not chosen:
        return ""
    counts: Counter[str] = Counter()
    for name, least in SETTINGS.items():
        if len({getattr(one, name) for one in side} - {None}) < 2:
            continue
        for cell in chosen.values():
            mine = getattr(cell, name)
            if mine is None:
                continue
            alike = {getattr(one, name) for one in tried if replace(one, **{name: mine}) == cell} - {None}
            counts[f"{name} lowest"] += mine > least and not any(one < mine for one in alike)
            counts[f"{name} highest"] += not any(one > mine for one in alike)
    told = ((name, f"{name} ({count} of {len(chosen)})", count) for name, count in counts.items() if count)
    return ", ".join(name if count == len(chosen) else counted for name, counted, count in told) or NONE


def edges_of_both(first: str, second: str) -> dict[str, str]:
    """Return a column that tells the edges of both sides of a comparison, for people; none where there are none."""
    told = "; ".join(
        f"{side}: {found}" for side, found in (("first", first), ("second", second)) if found not in ("", NONE)
    )
    return {"at an edge": told} if told else {}
