"""What is wrong with data, or keeps a model from being fitted to them: all of it, in one error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

_SHOWN = 12


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong.

    Parameters
    ----------
    row : int or None
        Of the table, counted from 0; of no row None.
    column : str
        The column, or the parameter, that is concerned.
    rule : str
        What it must do, from "must" on.
    value : object
        What was found.
    """

    row: int | None
    column: str
    rule: str
    value: Any

    def told(self, unit: str = "row") -> str:
        """Return a line that says it."""
        where = "" if self.row is None else f"{unit} {self.row}, "
        return f"{where}{self.column} must {self.rule}; got {self.value!r}"


#: Names that other programs write for a name that is missing: R, pandas, numpy, Python and SQL.
MISSING = ("", "NA", "N/A", "NaN", "nan", "<NA>", "None", "NULL", "null")


def is_absent(value: Any) -> bool:
    """Return whether a name is none: None, nan, pandas' NA, an empty text, or what is written for one."""
    if isinstance(value, str):
        return value.strip() in MISSING
    try:
        return bool(value is None or value != value)
    except TypeError:  # NA is neither equal nor unequal
        return True


class DataError(ValueError):
    """Say everything that is wrong with data.

    Parameters
    ----------
    what : str
        What was looked at.
    faults : sequence of Fault
        At least one.
    unit : str
        What a fault's row is one of.
    """

    def __init__(self, what: str, faults: Sequence[Fault], unit: str = "row"):
        self.faults = tuple(faults)
        self.unit = unit
        lines = [f"  {fault.told(unit)}" for fault in self.faults[:_SHOWN]]
        if len(self.faults) > _SHOWN:
            lines.append(f"  and {len(self.faults) - _SHOWN} more")
        super().__init__("\n".join([f"{what}: {len(self.faults)} faults" if len(lines) > 1 else f"{what}:", *lines]))


class NotIdentified(DataError):
    """Say everything that keeps a model's parameters from being determined by data, before anything is fitted."""


class NotConverged(RuntimeError):
    """Say that no start of a fit came to an optimum."""
