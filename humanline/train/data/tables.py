"""Rows from tables: parquet files, and sets of the Hugging Face hub.

Parquet is read by pyarrow, which `datasets` stands on, batch by batch: `datasets` itself would first write a copy of
the file to its cache. No code of a data set is run.
"""

from __future__ import annotations

import contextlib
import functools
import json
import re
from abc import abstractmethod
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from humanline.system.install import install
from humanline.train.data.json_lines import JSON_MARK, SIGNATURES
from humanline.train.data.reach import ask_hub, from_cache_alone, is_out_of_reach
from humanline.train.data.source import GRAMMAR, DataError, Row, Source

_BATCH = 1000  # rows of a table that are Python objects at a time


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
                if unreadable:  # one problem a row, however many of its columns: that is how bad rows are counted
                    what = "; ".join(f"{name!r} cannot be read: {why}" for name, why in unreadable)
                    problems.append(f"{self.place()}: {what}")
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
    """Return the values that the numbers of classes stand for: true and false, 0 and 1, or else the names."""
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

    def _batches(self, wanted: Collection[str] | None) -> Iterator[Any]:
        try:
            import pyarrow.parquet
        except ImportError:
            raise DataError(f"{self.path}: parquet files need the package pyarrow: {install('train')}") from None
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
            what, advice = f"{self.path} cannot be read as parquet{after}: {_summary(error)}", self._other_kind()
            raise DataError(what, advice=advice) from None

    def _other_kind(self) -> str:
        """Return what to do about a file that begins as another kind does; nothing where it begins as parquet."""
        try:
            with self.path.open("rb") as file:
                head = file.read(64).removeprefix(JSON_MARK).lstrip()
        except OSError:
            return ""
        if head[:1] in (b"{", b"["):
            return f"It begins as JSON does: give it the ending {'.jsonl' if head[:1] == b'{' else '.json'}."
        kinds = ((name, advice) for mark, (name, advice) in SIGNATURES.items() if head.startswith(mark))
        name, advice = next(kinds, ("", ""))
        return f"It is {name}. {advice.replace('NEW.jsonl', 'NEW.parquet')}" if "archive" in name else ""

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


_NOT_CACHED = "It is not in the cache either. Fetch it where there is a network, or name a local file."
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
        raise DataError(f"{name}: sets of the hub need the package datasets: {install('train')}") from None
    page = f"https://huggingface.co/datasets/{parts.repository}"
    answer = ask_hub(parts.repository, "README.md", "dataset")
    out_of_reach = is_out_of_reach(answer)
    try:
        with no_progress_bars(), from_cache_alone() if out_of_reach else contextlib.nullcontext():
            # hf:// keeps `datasets` from taking a folder of that name in the current directory.
            loaded = datasets.load_dataset(
                f"hf://datasets/{parts.repository}", parts.subset, split=parts.split, revision=parts.revision
            )
    except MemoryError:
        raise
    except Exception as error:  # hub, network, parsers of many formats: each with exceptions of its own
        what = _summary(error)
        if answer is not None and out_of_reach and isinstance(error, ConnectionError):
            what = f"the hub cannot be reached ({type(answer).__name__}: {_summary(answer, 200)})"
            advice = _NOT_CACHED
        elif "gated" in what.lower():
            advice = f"Ask for access at {page} and log in: hf auth login"
        elif isinstance(error, datasets.exceptions.DatasetNotFoundError):
            advice = f"Check the name at {page}; a private set needs a login: hf auth login"
        elif isinstance(error, ConnectionError) or "offline" in what.lower():
            advice = _NOT_CACHED
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
def no_progress_bars() -> Iterator[None]:
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
