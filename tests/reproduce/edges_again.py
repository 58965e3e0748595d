"""The edges at which chosen cells lie, told again from the columns of a table of cells or runs: none of our code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

Row = dict[str, str]
LEAST = {"lr": 0.0, "beta": 0.0, "clip_eps": 0.0, "every": 1.0, "passes": 1.0}
LATER = ("round_steps", "log_eps_low", "log_eps_high", "quartile", "desirable")
CELL = ("objective", "variant", *LEAST, "data", *LATER)


def told(chosen: Sequence[Row], side: Sequence[Row], tried: Sequence[Row]) -> set[str]:
    """Return what the column says, in parts: `chosen` is a row for each start model, all are of one side."""
    found: Counter[str] = Counter()
    for setting, least in LEAST.items():
        if len({row[setting] for row in side}) == 1:
            continue
        others = [name for name in CELL if name != setting]
        for mine in chosen:
            alike = [row for row in tried if all(row.get(one, "") == mine.get(one, "") for one in others)]
            line = [float(row[setting]) for row in alike]
            if min(line) == float(mine[setting]) > least:
                found[f"{setting} lowest"] += 1
            if max(line) == float(mine[setting]):
                found[f"{setting} highest"] += 1
    every = len(chosen)
    return {name if count == every else f"{name} ({count} of {every})" for name, count in found.items()} or {"none"}
