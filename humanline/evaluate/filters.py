"""Filters: the rows of a file that are to be kept, byte for byte and in order, and a list of what left and why."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from humanline.evaluate.records import EvaluationError
from humanline.system.files import Lines, OutputError, write_text

UNUSED = "cannot be used: too long, a special token, or answers that are the same tokens"


@dataclass(frozen=True, slots=True)
class Filtered:
    """What a filter has done.

    Attributes
    ----------
    kept, left : Path
        Files of the rows that stay, and of the names of those that left.
    count : int
        Of rows that stay.
    why : mapping of str to int
        Rows that left, by reason.
    """

    kept: Path
    left: Path
    count: int
    why: Mapping[str, int]

    def __str__(self) -> str:
        reasons = "".join(f"; {count} left: {why}" for why, count in self.why.items())
        return f"kept {self.count} of {self.count + sum(self.why.values())} rows{reasons}"


class JsonLines:
    """A JSON-lines file whose rows are filtered once they were looked at.

    Raises
    ------
    EvaluationError
        If a set is no such file, of which lines could be kept as they are.
    """

    def __init__(self, path: str) -> None:
        self.path = Path(path).expanduser()
        if path.startswith("hub:") or self.path.suffix.lower() not in (".jsonl", ".ndjson"):
            raise EvaluationError(
                f"{path}: rows are kept byte for byte, which only .jsonl and .ndjson files have lines for"
            )
        self._state = self._look() if self.path.is_file() else None

    def _look(self) -> tuple[int, int]:
        found = os.stat(self.path)
        return found.st_size, found.st_mtime_ns

    def line_of(self, name: str) -> int:
        """Return the line, from 1 on, of a row of this name; raise EvaluationError if it is none of this file."""
        stem, _, number = name.rpartition(":")
        if stem != self.path.name or not (number.isascii() and number.isdecimal()):
            raise EvaluationError(
                f"{name!r} is no row of {self.path}, whose rows are called {self.path.name}:1 and so on"
            )
        return int(number)

    def keep(self, reasons: Mapping[int, str | None], folder: Path, label: str, rest: str = UNUSED) -> Filtered:
        """Write the lines that have no reason to leave to LABEL.jsonl of a folder, and the others' to LABEL.left.jsonl.

        Parameters
        ----------
        reasons : mapping of int to str or None
            By line, from 1 on.
        folder : Path
            It exists.
        label : str
        rest : str
            Why a line leaves that is in none of them, unless it is blank.

        Raises
        ------
        EvaluationError
            If no row would stay, or the file has changed since it was looked at.
        OutputError
            If one of the files is there already and holds something else.
        """
        lost: list[dict[str, Any]] = []
        why: Counter[str] = Counter()
        count = 0
        for number, _ in self._lines():
            reason = reasons.get(number, rest)
            if reason is None:
                count += 1
            else:
                why[reason] += 1
                lost.append({"row": f"{self.path.name}:{number}", "why": reason})
        if not count:
            raise EvaluationError(f"no row of {self.path} would be kept: {Filtered(self.path, self.path, 0, why)}")
        kept = Lines(lambda: (text for number, text in self._lines() if reasons.get(number, rest) is None))
        files = folder / f"{label}.jsonl", folder / f"{label}.left.jsonl"
        texts = kept, Lines(lambda: (json.dumps(row) + "\n" for row in lost))
        for file, text in zip(files, texts, strict=True):
            if file.exists() and not _holds(file, text):
                raise OutputError(f"{file} is there already and holds other rows; choose another --out")
        if self._look() != self._state:
            raise EvaluationError(f"{self.path} has changed while it was looked at; give the same command again")
        for file, text in zip(files, texts, strict=True):
            write_text(file, text)
        return Filtered(*files, count, dict(why))

    def _lines(self) -> Iterator[tuple[int, str]]:
        """Yield the lines that are not blank, with their numbers and line ends."""
        with open(self.path, "rb") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield number, line.decode()


def _holds(file: Path, text: Lines) -> bool:
    """Return whether a file holds a text."""
    with open(file, "rb") as handle:
        return all(handle.read(len(part)) == part for part in (one.encode() for one in text)) and not handle.read(1)


def quartiles_named(text: str) -> tuple[int, ...]:
    """Return the quartiles of an option such as 2,3,4; raise EvaluationError if it names none, or one twice."""
    try:
        numbers = tuple(sorted(int(one) for one in text.split(",")))
    except ValueError:
        numbers = ()
    if not numbers or len(set(numbers)) < len(numbers) or not {*numbers} <= {1, 2, 3, 4}:
        raise EvaluationError(
            f"--keep-quartiles must be quartiles from 1 (the lowest) to 4, such as 2,3,4; got {text!r}"
        )
    return numbers


def band_named(text: str) -> tuple[float, float]:
    """Return the bounds of an option such as 0.2:0.8; raise EvaluationError if they are none from 0 to 1, in order."""
    low, colon, high = text.partition(":")
    try:
        band = float(low), float(high)
    except ValueError:
        colon, band = "", (0.0, 0.0)
    if not colon or not 0 <= band[0] <= band[1] <= 1:
        raise EvaluationError(
            f"--keep-pass-rate must be LOW:HIGH with 0 <= LOW <= HIGH <= 1, such as 0.2:0.8; got {text!r}"
        )
    return band
