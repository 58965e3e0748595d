"""Files of comma-separated values, read strictly: every fault with its line, column, rule and value, all at once."""

from __future__ import annotations

import csv
import hashlib
import io
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from humanline.fit.faults import DataError, Fault

Column = NDArray[np.object_]
_LONGEST_VALUE = 60  # characters of a cell that messages show
_OTHERS = (
    *((mark, "be UTF-8: save it as that", "UTF-16") for mark in (b"\xff\xfe", b"\xfe\xff")),
    (b"\x1f\x8b", "be text: unpack it first", "a gzip archive"),
    (b"PK\x03\x04", "be text: unpack it, or save the sheet as CSV in UTF-8", "a zip archive or a workbook"),
)


@dataclass(frozen=True, eq=False)
class CsvTable:
    """Hold the cells of a file as text; `read_csv` makes it.

    Parameters
    ----------
    path : Path
    names : tuple of str
        Of the columns, in order.
    columns : dict from name to (R,) array of str
        Without blanks around the cells.
    line : (R,) int array
        Where each row begins in the file, counted from 1.
    size : int
        Bytes of the file.
    sha256 : str
        Of its bytes.
    """

    path: Path
    names: tuple[str, ...]
    columns: dict[str, Column]
    line: NDArray[np.int64]
    size: int
    sha256: str

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.line)

    def numbers(self, name: str, faults: list[Fault]) -> NDArray[np.float64]:
        """Return a column of numbers, nan where a cell is none; add a fault for each that is not finite."""
        cells = self.columns[name]
        found = np.array([_number(cell) for cell in cells])
        for row in np.flatnonzero(~np.isfinite(found)):
            faults.append(self.fault(row, name, "be a finite number", cells[row]))
        return np.where(np.isfinite(found), found, np.nan)

    def fault(self, row: Any, column: str, rule: str, value: Any) -> Fault:
        """Return a fault of a row, counted from 0, by its line in the file."""
        return Fault(int(self.line[int(row)]), column, rule, _short(value))

    def refuse(self, faults: Iterable[Fault]) -> None:
        """Raise DataError with all faults, if there are any, in the order of lines."""
        refuse(self.path, faults)


def refuse(path: Path, faults: Iterable[Fault]) -> None:
    """Raise DataError about a file with all faults, if there are any, in the order of lines."""
    ordered = sorted(faults, key=lambda fault: -1 if fault.row is None else fault.row)
    if ordered:
        raise DataError(str(path), ordered, unit="line")


def read_csv(path: str | Path) -> CsvTable:
    """Read a file of values that commas, semicolons or tabs separate, below a line of names.

    Parameters
    ----------
    path : path
        UTF-8, with or without a byte order mark.

    Returns
    -------
    CsvTable

    Raises
    ------
    OSError
        If it cannot be read.
    DataError
        With everything that is wrong: nothing in it, another encoding, no name or the same name for two columns, rows
        with more or fewer cells than names, quotes that do not end.
    """
    path = Path(path)
    data = path.read_bytes()
    text = _decoded(path, data)
    if not text.strip():
        refuse(path, [Fault(None, "file", "have a line of names and rows below it", f"{len(data)} bytes")])
    rows, lines, faults = _rows(text)
    if not rows:
        refuse(path, faults)
    names = [name.strip() for name in rows[0]]
    for name, count in Counter(names).items():
        if count > 1 or not name:
            what = "have a name" if not name else "be there once"
            faults.append(Fault(int(lines[0]), name or "column", what, f"{count} columns"))
    body = list(zip(rows[1:], lines[1:], strict=True))
    if not body:
        faults.append(Fault(None, "file", "have rows below the line of names", "none"))
    for row, line in body:
        if len(row) != len(names):
            faults.append(Fault(line, "row", f"have {len(names)} cells, as the line of names has", len(row)))
    refuse(path, faults)
    cells = [np.array([cell.strip() for cell in column], dtype=object) for column in zip(*rows[1:], strict=True)]
    return CsvTable(
        path=path,
        names=tuple(names),
        columns=dict(zip(names, cells, strict=True)),
        line=np.array(lines[1:], dtype=np.int64),
        size=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
    )


def _decoded(path: Path, data: bytes) -> str:
    for mark, rule, name in _OTHERS:
        if data.startswith(mark):
            refuse(path, [Fault(None, "file", rule, name)])
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        rule = "be UTF-8: save the file as that"
        refuse(path, [Fault(line, "text", rule, f"byte 0x{data[error.start]:02x}")])
        raise  # not reached


def _rows(text: str) -> tuple[list[list[str]], list[int], list[Fault]]:
    """Return the rows that are not blank, the line where each begins, and what keeps the rest from being read."""
    head = text.lstrip("\r\n").splitlines()[0]
    delimiter = max(",;\t", key=head.count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    rows: list[list[str]] = []
    lines: list[int] = []
    begin = 1
    try:
        for row in reader:
            if any(cell.strip() for cell in row):
                rows.append(row)
                lines.append(begin)
            begin = reader.line_num + 1
    except csv.Error as error:
        return rows, lines, [Fault(begin, "row", "be well-formed", str(error))]
    return rows, lines, []


def _number(cell: str) -> float:
    if "_" in cell:  # Python takes 1_000 for a number
        return float("nan")
    try:
        return float(cell)
    except ValueError:
        return float("nan")


def _short(value: Any) -> Any:
    if isinstance(value, str) and len(value) > _LONGEST_VALUE:
        return value[:_LONGEST_VALUE] + "..."
    return value
