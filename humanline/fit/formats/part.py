"""What a file of choices holds: one or several sets that are fitted apart, and what was left out of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from humanline.fit.choices import Choices


@dataclass(frozen=True, eq=False)
class Part:
    """Hold choices that are fitted together.

    Parameters
    ----------
    name : str
        Fit for the name of a folder.
    title : str
        For people.
    choices : Choices
    noise : (M,) array, optional
        The sampling variance of each response, where the file tells it.
    """

    name: str
    title: str
    choices: Choices
    noise: NDArray[np.float64] | None = None


@dataclass(frozen=True, eq=False)
class ChoiceFile:
    """Hold what was read from a file; `read_choices` makes it.

    Parameters
    ----------
    path : Path
    format : str
        "cpc" or "long".
    size, sha256
        Of the file's bytes.
    rows : int
        Below its line of names.
    dropped : mapping from reason to number of rows
    notes : tuple of str
        What a reader should know of how it was read.
    parts : tuple of Part
        At least one.
    """

    path: Path
    format: str
    size: int
    sha256: str
    rows: int
    dropped: Mapping[str, int]
    notes: tuple[str, ...]
    parts: tuple[Part, ...]

    def told(self) -> list[str]:
        """Return what was read, and what was left out, in lines to be shown."""
        lines = [f"{self.path.name}: {self.rows} rows in the {self.format} format, SHA-256 {self.sha256[:16]}"]
        lines += [f"Dropped: {count} rows, {reason}" for reason, count in self.dropped.items() if count]
        return lines + [f"{note}." for note in self.notes]
