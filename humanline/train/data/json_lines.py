"""Rows from JSON lines: read strictly, with the line and column of what is wrong.

Departures from common readers: all bad lines of a file are found, each with its place; nulls, NaN and repeated keys
are problems, not values; a file of another kind under this ending is named for what it is.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from humanline.train.data.source import DataError, Row, Source

_SPREAD_LIMIT = 1 << 24  # bytes looked at to see whether an object goes on over the next lines
_OF_32_BITS = ("UTF-32 text", "Save it as UTF-8: iconv -f UTF-32 -t UTF-8 OLD > NEW.jsonl")
SIGNATURES = {
    b"\xff\xfe\0\0": _OF_32_BITS,  # before that of UTF-16, which it begins with
    b"\0\0\xfe\xff": _OF_32_BITS,
    b"\xff\xfe": ("UTF-16 text", "Save it as UTF-8: iconv -f UTF-16 -t UTF-8 OLD > NEW.jsonl"),
    b"\xfe\xff": ("UTF-16 text", "Save it as UTF-8: iconv -f UTF-16 -t UTF-8 OLD > NEW.jsonl"),
    b"\x1f\x8b": ("a gzip archive", "Unpack it: gzip -dc OLD > NEW.jsonl"),
    b"PK\x03\x04": ("a zip archive", "Unpack it first."),
    b"\x28\xb5\x2f\xfd": ("a zstandard archive", "Unpack it: zstd -dc OLD > NEW.jsonl"),
    b"BZh": ("a bzip2 archive", "Unpack it: bzip2 -dc OLD > NEW.jsonl"),
    b"\xfd7zXZ\x00": ("an xz archive", "Unpack it: xz -dc OLD > NEW.jsonl"),
    b"PAR1": ("a parquet file", "Give it the ending .parquet."),
}
JSON_MARK = b"\xef\xbb\xbf"  # the byte order mark of UTF-8, which is tolerated at the start
_JQ_ITEMS = "jq -c '.[]' OLD > NEW.jsonl writes that"
_JQ_LINES = "jq -c . OLD > NEW.jsonl writes that"


def json_lines(path: Path, problems: list[str]) -> Iterator[Row]:
    """Yield (`file:line`, object) for each good line of a file and append a message to `problems` for each bad one."""
    return JsonLines(path).rows(problems)


class JsonLines(Source):
    """A UTF-8 file with one JSON object per line; blank lines are skipped but counted."""

    is_table = False

    def __init__(self, path: Path) -> None:
        self.path, self.name, self.short_name = path, str(path), path.name
        self._number, self._raw = 0, b""
        self._file: BinaryIO | None = None

    def rows(self, problems: list[str], wanted: Collection[str] | None = None) -> Iterator[Row]:
        """Yield (`file:line`, object) for each good line and append a message to `problems` for each bad one."""
        decode, file_name, looked_ahead = strict_decoder.decode, self.path.name, False
        self.broken = False
        try:
            with self.path.open("rb") as file:  # bytes: lines end at \n only, and a bad byte costs one line
                self._file = file
                refuse_other_formats(self.path, file.peek(8)[:8])
                if file.peek(3)[:3] == JSON_MARK:
                    file.read(3)
                for number, raw in enumerate(file, start=1):
                    self._number, self._raw = number, raw
                    try:
                        row = decode(raw.decode())
                    except (ValueError, RecursionError) as error:
                        fault = _fault(raw, error)
                        if fault is None:  # a blank line
                            continue
                        column, text, ends_early = fault
                        if ends_early and not looked_ahead:
                            looked_ahead = True
                            spread = _spread(raw, file)
                            if spread:
                                problems.append(f"{self.place()}: {spread}")
                                self.broken = True
                                return
                        problems.append(f"{file_name}:{number}:{column + 1}: {text}")
                        continue
                    if isinstance(row, dict):
                        yield f"{file_name}:{number}", row
                    else:
                        problems.append(f"{self.place()}: {_not_an_object(row)}")
        except OSError as error:
            raise DataError(f"{self.path} cannot be read: {error.strerror or error}") from None

    def place(self, *keys: str | int) -> str:
        """Return `file:line:column` of the value under `keys`, or of the row."""
        return f"{self.path.name}:{self._number}:{find(self._raw.decode(), keys) + 1}"

    @property
    def share(self) -> float:
        """Return the share of the file's bytes."""
        if self._file is None or self._file.closed:
            return 0.0
        size = os.fstat(self._file.fileno()).st_size
        return min(1.0, self._file.tell() / size) if size else 0.0

    def columns(self, row: Mapping[str, Any]) -> list[str]:
        """Return the keys of the row."""
        return list(row)


def refuse_other_formats(path: Path, head: bytes) -> None:
    """Raise DataError if a file, by its first bytes, is no UTF-8 text."""
    for signature, (what, advice) in SIGNATURES.items():
        if head.startswith(signature):
            raise DataError(f"{path} is {what}; expected UTF-8 text, one JSON object per line", advice=advice)
    if b"\0" in head[:4]:
        order = "BE" if head[:1] == b"\0" else "LE"  # JSON begins with a letter of ASCII
        width = 32 if head[:4].count(0) == 3 else 16
        advice = f"If it is UTF-{width}, save it as UTF-8: iconv -f UTF-{width}{order} -t UTF-8 OLD > NEW.jsonl"
        what = "begins with NUL bytes, as UTF-16 without a mark and binary files do"
        raise DataError(f"{path} {what}; expected UTF-8 text, one JSON object per line", advice=advice)


class _RefusedError(ValueError):
    """Something that JSON readers take and this one does not; where it stands is looked up afterwards."""


def _refuse_constant(name: str) -> None:
    raise _RefusedError(f"{name} is not a JSON number")


def _refuse_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        raise _RefusedError("a key appears twice")
    return result


strict_decoder = json.JSONDecoder(parse_constant=_refuse_constant, object_pairs_hook=_refuse_repeats)


def parse_json(text: str) -> Any:
    """Return the value of a JSON text, read as strictly as rows are; raise ValueError if it cannot be."""
    try:
        return strict_decoder.decode(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _fault(raw: bytes, error: Exception) -> tuple[int, str, bool] | None:
    """Return where a line is wrong, how, and whether it ends too early; None if it is blank."""
    if isinstance(error, UnicodeDecodeError):
        column, byte = len(raw[: error.start].decode()), raw[error.start]
        return column, f"byte 0x{byte:02x} is not UTF-8; expected UTF-8 text", False
    text = raw.decode()
    line, rule = text.rstrip("\r\n"), "expected one complete JSON object per line"
    if not line.strip():
        return None
    if isinstance(error, json.JSONDecodeError):
        column = min(error.pos, len(line))
        found = line[column : column + 1]
        if error.msg == "Extra data" and "\r" in line[:column]:
            rule = "expected lines that end in LF: tr '\\r' '\\n' < OLD > NEW.jsonl"
            return column, f"goes on after a lone carriage return; {rule}", False
        known = {"\0": "a NUL character", "\ufeff": "a byte order mark inside the file"}
        return column, f"not valid JSON ({known.get(found, error.msg)}); {rule}", column >= len(line.rstrip())
    if isinstance(error, RecursionError):
        return find(line, ()), f"nested too deeply; {rule}", False
    column, what = refused(line)
    return column, f"{what}; {rule}", False


_TOKENS = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|-?Infinity|NaN|-?\d[\d.eE+-]*|[{}\[\]:]')


def refused(line: str) -> tuple[int, str]:
    """Return where and what the first thing is that the decoder refused though its syntax is right."""
    seen: list[set[str]] = []  # the keys of each object (or nothing, for a list) that is open
    last = None
    for token in _TOKENS.finditer(line):
        text = token[0]
        if text in "{[":
            seen.append(set())
        elif text in "}]":
            seen.pop()
        elif text == ":" and last is not None:
            key = json.loads(last[0])
            if key in seen[-1]:
                return last.start(), f"the key {short(key)} appears twice"
            seen[-1].add(key)
        elif text.endswith(("NaN", "Infinity")) and not text.startswith('"'):
            return token.start(), f"{text} is not a JSON number"
        elif len(text) > 4000 and text.lstrip("-").isdigit() and len(text.lstrip("-")) > sys.get_int_max_str_digits():
            return token.start(), f"a whole number of {len(text.lstrip('-'))} digits is more than can be read"
        last = token if text.startswith('"') else last
    return find(line, ()), "not valid JSON"


def short(key: str) -> str:
    """Return a key in quotes, its end cut off if it is long."""
    return repr(key if len(key) <= 40 else key[:37] + "...")


def listed(names: Sequence[str]) -> str:
    """Return names in quotes, the first twelve of them."""
    return ", ".join(map(short, names[:12])) + (", ..." if len(names) > 12 else "") if names else "none"


def _spread(raw: bytes, file: BinaryIO) -> str:
    """Return a message if the JSON value that begins in the line `raw` ends in a later one, else an empty text."""
    position = file.tell()
    text = (raw + file.read(_SPREAD_LIMIT)).decode(errors="replace")
    file.seek(position)
    start = _blank(text, 0)
    try:
        value, end = json.JSONDecoder().raw_decode(text, start)
    except (ValueError, RecursionError):
        if raw.strip() != b"[" or not text[start + 1 :].strip():
            return ""
        return f"one JSON array over many lines; expected one JSON object per line ({_JQ_ITEMS})"
    lines = text.count("\n", start, end) + 1
    if isinstance(value, list):
        what = f"one JSON array of {len(value)} items over {lines} lines"
        return f"{what}; expected one JSON object per line ({_JQ_ITEMS})"
    return f"one JSON object over {lines} lines; expected one JSON object per line ({_JQ_LINES})"


def _not_an_object(value: Any) -> str:
    what = f"the row is {kind(value)}; expected one JSON object per line"
    return (
        f"{what} ({_JQ_ITEMS})" if isinstance(value, list) and any(isinstance(item, dict) for item in value) else what
    )


_DECODER = json.JSONDecoder()
_BLANKS = re.compile(r"[ \t\n\r]*")


def _blank(text: str, at: int) -> int:
    """Return where the next character that is not blank stands."""
    return _BLANKS.match(text, at).end()  # type: ignore[union-attr]


def find(line: str, keys: Sequence[str | int]) -> int:
    """Return where the value under `keys` begins in a line of JSON; as deep as the keys lead."""
    at = _blank(line, 0)
    try:
        for key in keys:
            inner = _member(line, at, key)
            if inner is None:
                break
            at = inner
    except (ValueError, IndexError, RecursionError):  # not JSON, which is another problem's business
        pass
    return min(at, len(line.rstrip()))


def _member(line: str, at: int, key: str | int) -> int | None:
    """Return where the member `key` of the object or list that begins at `at` begins."""
    opening = line[at]
    if opening != ("{" if isinstance(key, str) else "["):
        return None
    at = _blank(line, at + 1)
    for number in itertools.count():
        if line[at] in "}]":
            return None
        name: Any = number
        if opening == "{":
            name, at = _DECODER.raw_decode(line, at)
            at = _blank(line, _blank(line, at) + 1)  # over the colon
        if name == key:
            return at
        at = _blank(line, _DECODER.raw_decode(line, at)[1])
        at = _blank(line, at + 1) if line[at] == "," else at
    return None


def kind(value: Any) -> str:
    """Name a value by its JSON type, or by its Python type where JSON has none for it."""
    if value is None:
        return "null"
    if isinstance(value, list):
        return "a list" if value else "an empty list"
    names = {bool: "true or false", int: "a number", float: "a number", str: "a string", dict: "an object"}
    return names.get(type(value), f"of type {type(value).__name__}")
