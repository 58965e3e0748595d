"""Rows from a file that is one list of JSON objects, read as strictly as JSON lines, with the place of what is wrong.

The text of the file is in memory as a whole, its objects one by one. For files too large for that JSON lines are the
form: `jq -c '.[]' OLD > NEW.jsonl` writes them. Rows are called `file:row N`, since several may stand on one line;
problems are placed by line and column.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from humanline.train.data.json_lines import (
    JSON_MARK,
    find,
    kind,
    refuse_other_formats,
    refused,
    strict_decoder,
)
from humanline.train.data.source import DataError, Row, Source

LARGEST = 2 << 30  # bytes that are read as a whole
_RULE = "expected one list of objects"
_LENIENT = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=str)  # to see where a value ends
_AS_LINES = "Write it as JSON lines, which are read one by one: jq -c '.[]' OLD > NEW.jsonl"


def is_array(path: Path) -> bool:
    """Return whether a file begins as a list does; raise DataError if it is of another kind or cannot be read."""
    try:
        with path.open("rb") as file:
            head = file.read(1 << 12).removeprefix(JSON_MARK)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from None
    return head.lstrip().startswith(b"[")


class JsonArray(Source):
    """A UTF-8 file that is one list of JSON objects."""

    is_table = False

    def __init__(self, path: Path) -> None:
        self.path, self.name, self.short_name = path, str(path), path.name
        self._text = ""
        self._start = self._end = 0  # of the item that was read last
        self._lines, self._begin, self._counted = 1, 0, 0  # the line of a place, and where it begins

    def rows(self, problems: list[str], wanted: Collection[str] | None = None) -> Iterator[Row]:
        """Yield (`file:row N`, object) for each good item and append a message to `problems` for each bad one."""
        self.broken = False
        self._lines, self._begin, self._counted = 1, 0, 0
        self._text = self._read()
        try:
            yield from self._items(problems)
        finally:
            self._text = ""

    def _read(self) -> str:
        try:
            with self.path.open("rb") as file:
                refuse_other_formats(self.path, file.peek(8)[:8])
                size = self.path.stat().st_size
                if size > LARGEST:
                    what = f"is a list of {size / (1 << 30):.1f} GiB, which would be in memory as a whole"
                    raise DataError(f"{self.path} {what}; expected at most {LARGEST >> 30} GiB", advice=_AS_LINES)
                raw = file.read().removeprefix(JSON_MARK)
        except OSError as error:
            raise DataError(f"{self.path} cannot be read: {error.strerror or error}") from None
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            start = raw.rfind(b"\n", 0, error.start) + 1
            line, column = raw.count(b"\n", 0, error.start) + 1, len(raw[start : error.start].decode()) + 1
            what = f"byte 0x{raw[error.start]:02x} is not UTF-8; expected UTF-8 text"
            raise DataError(f"{self.path}:{line}:{column}: {what}") from None

    def _items(self, problems: list[str]) -> Iterator[Row]:
        text, number = self._text, 0
        at = _blank(text, 0) + 1  # behind the bracket
        while True:
            at = _blank(text, at)
            if text[at : at + 1] == "]" and not number:
                break
            self._start = self._end = at
            try:
                _, self._end = _LENIENT.raw_decode(text, at)
            except json.JSONDecodeError as error:
                return self._break(problems, error.pos, f"not valid JSON ({error.msg})")
            except RecursionError:
                return self._break(problems, at, "nested too deeply")
            number += 1
            yield from self._item(number, problems)
            at = _blank(text, self._end)
            if text[at : at + 1] != ",":
                break
            at += 1
        if text[at : at + 1] != "]":
            what = "the file ends inside the list" if at >= len(text) else "no comma between two items of the list"
            return self._break(problems, at, what)
        after = _blank(text, at + 1)
        if after < len(text):
            self._break(problems, after, "the file goes on after the list")

    def _item(self, number: int, problems: list[str]) -> Iterator[Row]:
        part = self._text[self._start : self._end]
        try:
            row = strict_decoder.decode(part)
        except ValueError:  # its syntax is right
            column, what = refused(part)
            problems.append(f"{self._at(self._start + column)}: {what}; {_RULE}")
        except RecursionError:
            problems.append(f"{self.place()}: nested too deeply; {_RULE}")
        else:
            if isinstance(row, dict):
                yield f"{self.short_name}:row {number}", row
            else:
                problems.append(f"{self.place()}: item {number} is {kind(row)}; {_RULE}")

    def _break(self, problems: list[str], at: int, what: str) -> None:
        """Note something after which no item can be told from another."""
        self.broken = True
        problems.append(f"{self._at(at)}: {what}; {_RULE}")

    def place(self, *keys: str | int) -> str:
        """Return `file:line:column` of the value under `keys`, or of the item."""
        return self._at(self._start + find(self._text[self._start : self._end], keys))

    def _at(self, place: int) -> str:
        # What was counted is not looked at again: the whole file may be one line.
        if place > self._counted:
            self._lines += self._text.count("\n", self._counted, place)
            self._begin = max(self._begin, self._text.rfind("\n", self._counted, place) + 1)
            self._counted = place
        elif place < self._begin:
            self._lines -= self._text.count("\n", place, self._counted)
            self._begin = self._text.rfind("\n", 0, place) + 1
            self._counted = place
        return f"{self.short_name}:{self._lines}:{place - self._begin + 1}"

    @property
    def share(self) -> float:
        """Return the share of the text."""
        return min(1.0, self._end / len(self._text)) if self._text else 0.0

    def columns(self, row: Mapping[str, Any]) -> list[str]:
        """Return the keys of the item."""
        return list(row)


def _blank(text: str, at: int) -> int:
    while text[at : at + 1] and text[at] in " \t\n\r":
        at += 1
    return at
