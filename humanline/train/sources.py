"""Where rows come from: JSON lines, parquet files, and sets of the Hugging Face hub.

A source yields (name, row) and can say where in its row a value stands: `file:line:column` for JSON lines (columns
count characters from 1), `file:row N` otherwise. What a row has to hold is the business of `data.py`.

Departures from common readers: all bad lines of a file are found, each with its place; nulls, NaN and repeated keys
are problems, not values; a file of another kind under a known ending is named for what it is. A name that is not
`hub:...` is a file on this machine and never reaches the network. Parquet is read by pyarrow, which `datasets` stands
on, batch by batch: `datasets` itself would first write a copy of the file to its cache. No code of a data set is run.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import hashlib
import itertools
import json
import os
import re
import stat
import sys
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from humanline.train.paths import PathError, absolute

SHOWN = 20  # problems listed in a message; the rest is counted
PLACES = 3  # of problems that are the same
GRAMMAR = "hub:ORG/NAME[/SUBSET][@REVISION][#SPLIT]"
READ = f"humanline reads .jsonl (or .ndjson) and .parquet files, and sets of the hub as {GRAMMAR}"
INSTALL = "pip install 'humanline[train]'"
_BATCH = 1000  # rows of a table that are Python objects at a time
_SPREAD_LIMIT = 1 << 24  # bytes looked at to see whether an object goes on over the next lines

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


# ---------------------------------------------------------------------------------------------------------------------
# Names


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
    """

    name: str
    short_name: str
    is_table: bool

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

    @abstractmethod
    def fingerprint(self) -> str:
        """Return a text that changes when the rows do."""


def open_source(given: str | Path) -> Source:
    """Return the source of a name: `hub:...`, or an existing .jsonl, .ndjson or .parquet file.

    Raises
    ------
    FileNotFoundError
        If the name is neither `hub:...` nor that of a file.
    DataError
        If a name that begins with `hub:` does not follow the grammar, or the file has another ending.
    """
    if isinstance(given, str) and given.startswith("hub:"):
        return HubSet.parse(given)
    path = existing_file(given)
    ending = path.suffix.lower()
    if ending == ".parquet":
        return Parquet(path)
    if ending in (".jsonl", ".ndjson"):
        return JsonLines(path)
    got = f"ends in {path.suffix}" if ending else "has no ending"
    raise DataError(f"{path} {got}; {READ}")


def source_fingerprint(given: str | Path) -> str:
    """Return what tells two versions of a source apart, to be kept in checkpoints.

    For a file: the SHA-256 of its bytes. For a set of the hub: the commit that was read, where `datasets` tells it, and
    the fingerprint that `datasets` gives (of subset, version, commit and split). Raises as `open_source` and reading
    do.
    """
    return open_source(given).fingerprint()


def existing_file(path: str | Path) -> Path:
    """Return `path` in full; raise FileNotFoundError, with the nearest name, unless it is a regular file."""
    try:
        expanded = absolute(path)
    except PathError as error:
        raise FileNotFoundError(f"{str(path)!r} {error}") from None
    try:
        full = Path(os.path.realpath(expanded.parent)) / expanded.name  # a link keeps its own name, and so its ending
        mode = full.stat().st_mode if full.exists() else None
    except OSError as error:  # no permission
        reason = getattr(error, "strerror", None) or str(error)
        raise FileNotFoundError(f"{os.fspath(path)!r} cannot be looked up: {reason}") from None
    if mode is not None and stat.S_ISREG(mode):
        return full
    if mode is not None and stat.S_ISDIR(mode):
        raise FileNotFoundError(f"{full} is a directory; expected a file, for example {full / 'train.jsonl'}")
    if mode is not None:
        kind = "a pipe" if stat.S_ISFIFO(mode) else "a device or socket"
        raise FileNotFoundError(f"{full} is {kind}; expected a regular file, which can be read more than once")
    if re.match(r"(?i)(hub|hf|huggingface|datasets|https?):", str(path)):
        raise FileNotFoundError(f"{path} does not exist; a set of the hub is written {GRAMMAR}")
    if not full.parent.is_dir():
        raise FileNotFoundError(f"{full} does not exist, and neither does its directory; check the path")
    hint = "relative paths start at the current directory"
    with contextlib.suppress(OSError):  # a directory that cannot be listed
        names = sorted(item.name for item in full.parent.iterdir() if item.is_file())
        near = difflib.get_close_matches(full.name, names, n=1)
        hint = f"did you mean {near[0]}?" if near else hint
    raise FileNotFoundError(f"{full} does not exist; {hint}")


# ---------------------------------------------------------------------------------------------------------------------
# JSON lines

_SIGNATURES = {
    b"\xff\xfe": ("UTF-16 or UTF-32 text", "Save it as UTF-8: iconv -f UTF-16 -t UTF-8 OLD > NEW.jsonl"),
    b"\xfe\xff": ("UTF-16 text", "Save it as UTF-8: iconv -f UTF-16 -t UTF-8 OLD > NEW.jsonl"),
    b"\x1f\x8b": ("a gzip archive", "Unpack it: gzip -dc OLD > NEW.jsonl"),
    b"PK\x03\x04": ("a zip archive", "Unpack it first."),
    b"\x28\xb5\x2f\xfd": ("a zstandard archive", "Unpack it: zstd -dc OLD > NEW.jsonl"),
    b"BZh": ("a bzip2 archive", "Unpack it: bzip2 -dc OLD > NEW.jsonl"),
    b"\xfd7zXZ\x00": ("an xz archive", "Unpack it: xz -dc OLD > NEW.jsonl"),
    b"PAR1": ("a parquet file", "Give it the ending .parquet."),
}
_MARK = b"\xef\xbb\xbf"  # the byte order mark of UTF-8, which is tolerated at the start
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
        decode, file_name, looked_ahead = _STRICT.decode, self.path.name, False
        try:
            with self.path.open("rb") as file:  # bytes: lines end at \n only, and a bad byte costs one line
                self._file = file
                self._refuse_other_formats(file.peek(8)[:8])
                if file.peek(3)[:3] == _MARK:
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
        return f"{self.path.name}:{self._number}:{_find(self._raw.decode(), keys) + 1}"

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

    def fingerprint(self) -> str:
        """Return the SHA-256 of the file's bytes."""
        return _sha256(self.path)

    def _refuse_other_formats(self, head: bytes) -> None:
        for signature, (what, advice) in _SIGNATURES.items():
            if head.startswith(signature):
                raise DataError(f"{self.path} is {what}; expected UTF-8 text, one JSON object per line", advice=advice)
        if b"\0" in head[:4]:
            advice = "If it is UTF-16, save it as UTF-8: iconv -f UTF-16LE -t UTF-8 OLD > NEW.jsonl"
            what = "begins with NUL bytes, as UTF-16 without a mark and binary files do"
            raise DataError(f"{self.path} {what}; expected UTF-8 text, one JSON object per line", advice=advice)


class _RefusedError(ValueError):
    """Something that JSON readers take and this one does not; where it stands is looked up afterwards."""


def _refuse_constant(name: str) -> None:
    raise _RefusedError(f"{name} is not a JSON number")


def _refuse_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        raise _RefusedError("a key appears twice")
    return result


_STRICT = json.JSONDecoder(parse_constant=_refuse_constant, object_pairs_hook=_refuse_repeats)


def parse_json(text: str) -> Any:
    """Return the value of a JSON text, read as strictly as rows are; raise ValueError if it cannot be."""
    try:
        return _STRICT.decode(text)
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
        return _find(line, ()), f"nested too deeply; {rule}", False
    column, what = _refused(line)
    return column, f"{what}; {rule}", False


_TOKENS = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|-?Infinity|NaN|-?\d[\d.eE+-]*|[{}\[\]:]')


def _refused(line: str) -> tuple[int, str]:
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
    return _find(line, ()), "not valid JSON"


def short(key: str) -> str:
    """Return a key in quotes, its end cut off if it is long."""
    return repr(key if len(key) <= 40 else key[:37] + "...")


def _spread(raw: bytes, file: BinaryIO) -> str:
    """Return what to say if the JSON value that begins in the line `raw` ends in a later one, and nothing if not."""
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


def _find(line: str, keys: Sequence[str | int]) -> int:
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


def _sha256(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from None


# ---------------------------------------------------------------------------------------------------------------------
# Tables


class _Table(Source):
    """Rows of Arrow tables, numbered from 1."""

    is_table = True

    def __init__(self, short_name: str) -> None:
        self.short_name = short_name
        self._number, self._total = 0, 0
        self._columns: list[str] = []

    @abstractmethod
    def _batches(self, wanted: Collection[str] | None) -> Iterator[Any]:
        """Set `_columns` and `_total` and yield batches, each with `to_pylist`, `column_names` and `column`."""

    @abstractmethod
    def _classes(self) -> dict[str, list[str]]:
        """Return the names of the classes of each column whose numbers stand for classes."""

    def rows(self, problems: list[str], wanted: Collection[str] | None = None) -> Iterator[Row]:
        """Yield (`set:row N`, row) for each good row and append a message to `problems` for each bad one."""
        self._number = 0
        meanings: dict[str, list[Any]] | None = None
        for batch in self._batches(wanted):
            if meanings is None:
                meanings = {name: _meanings(classes) for name, classes in self._classes().items()}
            for row, unreadable in _python_rows(batch):
                self._number += 1
                problems += [f"{self.place(name)}: {name!r} cannot be read: {why}" for name, why in unreadable]
                for name, values in meanings.items():
                    number = row.get(name)
                    if isinstance(number, int) and number < len(values):
                        row[name] = values[number] if number >= 0 else None  # -1 stands for no class
                if not unreadable:
                    yield self.place(), row

    def place(self, *keys: str | int) -> str:
        """Return `set:row N`."""
        return f"{self.short_name}:row {self._number}"

    @property
    def share(self) -> float:
        """Return the share of the rows."""
        return min(1.0, self._number / self._total) if self._total else 0.0

    def columns(self, row: Mapping[str, Any]) -> list[str]:
        """Return the names of all columns of the table."""
        return self._columns


def _meanings(classes: list[str]) -> list[Any]:
    """Return what the numbers of classes stand for: true and false where they are named so, 0 and 1, or the names."""
    lowered = [name.lower() for name in classes]
    if sorted(lowered) == ["false", "true"]:
        return [name == "true" for name in lowered]
    return [0, 1] if classes == ["0", "1"] else list(classes)


def _python_rows(batch: Any) -> Iterator[tuple[dict[str, Any], list[tuple[str, str]]]]:
    """Yield each row of a batch as a dict, with the columns that could not be read (bytes that are not UTF-8, say)."""
    try:
        rows = batch.to_pylist()
    except (ValueError, OverflowError):  # pyarrow's own errors are ValueErrors
        for number in range(batch.num_rows):
            row, unreadable = {}, []
            for name in batch.schema.names:
                try:
                    row[name] = batch.column(name)[number].as_py()
                except (ValueError, OverflowError) as error:
                    unreadable.append((name, _summary(error, 120)))
            yield row, unreadable
    else:
        for row in rows:
            yield row, []


class Parquet(_Table):
    """A parquet file on this machine."""

    def __init__(self, path: Path) -> None:
        super().__init__(path.name)
        self.path, self.name = path, str(path)
        self._metadata: Mapping[bytes, bytes] = {}

    def fingerprint(self) -> str:
        """Return the SHA-256 of the file's bytes."""
        return _sha256(self.path)

    def _batches(self, wanted: Collection[str] | None) -> Iterator[Any]:
        try:
            import pyarrow.parquet
        except ImportError:
            raise DataError(f"{self.path}: parquet files need the package pyarrow: {INSTALL}") from None
        try:
            with pyarrow.parquet.ParquetFile(self.path, page_checksum_verification=True) as file:
                self._columns, self._metadata = file.schema_arrow.names, file.schema_arrow.metadata or {}
                self._total = file.metadata.num_rows
                twice = next((name for name in self._columns if self._columns.count(name) > 1), None)
                if twice is not None:
                    raise DataError(f"{self.path} has two columns {twice!r}; expected each name once")
                columns = None if wanted is None else [name for name in self._columns if name in wanted]
                if columns == []:  # of no column pyarrow would yield no row
                    columns = self._columns[:1]
                yield from file.iter_batches(batch_size=_BATCH, columns=columns)
        except DataError:
            raise
        except (OSError, ValueError, pyarrow.ArrowException) as error:
            after = f" after row {self._number}" if self._number else ""
            raise DataError(f"{self.path} cannot be read as parquet{after}: {_summary(error)}") from None

    def _classes(self) -> dict[str, list[str]]:
        """Return the classes that `datasets` noted in the file's metadata."""
        try:
            features = json.loads(self._metadata[b"huggingface"])["info"]["features"]
            return {
                name: [str(one) for one in feature["names"]]
                for name, feature in features.items()
                if feature.get("_type") == "ClassLabel"
            }
        except (KeyError, TypeError, AttributeError, ValueError):
            return {}


@dataclass(frozen=True, slots=True)
class HubName:
    """A set of the hub, taken apart."""

    repository: str
    subset: str | None
    revision: str | None
    split: str


_WORD = r"[A-Za-z0-9_](?:[A-Za-z0-9._-]*[A-Za-z0-9_])?"
_HUB = re.compile(rf"hub:({_WORD}/{_WORD})(?:/([^/@#\s]+))?(?:@([^@#\s]+))?(?:#([A-Za-z0-9_.-]+))?")


class HubSet(_Table):
    """One split of a set on the Hugging Face hub, by the library `datasets`; it keeps what it fetched in its cache.

    Notes
    -----
    Without a connection `datasets` takes what its cache holds, whatever the revision. A commit of 40 digits is checked
    against what was read; a branch or tag cannot be, so pin a commit where a run must be repeatable.
    """

    def __init__(self, parts: HubName) -> None:
        subset = f"/{parts.subset}" if parts.subset else ""
        super().__init__(f"{parts.repository}{subset}#{parts.split}")
        revision = f"@{parts.revision}" if parts.revision else ""
        self.parts, self.name = parts, f"hub:{parts.repository}{subset}{revision}#{parts.split}"

    @classmethod
    def parse(cls, given: str) -> HubSet:
        """Return the set that a name stands for; raise DataError unless it follows the grammar."""
        match = _HUB.fullmatch(given)
        if match is None:
            raise DataError(f"{given!r} must be written {GRAMMAR}, for example hub:trl-lib/tldr#validation")
        repository, subset, revision, split = match.groups()
        return cls(HubName(repository, subset, revision, split or "train"))

    def fingerprint(self) -> str:
        """Return the commit, where it is known, and the fingerprint that `datasets` gives."""
        loaded = self._load()
        commit = _commit(loaded)
        return f"{commit}:{loaded._fingerprint}" if commit else str(loaded._fingerprint)

    def _load(self) -> Any:
        return _load_hub_set(self.parts, self.name)

    def _batches(self, wanted: Collection[str] | None) -> Iterator[Any]:
        loaded = self._load()
        self._columns, self._total = list(loaded.column_names), len(loaded)
        columns = None if wanted is None else [name for name in self._columns if name in wanted]
        table = loaded.with_format("arrow", columns=columns or self._columns[:1] if columns is not None else None)
        yield from table.iter(batch_size=_BATCH)

    def _classes(self) -> dict[str, list[str]]:
        features = self._load().features
        return {name: list(f.names) for name, f in features.items() if type(f).__name__ == "ClassLabel"}


@functools.cache  # one version for the whole process, whatever happens on the hub between two reads
def _load_hub_set(parts: HubName, name: str) -> Any:
    try:
        import datasets
    except ImportError:
        raise DataError(f"{name}: sets of the hub need the package datasets: {INSTALL}") from None
    page = f"https://huggingface.co/datasets/{parts.repository}"
    try:
        with _no_progress_bars():
            # hf:// keeps `datasets` from taking a folder of that name in the current directory.
            loaded = datasets.load_dataset(
                f"hf://datasets/{parts.repository}", parts.subset, split=parts.split, revision=parts.revision
            )
    except MemoryError:
        raise
    except Exception as error:  # hub, network, parsers of many formats: each with exceptions of its own
        what = _summary(error)
        if "gated" in what.lower():
            advice = f"Ask for access at {page} and log in: hf auth login"
        elif isinstance(error, datasets.exceptions.DatasetNotFoundError):
            advice = f"Check the name at {page}; a private set needs a login: hf auth login"
        elif isinstance(error, ConnectionError) or "offline" in what.lower():
            advice = "It is not in the cache either. Fetch it where there is a network, or name a local file."
        else:
            advice = f"See {page}; sets of the hub are written {GRAMMAR}."
        raise DataError(f"{name} cannot be loaded: {what}", advice=advice) from None
    commit = _commit(loaded)
    if commit and re.fullmatch(r"[0-9a-f]{40}", parts.revision or "") and commit != parts.revision:
        raise DataError(
            f"{name} cannot be loaded: the hub was not reached, and the cache holds commit {commit}",
            advice="Fetch the commit where there is a network, or name the one that is there.",
        )
    return loaded


def _commit(loaded: Any) -> str | None:
    """Return the commit that a set of the hub was read at: `datasets` names its cache folder by it."""
    folders = {Path(file["filename"]).parent.name for file in loaded.cache_files}
    return folders.pop() if len(folders) == 1 and re.fullmatch(r"[0-9a-f]{40}", min(folders)) else None


@contextlib.contextmanager
def _no_progress_bars() -> Iterator[None]:
    """Keep `datasets` and `huggingface_hub` from drawing progress bars, and leave both as they were."""
    import datasets
    import huggingface_hub.utils

    hub: Any = huggingface_hub.utils
    drawing = [
        (module, on)
        for module, off, on in (
            (datasets, datasets.are_progress_bars_disabled(), datasets.enable_progress_bars),
            (hub, hub.are_progress_bars_disabled(), hub.enable_progress_bars),
        )
        if not off
    ]
    for module, _ in drawing:
        module.disable_progress_bars()
    try:
        yield
    finally:
        for _, enable in drawing:
            enable()


def _summary(error: BaseException, limit: int = 300) -> str:
    """Return an error's message, and its cause's where it has one, as one line."""
    parts = [str(error) or type(error).__name__, *([str(error.__cause__)] if error.__cause__ is not None else [])]
    text = " ".join(": ".join(dict.fromkeys(parts)).split())
    return text if len(text) <= limit else text[: limit - 3] + "..."
