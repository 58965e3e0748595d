"""The long format: a row for each outcome of each option of each problem, and for each person and trial again."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from humanline import _checks
from humanline.fit.faults import DataError, Fault
from humanline.fit.formats.csv_table import CsvTable
from humanline.fit.formats.part import ChoiceFile, Part
from humanline.fit.table import NEEDED, RESPONSES, as_choices, one_number


def is_long(names: tuple[str, ...]) -> bool:
    """Return whether columns are those of this format."""
    return all(name in names for name in NEEDED)


def read_long(table: CsvTable, *, least_responses: int = 1, per_rate: int | None = None) -> ChoiceFile:
    """Return the choices in a table (its columns as in `as_choices`).

    Parameters
    ----------
    table : CsvTable
        Beside the columns of `as_choices` it may have ``n``: of how many choices the counts of a problem's two options
        are together, or how many independent choices a rate is of: the same on all rows of an answer.
    least_responses : int
        How many each person must have given.
    per_rate : int, optional
        Of rates: in place of ``n``.

    Returns
    -------
    ChoiceFile

    Raises
    ------
    DataError
        With everything that is wrong, by line.
    """
    faults: list[Fault] = []
    total = _trials(table, faults)
    for name in ("outcome", "probability", "n", *RESPONSES):
        for row in np.flatnonzero(["_" in cell for cell in table.columns.get(name, ())]):
            faults.append(table.fault(row, name, "be a number", table.columns[name][row]))
    try:
        choices = as_choices(table.columns, least_responses=least_responses)
    except DataError as error:
        table.refuse([*faults, *(_at_line(table, fault) for fault in error.faults)])
        raise  # not reached
    table.refuse(faults)
    if per_rate is not None and choices.kind != "rates":
        raise _checks.fail("per_rate", f"be left out: {table.path} holds {choices.kind}, not rates", per_rate)
    noise = None
    if choices.kind == "rates" and (total is not None or per_rate is not None):
        rows = [rows[0] for _, rows in sorted(_answers(table).items())]
        number = total[rows] if per_rate is None and total is not None else np.full(len(choices), per_rate)
        noise = choices.response * (1 - choices.response) / np.maximum(number - 1, 1)
    alone = int((np.bincount(choices.person) == 1).sum()) if choices.people > 1 else 0
    passed = [name for name in table.names if name not in (*NEEDED, *RESPONSES, "person", "trial", "n")]
    notes = tuple(
        note
        for note, said in (
            (f"{alone} of {choices.people} people gave a single answer", alone),
            (f"Columns that are not read: {', '.join(passed)}", passed),
            ("There is no column person: all answers are taken for one person's", "person" not in table.names),
        )
        if said
    )
    part = Part("choices", choices.kind, choices, noise)
    return ChoiceFile(table.path, "long", table.size, table.sha256, len(table), {}, notes, (part,))


def _trials(table: CsvTable, faults: list[Fault]) -> NDArray[np.float64] | None:
    """Return the column n of rates; add a fault for what is no number of choices, or not one within an answer."""
    if not {"n", "rate"} <= set(table.names):
        return None
    total = table.numbers("n", faults)
    bad = ~((total >= 2) & (np.floor(total) == total)) & ~np.isnan(total)
    faults += [table.fault(row, "n", "be a whole number >= 2", table.columns["n"][row]) for row in np.flatnonzero(bad)]
    for rows in _answers(table).values():
        if len({number for number in total[rows].tolist() if number == number}) > 1:
            cell = table.columns["n"][rows[0]]
            faults.append(_at_line(table, Fault(rows[0], "n", one_number(rows, total), cell)))
    return total


def _answers(table: CsvTable) -> dict[Any, list[int]]:
    """Return the rows of each answer: of the same problem, person and trial, by which `as_choices` orders them."""
    found: dict[Any, list[int]] = {}
    names = [name for name in ("problem", "person", "trial") if name in table.names]
    if "problem" in names:  # else that is the fault
        for row, key in enumerate(zip(*(table.columns[name] for name in names), strict=True)):
            found.setdefault(key, []).append(row)
    return found


def _at_line(table: CsvTable, fault: Fault) -> Fault:
    """Return a fault with the file's lines in place of rows."""
    rule = re.sub(r"\bin row (\d+)", lambda found: f"on line {table.line[int(found[1])]}", fault.rule)
    return replace(fault, row=None if fault.row is None else int(table.line[fault.row]), rule=rule)
