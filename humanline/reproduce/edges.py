"""Where tuned cells lie at an edge of what was tried: a better cell may lie beyond, and a verdict turn on it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

from humanline.reproduce.cells import Cell

#: The settings that have a next value on either side, with the least that each can be.
SETTINGS: dict[str, float] = {"lr": 0.0, "beta": 0.0, "clip_eps": 0.0, "every": 1.0, "passes": 1.0}
#: What `edges` tells, for people.
SAYS = (
    "At an edge is a chosen cell where none was run that has a setting lower (or higher) and all others alike; what "
    "lies beyond was not tried and may be better. Settings with one value on a side are not named."
)


def edges(chosen: Mapping[int, Cell], tried: Iterable[Cell]) -> str:
    """Return at which edges of what was tried the chosen cells lie.

    A cell is at an edge of a setting where no tried cell has that setting lower, or none has it higher, and all other
    settings alike. A setting that is the same in all tried cells has no edge, nor has one that can be no lower.

    Parameters
    ----------
    chosen : mapping of int to Cell
        Of each start model the cell that the others chose (`best.tuned_cells`).
    tried : iterable of Cell
        All that were run of their kind, collapsed ones too: what lies beyond a cell was tried where it collapsed.

    Returns
    -------
    str
        As ``"beta highest, lr lowest (2 of 3)"``, with of how many start models where not of all; empty without any.
    """
    cells = set(tried)
    counts: Counter[str] = Counter()
    for name, least in SETTINGS.items():
        if len({getattr(one, name) for one in cells}) < 2:
            continue
        for cell in chosen.values():
            alike = {getattr(one, name) for one in cells if replace(one, **{name: getattr(cell, name)}) == cell}
            mine = getattr(cell, name)
            counts[f"{name} lowest"] += mine is not None and mine > least and not any(one < mine for one in alike)
            counts[f"{name} highest"] += mine is not None and not any(one > mine for one in alike)
    told = ((name, f"{name} ({count} of {len(chosen)})", count) for name, count in counts.items() if count)
    return ", ".join(name if count == len(chosen) else counted for name, counted, count in told)


def edges_of_both(first: str, second: str) -> dict[str, str]:
    """Return a column that tells the edges of both sides of a comparison, for people; none where there are none."""
    told = "; ".join(f"{side}: {found}" for side, found in (("first", first), ("second", second)) if found)
    return {"at an edge": told} if told else {}
