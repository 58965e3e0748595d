"""The interface of every source of rows, and the error that lists what is wrong with them.

A source yields (name, row) and can say where in its row a value stands: `file:line:column` for JSON lines (columns
count characters from 1), `file:row N` otherwise. What a row has to hold is the business of `row.py`.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

SHOWN = 20  # problems listed in a message; the rest is counted
PLACES = 3  # of problems that are the same
GRAMMAR = "hub:ORG/NAME[/SUBSET][@REVISION][#SPLIT]"
READ = f"humanline reads .jsonl (or .ndjson), .json and .parquet files, and sets of the hub as {GRAMMAR}"
Row = tuple[str, dict[str, Any]]


class DataError(ValueError):
    """Data that must not be trained on; `problems` holds every finding, the message the first 20."""

    def __init__(self, heading: str, problems: Sequence[str] = (), advice: str = "") -> None:
        self.heading, self.problems, self.advice = heading, tuple(problems), advice
        super().__init__(self.text(SHOWN))

    def text(self, shown: int) -> str:
        """Return the message with at most `shown` lines of problems, of which each holds all that are the same."""
        kinds = _alike(self.problems)
        lines = [self.heading, *(f"  {_line(places, what)}" for what, places in kinds[:shown])]
        rest = sum(len(places) for _, places in kinds[shown:])
        if rest:
            lines.append(f"  and {rest} more")
        return "\n".join([*lines, self.advice] if self.advice else lines)


_PLACED = re.compile(r"(?s)(.+?:(?:row )?\d+(?::\d+)?(?:#\w+)?): (.*)")
_COUNTS = re.compile(r"\b\d+ tokens\b")  # in which rows differ that have the same problem


def _alike(problems: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Return each problem once, in the order of their first places, with all the places that have it."""
    kinds: dict[str, tuple[str, list[str]]] = {}
    for number, problem in enumerate(problems):
        placed = _PLACED.fullmatch(problem)
        place, what = (placed[1], placed[2]) if placed else ("", problem)
        # Of problems without a place none is left out, whatever they say.
        key = _COUNTS.sub("tokens", what) if placed else f"{number}"
        kinds.setdefault(key, (what, []))[1].append(place)
    return list(kinds.values())


def _line(places: Sequence[str], what: str) -> str:
    """Return a problem and where it is: its first places, and how many there are."""
    if len(places) == 1:
        return f"{places[0]}: {what}" if places[0] else what
    also = ", ".join(places[1:PLACES]) + (", ..." if len(places) > PLACES else "")
    return f"{places[0]}: {what} ({len(places)} times in all, also at {also})"


class Source(ABC):
    """A set of rows.

    Attributes
    ----------
    name : str
        The file with its full path, or the set as `hub:...`: what messages about the whole call it.
    short_name : str
        The same without its folder: what messages about a row call it.
    is_table : bool
        Whether all rows have the same columns, so that a null may stand for a key that a row never had.
    broken : bool
        Whether `rows` ended before the set did, at something after which no row can be told from another.
    """

    name: str
    short_name: str
    is_table: bool
    broken: bool = False

    @abstractmethod
    def rows(self, problems: list[str], wanted: Collection[str] | None = None) -> Iterator[Row]:
        """Yield (name, row) for each good row and append a message to `problems` for each bad one.

        Of a table only the columns in `wanted` are read where that is given.
        """

    @abstractmethod
    def place(self, *keys: str | int) -> str:
        """Return where the value under `keys` of the row yielded last stands; of the row itself where there is none."""

    @property
    @abstractmethod
    def share(self) -> float:
        """Return how much of the whole is read, from 0 to 1, while `rows` is iterated; 0 where it is not known."""

    @abstractmethod
    def columns(self, row: Mapping[str, Any]) -> list[str]:
        """Return the names of all columns of a row, those not asked for too."""
