"""All rows of a set -> examples, with every problem of the set and with the columns that were read and were not.

Departures from common readers: all problems of a set are found before anything is raised, each with its place; no
column and no key of a message is dropped without a word. How one row becomes an example is in `row.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, get_args

from humanline._checks import one_of, refuse_twice
from humanline.train.data.bad_rows import BadRows, counted_bad
from humanline.train.data.counting import Counting, uncounted
from humanline.train.data.json_lines import listed, short
from humanline.train.data.messages import KWARGS, TOOLS
from humanline.train.data.reading import Reading
from humanline.train.data.row import ALIASES, BUILDERS, OUTPUT, SIDES, RowReader
from humanline.train.data.shapes import Example, Shape
from humanline.train.data.source import DataError
from humanline.train.data.sources import open_source

if TYPE_CHECKING:  # which takes numpy
    from humanline.train.config.data import DataConfig

_COLUMNS: dict[str, tuple[str, ...]] = {
    "preference": ("prompt", "chosen", "rejected", *ALIASES, TOOLS, KWARGS),
    "unpaired": ("prompt", "completion", "messages", "label", TOOLS, KWARGS),
    "completion": ("prompt", "completion", "messages", "chosen", "label", "rejected", *ALIASES, TOOLS, KWARGS),
}
_SYSTEM = "system"  # a column of every shape, read only where `columns` names it
_ALSO = {"preference": (*SIDES, "label"), "unpaired": (OUTPUT,)}  # read where there are no columns of our names
_NEEDED = ("role", "content", "prompt", "completion", "messages", "chosen", "rejected", "label")  # not to be ignored
_RIGHT_ROW = {
    "preference": '{"prompt": "What is 2+2?", "chosen": "4", "rejected": "5"}',
    "unpaired": '{"prompt": "What is 2+2?", "completion": "4", "label": true}',
    "completion": '{"prompt": "What is 2+2?", "completion": "4"}',
    "prompt": '{"prompt": "What is 2+2?", "answer": "4"}',
}
_COUNTED = 500  # rows between two looks at how far reading is


@dataclass(frozen=True, slots=True)
class Columns:
    """Which columns of a set, and which keys of its messages beside role and content, were read and which were not."""

    read: tuple[str, ...]
    ignored: tuple[str, ...]
    keys_read: tuple[str, ...] = ()
    keys_ignored: tuple[str, ...] = ()
    nowhere: tuple[str, ...] = ()  # names to be ignored that are neither: misspelt, or of another set
    offered: bool = False  # whether a function that may be given all columns of the data may read those ignored

    def also_read(self, names: Collection[str], columns: Mapping[str, str], *, offered: bool = False) -> Columns:
        """Return the same where `names`, which are ours, are read too, and the rest is `offered` to a reward or not."""
        more = {columns.get(name, name) for name in names} & {*self.ignored}
        ignored = tuple(name for name in self.ignored if name not in more)
        return replace(self, read=(*self.read, *sorted(more)), ignored=ignored, offered=offered)

    def __str__(self) -> str:
        keys = "".join(
            f"; keys of messages {what}: {', '.join(map(short, names))}"
            for what, names in (("read", self.keys_read), ("ignored", self.keys_ignored))
            if names
        )
        ignored = ", ".join(map(short, self.ignored)) or "none"
        if _SYSTEM in self.ignored:
            ignored += " (columns: {system: system} puts it before the prompt)"
        if self.ignored and self.offered:
            ignored += " (but by function rewards of TRL's form, which are given all that they take)"
        nowhere = (
            f"; data.ignore names what is not there: {', '.join(map(short, self.nowhere))}" if self.nowhere else ""
        )
        return f"read: {', '.join(map(short, self.read))}; ignored: {ignored}{keys}{nowhere}"


def read_rows(
    source: str | Path,
    shape: Shape,
    *,
    columns: Mapping[str, str] | None = None,
    ignore: Collection[str] = (),
    how: Reading | None = None,
) -> list[Example]:
    """Return the examples of `read_set` alone."""
    return read_set(source, shape, columns=columns, ignore=ignore, how=how)[0]


def read_set(
    source: str | Path,
    shape: Shape,
    *,
    columns: Mapping[str, str] | None = None,
    ignore: Collection[str] = (),
    how: Reading | None = None,
) -> tuple[list[Example], Columns]:
    """Read a set strictly into examples of one shape.

    Parameters
    ----------
    source : str or Path
        A .jsonl or .ndjson file (UTF-8, one JSON object per line), a .json file (the same, or one list of objects,
        whose text is in memory as a whole), a .parquet file, or a set of the hub as
        `hub:ORG/NAME[/SUBSET][@REVISION][#SPLIT]`, of which the split `train` is the default. Only the last may touch
        the network. In the last two a null in an optional column stands for a value that is absent.
    shape : "preference", "unpaired", "completion" or "prompt"
        "preference": `chosen` and `rejected`, with `prompt` or the prompt as their common beginning: of message lists
        by turns, of texts up to the last turn mark of HH-RLHF in it, and else to its last white space; optional finite
        scores `chosen_score` >= `rejected_score` (or `score_chosen`, `score_rejected`). Or `output_A` and `output_B`
        with a `label`, 1 where the first is better, and `reward_A` and `reward_B`.
        "unpaired": `prompt` and `completion` (or `output`), or `messages`, with a `label` of true or false (or 1, 0).
        "completion": the same without a label, or a preference row, of which `chosen` is used.
        "prompt": `prompt`; every other column is kept in `extra`.
        Texts are strings or lists of {"role", "content"}; other keys of a message are kept for the chat template, but
        for those that are null or empty. Answers given as lists may repeat the prompt. Only the last assistant turn is
        the answer, the turns before it are prompt. Every shape has two optional columns for the chat template: `tools`,
        a list of objects, and `chat_template_kwargs`, an object; either may be JSON text.
    columns : mapping or None
        Our name -> the file's name, for columns called differently; with "prompt", also names inside `extra`. Under
        `system` it may name a column whose text is put before the prompt as the system's turn.
    ignore : collection of str
        Columns, by the file's name, and keys of messages that are left out.
    how : Reading, optional

    Returns
    -------
    examples : list of Preference, Unpaired ("unpaired", "completion") or PromptOnly
    columns : Columns
        Of "prompt", those in `extra` that are neither tools nor arguments of the template count as ignored: who reads
        them is not known here.

    Raises
    ------
    FileNotFoundError
        If `source` is not a file.
    ValueError
        If `shape` is unknown, `columns` names a column that the shape does not have or one of the file's twice, or
        `ignore` names what every row needs.
    DataError
        If the source cannot be read, has no rows, or any row breaks a rule; `problems` holds every problem. Where bad
        rows are dropped: if there are more than may be, or what comes after one cannot be read.
    """
    reader = SetReader(source, shape, columns=columns, ignore=ignore, how=how)
    return list(reader), reader.columns


class SetReader:
    """The examples of a set one after the other, so that not all of them need to be in memory at once.

    Parameters
    ----------
    source, shape, columns, ignore, how
        As in `read_set`.
    counting : Counting
        Shown how far reading is.

    Raises
    ------
    FileNotFoundError, ValueError, DataError
        As `read_set`: for what can be seen before a row is read at once, for the rows at the end of the iteration.

    Notes
    -----
    After the first bad row no further example is given, since none could be used: the other rows are only checked.
    Where bad rows are dropped the others are all given, and that they were too many is raised at the end.
    """

    def __init__(
        self,
        source: str | Path,
        shape: Shape,
        *,
        columns: Mapping[str, str] | None = None,
        ignore: Collection[str] = (),
        how: Reading | None = None,
        counting: Counting = uncounted,
    ) -> None:
        one_of("shape", shape, get_args(Shape))
        columns = dict(columns or {})
        known = _COLUMNS.get(shape, ())
        unknown = [name for name in columns if known and name not in (*known, _SYSTEM)]
        if unknown:
            raise ValueError(
                f"columns must map our names for shape {shape!r} ({', '.join((*known, _SYSTEM))}) to the file's; "
                f"got {', '.join(map(repr, unknown))}"
            )
        refuse_twice(columns)
        for name, theirs in columns.items():
            if theirs not in columns and _both(shape, name, theirs):
                raise ValueError(
                    f"columns: {theirs!r} would be read twice, as {name!r} and under its own name; say in columns what "
                    f"{theirs!r} is called"
                )
        needed = [name for name in ignore if name in _NEEDED or name in columns.values()]
        if needed:
            raise ValueError(f"ignore must name what a row can do without; got {', '.join(map(repr, needed))}")
        self.source = open_source(source)
        self._shape, self._renamed, self._ignore, self._counting = shape, columns, ignore, counting
        self._wanted = {*known, *ALIASES.values(), *columns.values(), *_ALSO.get(shape, ())} if known else None
        self._columns: Columns | None = None
        self._how = how or Reading()
        self.marked = 0
        """Rows whose prompt is a text with the turn marks of HH-RLHF."""
        self._dropped: Sequence[str] = ()
        self._first: Sequence[str] = ()  # problem of each bad row
        self._right = 0
        self.there: tuple[str, ...] = ()
        """The columns of the rows that were read so far, by the file's names."""

    @classmethod
    def of(cls, data: DataConfig, source: str | Path, shape: Shape, counting: Counting = uncounted) -> Self:
        """Return the reader of a set as the section data of a recipe says; raise as the class does."""
        how = Reading.of(data)
        return cls(source, shape, columns=data.columns, ignore=data.ignore, how=how, counting=counting)

    @property
    def columns(self) -> Columns:
        """Return which columns were read; known once all rows were."""
        if self._columns is None:
            raise RuntimeError("the columns of a set are known once all of its rows were read")
        return self._columns

    @property
    def dropping(self) -> bool:
        """Return whether bad rows are dropped."""
        return self._how.bad_rows == "drop"

    def left_out(self, unrendered: Collection[str] = (), advice: str = "") -> BadRows | None:
        """Return the rows that were left out, with those of which `unrendered` holds what is wrong with them.

        Raises
        ------
        DataError
            If they are more than may be.
        """
        problems, first = [*self._dropped, *unrendered], [*self._first, *unrendered]  # of those, one a row
        right = self._right - len(unrendered)
        return counted_bad(problems, first, right, self._how.bad_rows_limit, self.source.name, advice)

    def __iter__(self) -> Generator[Any, None, None]:
        """Read from the beginning and yield examples."""
        with self._counting(self.source.short_name) as count:
            yield from self._examples(count)

    def _examples(self, count: Callable[[int, float], None]) -> Iterator[Example]:
        source, columns, problems = self.source, self._renamed, list[str]()
        build, there, seen = BUILDERS[self._shape], dict[str, None](), dict[str, None]().keys()  # there: in order
        row = RowReader("", {}, columns, problems, source, self._ignore, set(), set(), set(), self._how)
        right = rows = 0
        broken = False
        first: list[str] = []
        seen_problems = 0
        for name, values in source.rows(problems, self._wanted):
            first += problems[seen_problems:]  # of the source itself, which has one for each row that it cannot give
            row.name, row.values = name, values
            rows += 1
            if not rows % _COUNTED:
                count(rows, source.share)
            if values.keys() != seen or not seen:  # as a set: most rows have the columns of the one before
                there |= dict.fromkeys(source.columns(values))
                seen, self.there = values.keys(), tuple(there)
            before = len(problems)
            missing = [theirs for theirs in columns.values() if theirs not in values] if columns else ()
            for theirs in missing:
                expected = f"it among the row's columns: {listed(source.columns(values))}"
                row.wrong(f"no column {theirs!r} (named in columns)", expected)
            example = None if missing else build(row)
            if example is not None and len(problems) == before:
                right += 1
                if self.dropping or not problems:
                    yield example
            first += problems[before : before + 1]
            seen_problems = len(problems)
            if source.is_table and (missing or row.lacks_column):
                broken = True
                break  # as does every other row
        count(rows, 1.0)
        if row.cut and row.asked:
            raise DataError(
                f"{source.name}: {len(row.cut)} rows have no prompt, and {row.asked} behind them have one",
                [f"{name}: no column 'prompt'" for name in row.cut],
                "Where no row has a prompt, it is what both answers begin with; where some have one, it is missing in "
                "the others. Give all of them one, or none.",
            )
        self.marked, self._first = row.marked, [*first, *problems[seen_problems:]]
        self._refuse(problems, right, broken or source.broken)
        self._columns = Columns(
            read=tuple(name for name in there if name in row.used),
            ignored=tuple(name for name in there if name not in row.used),
            keys_read=tuple(sorted(row.keys)),
            keys_ignored=tuple(sorted(row.left_out)),
            nowhere=tuple(name for name in self._ignore if name not in there and name not in row.left_out),
        )

    def _refuse(self, problems: Sequence[str], right: int, broken: bool) -> None:
        """Raise DataError if the set cannot be used; count its bad rows where they are dropped."""
        advice = f"A right row of shape {self._shape!r}: {_RIGHT_ROW[self._shape]}"
        if problems and (not self.dropping or broken):
            found = f"{len(problems)} problem{'s' if len(problems) > 1 else ''}"
            found += ", after which nothing can be read" if broken and self.dropping else ""
            raise DataError(f"{self.source.name}: {found}, {right} right rows", problems, advice)
        self._dropped, self._right = problems, right
        self.left_out((), advice)
        if not right:
            expected = "" if self.source.is_table else "; expected one JSON object per line"
            raise DataError(f"{self.source.name} has no rows{expected}", advice=advice)


def _both(shape: Shape, name: str, theirs: str) -> bool:
    """Return whether a column read as `name` would also be read under its own name, as something else."""
    if shape == "prompt":
        return theirs == "prompt"
    answers = ("completion", "messages", "chosen") if shape == "completion" else ()  # of which the first is read
    known = (*_COLUMNS[shape], *ALIASES.values())
    return theirs in known and theirs != name and not {name, theirs} <= {*answers} and ALIASES.get(name) != theirs
