"""Rows -> examples.

An example keeps its prompt as a tuple of messages and every answer as one assistant turn, a text or a message, whatever
the row looked like: strings, message lists or a mix. A plain string prompt is one user message. An example is never
changed after it was read; rendering and cutting happen in `tokens.py`, on token ids. Where rows come from is in
`sources.py`.

Departures from common readers: all problems of a set are found before anything is raised, each with its place; blank
texts, labels that are not true or false and non-finite scores are problems, not values; nothing is trained in a turn
that is not the last assistant turn; no key of a message is dropped unless it is named, and which columns were not read
is told.
"""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar, get_args

from humanline._checks import one_of
from humanline.train.counting import Counting, uncounted
from humanline.train.messages import KWARGS, NOTHING, TOOLS, is_empty, to_json, without_nulls
from humanline.train.messages import Answer as Answer
from humanline.train.messages import Given as Given
from humanline.train.messages import Message as Message
from humanline.train.messages import Messages as Messages
from humanline.train.sources import SHOWN as SHOWN
from humanline.train.sources import DataError as DataError
from humanline.train.sources import Source, kind, open_source, parse_json, short
from humanline.train.sources import existing_file as existing_file
from humanline.train.sources import json_lines as json_lines

T = TypeVar("T")
Shape = Literal["preference", "unpaired", "completion", "prompt"]
ROLES = ("system", "user", "assistant", "tool", "developer")
INSTRUCTING = ("system", "developer")  # they may stand before a prompt, and be empty


@dataclass(frozen=True, slots=True)
class Preference:
    """Two answers to one prompt, the first preferred."""

    id: str
    prompt: Messages
    chosen: Answer
    rejected: Answer
    chosen_score: float | None = None
    rejected_score: float | None = None
    given: Given = NOTHING


@dataclass(frozen=True, slots=True)
class Unpaired:
    """One answer, desirable (True), undesirable (False) or, for next-token training, without a label (None)."""

    id: str
    prompt: Messages
    completion: Answer
    label: bool | None = None
    given: Given = NOTHING


@dataclass(frozen=True, slots=True)
class PromptOnly:
    """A prompt to sample from, with the row's other columns (a reference answer, for example, or its tools)."""

    id: str
    prompt: Messages
    extra: dict[str, Any]
    given: Given = NOTHING


@dataclass(frozen=True, slots=True)
class Group:
    """Several answers to one prompt, one score each; higher is better."""

    id: str
    prompt: Messages
    completions: tuple[Answer, ...]
    scores: tuple[float, ...]
    given: Given = NOTHING


Example: TypeAlias = Preference | Unpaired | PromptOnly | Group


# ---------------------------------------------------------------------------------------------------------------------
# Rows to examples

_ALIASES = {"chosen_score": "score_chosen", "rejected_score": "score_rejected"}
_COLUMNS: dict[str, tuple[str, ...]] = {
    "preference": ("prompt", "chosen", "rejected", *_ALIASES, TOOLS, KWARGS),
    "unpaired": ("prompt", "completion", "messages", "label", TOOLS, KWARGS),
    "completion": ("prompt", "completion", "messages", "chosen", "label", "rejected", *_ALIASES, TOOLS, KWARGS),
}
_NEEDED = ("role", "content", "prompt", "completion", "messages", "chosen", "rejected", "label")  # not to be ignored
_RIGHT_ROW = {
    "preference": '{"prompt": "What is 2+2?", "chosen": "4", "rejected": "5"}',
    "unpaired": '{"prompt": "What is 2+2?", "completion": "4", "label": true}',
    "completion": '{"prompt": "What is 2+2?", "completion": "4"}',
    "prompt": '{"prompt": "What is 2+2?", "answer": "4"}',
}
_TEXT = "a string or a list of messages"
_COUNTED = 500  # rows between two looks at how far reading is


@dataclass(frozen=True, slots=True)
class Columns:
    """Which columns of a set, and which keys of its messages beside role and content, were read and which were not."""

    read: tuple[str, ...]
    ignored: tuple[str, ...]
    keys_read: tuple[str, ...] = ()
    keys_ignored: tuple[str, ...] = ()
    nowhere: tuple[str, ...] = ()  # names to be ignored that are neither: misspelt, or of another set

    def also_read(self, names: Collection[str], columns: Mapping[str, str]) -> Columns:
        """Return the same where `names`, which are ours, are read too."""
        more = {columns.get(name, name) for name in names} & {*self.ignored}
        ignored = tuple(name for name in self.ignored if name not in more)
        return replace(self, read=(*self.read, *sorted(more)), ignored=ignored)

    def __str__(self) -> str:
        keys = "".join(
            f"; keys of messages {what}: {', '.join(map(short, names))}"
            for what, names in (("read", self.keys_read), ("ignored", self.keys_ignored))
            if names
        )
        ignored = ", ".join(map(short, self.ignored)) or "none"
        nowhere = (
            f"; data.ignore names what is not there: {', '.join(map(short, self.nowhere))}" if self.nowhere else ""
        )
        return f"read: {', '.join(map(short, self.read))}; ignored: {ignored}{keys}{nowhere}"


def read_rows(
    source: str | Path, shape: Shape, *, columns: Mapping[str, str] | None = None, ignore: Collection[str] = ()
) -> list[Example]:
    """Return the examples of `read_set` alone."""
    return read_set(source, shape, columns=columns, ignore=ignore)[0]


def read_set(
    source: str | Path, shape: Shape, *, columns: Mapping[str, str] | None = None, ignore: Collection[str] = ()
) -> tuple[list[Example], Columns]:
    """Read a set strictly into examples of one shape.

    Parameters
    ----------
    source : str or Path
        A .jsonl or .ndjson file (UTF-8, one JSON object per line), a .parquet file, or a set of the hub as
        `hub:ORG/NAME[/SUBSET][@REVISION][#SPLIT]`, of which the split `train` is the default. Only the last may touch
        the network. In the last two a null in an optional column stands for a value that is absent.
    shape : "preference", "unpaired", "completion" or "prompt"
        "preference": `chosen` and `rejected`, with `prompt` or, for message lists, the prompt as their common
        beginning; optional finite scores `chosen_score` >= `rejected_score` (or `score_chosen`, `score_rejected`).
        "unpaired": `prompt` and `completion`, or `messages`, with a `label` of true or false (or 1, 0).
        "completion": the same without a label, or a preference row, of which `chosen` is used.
        "prompt": `prompt`; every other column is kept in `extra`.
        Texts are strings or lists of {"role", "content"}; other keys of a message are kept for the chat template, but
        for those that are null or empty. Answers given as lists may repeat the prompt. Only the last assistant turn is
        the answer, the turns before it are prompt. Every shape has two optional columns for the chat template: `tools`,
        a list of objects, and `chat_template_kwargs`, an object; either may be JSON text.
    columns : mapping or None
        Our name -> the file's name, for columns called differently; with "prompt", also names inside `extra`.
    ignore : collection of str
        Columns, by the file's name, and keys of messages that are left out.

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
        If the source cannot be read, has no rows, or any row breaks a rule; `problems` holds every problem.
    """
    reader = SetReader(source, shape, columns=columns, ignore=ignore)
    return list(reader), reader.columns


class SetReader:
    """The examples of a set one after the other, so that not all of them need to be in memory at once.

    Parameters
    ----------
    source, shape, columns, ignore
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
    """

    def __init__(
        self,
        source: str | Path,
        shape: Shape,
        *,
        columns: Mapping[str, str] | None = None,
        ignore: Collection[str] = (),
        counting: Counting = uncounted,
    ) -> None:
        one_of("shape", shape, get_args(Shape))
        columns = dict(columns or {})
        known = _COLUMNS.get(shape, ())
        unknown = [name for name in columns if known and name not in known]
        if unknown:
            raise ValueError(
                f"columns must map our names for shape {shape!r} ({', '.join(known)}) to the file's; "
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
        self._wanted = {*known, *_ALIASES.values(), *columns.values()} if known else None
        self._columns: Columns | None = None

    @property
    def columns(self) -> Columns:
        """Return which columns were read; known once all rows were."""
        if self._columns is None:
            raise RuntimeError("the columns of a set are known once all of its rows were read")
        return self._columns

    def __iter__(self) -> Generator[Any, None, None]:
        """Read from the beginning and yield examples."""
        with self._counting(self.source.short_name) as count:
            yield from self._examples(count)

    def _examples(self, count: Callable[[int, float], None]) -> Iterator[Example]:
        source, columns, problems = self.source, self._renamed, list[str]()
        build, there, seen = _BUILDERS[self._shape], dict[str, None](), dict[str, None]().keys()  # there: in order
        row = _Row("", {}, columns, problems, source, self._ignore, set(), set(), set())
        right = rows = 0
        for name, values in source.rows(problems, self._wanted):
            row.name, row.values = name, values
            rows += 1
            if not rows % _COUNTED:
                count(rows, source.share)
            if values.keys() != seen or not seen:  # as a set: most rows have the columns of the one before
                there |= dict.fromkeys(source.columns(values))
                seen = values.keys()
            before = len(problems)
            missing = [theirs for theirs in columns.values() if theirs not in values] if columns else ()
            for theirs in missing:
                expected = f"it among the row's columns: {_names(source.columns(values))}"
                row.wrong(f"no column {theirs!r} (named in columns)", expected)
            example = None if missing else build(row)
            if example is not None and len(problems) == before:
                right += 1
                if not problems:
                    yield example
            if source.is_table and (missing or row.lacks_column):
                break  # as does every other row
        count(rows, 1.0)
        advice = f"A right row of shape {self._shape!r}: {_RIGHT_ROW[self._shape]}"
        if problems:
            found = f"{len(problems)} problem{'s' if len(problems) > 1 else ''}"
            raise DataError(f"{source.name}: {found}, {right} right rows", problems, advice)
        if not right:
            expected = "" if source.is_table else "; expected one JSON object per line"
            raise DataError(f"{source.name} has no rows{expected}", advice=advice)
        self._columns = Columns(
            read=tuple(name for name in there if name in row.used),
            ignored=tuple(name for name in there if name not in row.used),
            keys_read=tuple(sorted(row.keys)),
            keys_ignored=tuple(sorted(row.left_out)),
            nowhere=tuple(name for name in self._ignore if name not in there and name not in row.left_out),
        )


def refuse_twice(columns: Mapping[str, str]) -> None:
    """Raise ValueError if two of our names stand for one of the file's columns."""
    for theirs in columns.values():
        ours = [name for name, other in columns.items() if other == theirs]
        if len(ours) > 1:
            raise ValueError(f"columns names the file's {theirs!r} twice, as {' and '.join(map(repr, ours))}")


def _both(shape: Shape, name: str, theirs: str) -> bool:
    """Return whether a column read as `name` would also be read under its own name, as something else."""
    if shape == "prompt":
        return theirs == "prompt"
    answers = ("completion", "messages", "chosen") if shape == "completion" else ()  # of which the first is read
    known = (*_COLUMNS[shape], *_ALIASES.values())
    return theirs in known and theirs != name and not {name, theirs} <= {*answers} and _ALIASES.get(name) != theirs


@dataclass(slots=True)
class _Row:
    """One row while it is read: every getter returns None after it has noted what is wrong, and where."""

    name: str
    values: dict[str, Any]
    columns: Mapping[str, str]
    problems: list[str]
    source: Source
    ignore: Collection[str]
    used: set[str]  # columns that were read, of this row and those before
    keys: set[str]  # of messages, the same
    left_out: set[str]  # keys that were ignored
    lacks_column: bool = False

    def wrong(self, what: str, expected: str, *at: str | int) -> T | None:
        """Note a problem of the value under the keys `at` and return None, typed so that any getter can return it."""
        self.problems.append(f"{self.source.place(*at)}: {what}; expected {expected}")
        return None

    def column(self, name: str) -> str:
        """Return what the file calls our column `name`."""
        if name in _ALIASES and name not in self.columns and not self._holds(name) and self._holds(_ALIASES[name]):
            return _ALIASES[name]
        return self.columns.get(name, name)

    def _holds(self, column: str) -> bool:
        return column in self.values and not (self.source.is_table and self.values[column] is None)

    def value(self, name: str) -> Any:
        """Return what our column `name` holds; it counts as read."""
        self.used.add(self.column(name))
        return self.values[self.column(name)]

    def has(self, name: str) -> bool:
        return self._holds(self.column(name))

    def missing(self, name: str, expected: str) -> T | None:
        column = self.column(name)
        if column in self.values:
            return self.wrong(f"{column!r} is null", expected, column)
        self.lacks_column = True
        hint = "" if name in self.columns else f" (or columns: {{{name}: its name}})"
        return self.wrong(f"no column {column!r} among {_names(self.source.columns(self.values))}", expected + hint)

    def plain(self, name: str) -> str | None:
        """Return a text column that is a good string; note nothing of any other."""
        column = self.columns.get(name, name)
        value = self.values.get(column)
        if not isinstance(value, str) or not value.strip() or not _encodable(value):
            return None
        self.used.add(column)
        return value

    def messages(self, name: str, role: str) -> Messages | None:
        """Return a text column as messages; a string is one message of `role`."""
        if not self.has(name):
            return self.missing(name, _TEXT)
        column = self.column(name)
        value = self.value(name)
        if isinstance(value, str):
            return (Message(role, value),) if self._good(value, f"{column!r}", False, column) else None
        if not isinstance(value, list) or not value:
            return self.wrong(f"{column!r} is {kind(value)}", _TEXT, column)
        turns = [self._message(turn, column, i) for i, turn in enumerate(value)]
        kept = tuple(turn for turn in turns if turn is not None)
        return kept if len(kept) == len(turns) else None

    def _message(self, turn: Any, column: str, number: int) -> Message | None:
        name = f"{column!r} message {number + 1}"
        keys = self._keys(turn, name, column, number) if isinstance(turn, dict) else {}
        if keys is None:
            return None
        calls = bool(keys.get("tool_calls")) and turn.get("role") == "assistant"  # what calls tools may say nothing
        if not isinstance(turn, dict) or not {"role", "content"} - ({"content"} if calls else set()) <= turn.keys():
            got = f"an object of the keys {_names(list(turn))}" if isinstance(turn, dict) else kind(turn)
            return self.wrong(f"{name} is {got}", 'a message {"role": ..., "content": ...}', column, number)
        role: Any = turn["role"]
        content: Any = turn.get("content")
        if role not in ROLES:
            what = f"{name} has the role {_shown(role)}"
            return self.wrong(what, f"one of {', '.join(ROLES)}", column, number, "role")
        content = "" if calls and content is None else content
        empty_ok = calls or role in (*INSTRUCTING, "tool")
        if not self._good(content, f"the content of {name}", empty_ok, column, number, "content"):
            return None
        if not keys and role in ("system", "user", "assistant"):
            return Message(role, content)
        return Message(role, content, to_json(keys) if keys else "", self.source.place(column, number))

    def _keys(self, turn: dict[str, Any], name: str, column: str, number: int) -> dict[str, Any] | None:
        """Return the keys of a message beside role and content that hold something and are not to be ignored."""
        found: dict[str, Any] = {}
        for key, given in turn.items():
            if key in self.ignore:
                self.left_out.add(key)
                continue
            value = without_nulls(given) if self.source.is_table else given
            if key in ("role", "content") or is_empty(value):
                continue
            at = (column, number, key)
            try:
                value = parse_json(value) if key == "tool_calls" and isinstance(value, str) else value
                to_json(value)
            except ValueError as error:
                return self.wrong(f"{short(key)} of {name}: {error}", "JSON", *at)
            if key == "tool_calls" and not (isinstance(value, list) and all(isinstance(one, dict) for one in value)):
                return self.wrong(f"{key!r} of {name} is {kind(value)}", "a list of objects", *at)
            found[key] = value
        self.keys.update(found)
        return found

    def given(self) -> Given | None:
        """Return what the row gives the chat template besides messages."""
        columns, places = {}, []
        for name in (TOOLS, KWARGS):
            column = self.columns.get(name, name)
            if column not in self.values:
                continue
            taken = name not in self.columns and column in self.columns.values()  # read as something else
            if taken or not self.has(name) or column in self.ignore:
                continue
            value = self.value(name)
            columns[name] = without_nulls(value) if self.source.is_table else value
            try:
                if Given.of({name: columns[name]}) != NOTHING:
                    places.append(self.source.place(column))
            except ValueError as error:
                expected = "a list of objects" if name == TOOLS else "an object"
                what = str(error).replace(repr(name), repr(column), 1)
                return self.wrong(what, f"{expected}, or JSON text of one", column)
        return Given.of(columns, places[0]) if places else NOTHING

    def _good(self, text: Any, name: str, empty_ok: bool, *at: str | int) -> bool:
        if not isinstance(text, str):
            self.wrong(f"{name} is {kind(text)}", "a string", *at)
        elif not text.strip() and not empty_ok:
            self.wrong(f"{name} is {'blank' if text else 'empty'}", "some text", *at)
        elif not _encodable(text):
            self.wrong(f"{name} holds half a surrogate pair, which no tokenizer can read", "whole characters", *at)
        else:
            return True
        return False

    def score(self, name: str) -> float | None:
        column = self.column(name)
        value = self.value(name)
        if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
            return self.wrong(f"{column!r} is {kind(value)}", "a finite number", column)
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            return self.wrong(f"{column!r} is not finite", "a finite number", column)
        return number

    def label(self) -> bool | None:
        column = self.column("label")
        value = self.value("label")
        if not isinstance(value, int) or value not in (0, 1):
            return self.wrong(f"{column!r} is {_shown(value)}", "true or false", column)
        return bool(value)

    def conversation(self, prompt: Messages, answer: Messages, name: str) -> Messages | None:
        """Join a prompt and an answer that may repeat it."""
        column, given = self.column(name), self.column("prompt")
        if answer[-1].role != "assistant":
            return self.wrong(f"{column!r} ends with the {answer[-1].role}'s turn", "the assistant's", column)
        if answer[: len(prompt)] == prompt:
            return answer
        if answer[0].role == "assistant":
            return prompt + answer
        if answer[0].role in INSTRUCTING and answer[1 : len(prompt) + 1] == prompt:
            return answer
        what = f"{column!r} begins with other turns than {given!r}"
        return self.wrong(what, "the prompt's own turns, or the answer", column)

    def split(self, conversation: Messages, common: int, name: str) -> tuple[Messages, Answer] | None:
        """Split a conversation into `common` turns of prompt and one assistant turn."""
        column = self.column(name)
        prompt, rest = conversation[:common], conversation[common:]
        if len(rest) > 1:
            what = f"the two answers part {len(rest)} turns before the end of {column!r}"
            return self.wrong(what, "them to differ in their last turn only", column)
        if not prompt:
            return self.wrong(f"{column!r} has no turn before the answer, so there is no prompt", "a prompt", column)
        if prompt[-1].role == "assistant":
            return self.wrong(f"the turn before the answer in {column!r} is the assistant's too", "the user's", column)
        return prompt, rest[0] if rest[0].keys else rest[0].content


def _preference(row: _Row) -> Preference | None:
    texts = row.plain("prompt"), row.plain("chosen"), row.plain("rejected")
    if texts[0] is None or texts[1] is None or texts[2] is None or texts[1] == texts[2]:
        chosen, rejected = row.messages("chosen", "assistant"), row.messages("rejected", "assistant")
        lists = all(isinstance(row.values.get(row.column(name)), list) for name in ("chosen", "rejected"))
        prompt = () if lists and not row.has("prompt") else row.messages("prompt", "user")
    else:  # three strings, as most rows are: nothing can be wrong with how they go together
        chosen = rejected = ()
        prompt = (Message("user", texts[0]),)
    scores: list[float | None] = [None, None]
    present = [name for name in ("chosen_score", "rejected_score") if row.has(name)]
    if len(present) == 1:
        row.wrong(f"{row.column(present[0])!r} stands alone", "both scores or none", row.column(present[0]))
    elif present:
        scores = [row.score(name) for name in present]
        if scores[0] is not None and scores[1] is not None and scores[0] < scores[1]:
            what = f"the chosen score {scores[0]:g} is below the rejected one {scores[1]:g}"
            row.wrong(what, "chosen >= rejected", row.column("chosen_score"))
    given = row.given()
    if prompt is None or chosen is None or rejected is None or given is None:
        return None
    if not chosen and texts[1] is not None and texts[2] is not None:
        return Preference(row.name, prompt, texts[1], texts[2], scores[0], scores[1], given)
    first, second = row.conversation(prompt, chosen, "chosen"), row.conversation(prompt, rejected, "rejected")
    if first is None or second is None:
        return None
    if first == second:
        names = row.column("chosen"), row.column("rejected")
        return row.wrong(f"{names[0]!r} and {names[1]!r} are the same", "two answers", names[1])
    longest = min(len(first), len(second)) - 1  # at least one turn is left for each answer
    common = next((i for i in range(longest) if first[i] != second[i]), longest)
    if not common:
        what, expected = "the two answers begin with different turns", "the same prompt in both, or a prompt column"
        return row.wrong(what, expected, row.column("rejected"))
    better = row.split(first, common, "chosen")
    worse = better and row.split(second, common, "rejected")
    if better is None or worse is None:
        return None
    return Preference(row.name, better[0], better[1], worse[1], scores[0], scores[1], given)


def _one_answer(row: _Row, names: tuple[str, ...]) -> tuple[Messages, Answer] | None:
    """Return prompt and answer from the first of the columns `names` that the row has."""
    name = next((name for name in names if row.has(name)), names[0])
    texts = (row.plain("prompt"), row.plain(name)) if name != "messages" else (None, None)
    if texts[0] is not None and texts[1] is not None:  # two strings, as most rows are
        return (Message("user", texts[0]),), texts[1]
    answer = row.messages(name, "assistant")
    alone = isinstance(row.values.get(row.column(name)), list) and not row.has("prompt")
    prompt = () if alone or name == "messages" else row.messages("prompt", "user")
    if prompt is None or answer is None:
        return None
    conversation = row.conversation(prompt, answer, name)
    return None if conversation is None else row.split(conversation, len(conversation) - 1, name)


def _unpaired(row: _Row) -> Unpaired | None:
    parts = _one_answer(row, ("completion", "messages"))
    label = row.label() if row.has("label") else row.missing("label", "true or false")
    given = row.given()
    return None if parts is None or given is None else Unpaired(row.name, *parts, label, given)


def _completion(row: _Row) -> Unpaired | None:
    if row.has("label") and row.label() is False:
        column = row.column("label")
        row.wrong(f"{column!r} is false", "desirable answers only; leave the others out of this file", column)
    parts = _one_answer(row, ("completion", "messages", "chosen"))
    given = row.given()
    return None if parts is None or given is None else Unpaired(row.name, *parts, given=given)


def _prompt(row: _Row) -> PromptOnly | None:
    prompt = row.messages("prompt", "user")
    if prompt is None:
        return None
    if prompt[-1].role == "assistant":
        return row.wrong(f"{row.column('prompt')!r} ends with the assistant's turn", "the user's", row.column("prompt"))
    given = row.given()
    if given is None:
        return None
    ours = {theirs: name for name, theirs in row.columns.items()}
    extra = {
        ours.get(name, name): value
        for name, value in row.values.items()
        if name != row.column("prompt") and name not in row.ignore and (name in ours or name not in row.columns)
    }
    if row.source.is_table:  # as the template gets them
        extra |= {name: without_nulls(extra[name]) for name in (TOOLS, KWARGS) if name in extra}
    return PromptOnly(row.name, prompt, extra, given)


_BUILDERS = {"preference": _preference, "unpaired": _unpaired, "completion": _completion, "prompt": _prompt}


def _shown(value: Any) -> str:
    if not isinstance(value, str | int | float | None):
        return kind(value)
    text = json.dumps(value)
    return text if len(text) <= 40 else text[:37] + "..."


def _names(names: Sequence[str]) -> str:
    return ", ".join(map(short, names[:12])) + (", ..." if len(names) > 12 else "") if names else "none"


def _encodable(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


# ---------------------------------------------------------------------------------------------------------------------
# Examples to examples, and checks over a whole set


def pairs_to_unpaired(preferences: Iterable[Preference]) -> list[Unpaired]:
    """Split each pair into a desirable and an undesirable example."""
    return [
        Unpaired(f"{pair.id}#{name}", pair.prompt, answer, label, pair.given)
        for pair in preferences
        for name, answer, label in (("chosen", pair.chosen, True), ("rejected", pair.rejected, False))
    ]


def pairs_to_groups(preferences: Iterable[Preference]) -> list[Group]:
    """Make each pair a group of two, with the row's scores where given and 1.0 and 0.0 where not."""
    return [
        Group(pair.id, pair.prompt, (pair.chosen, pair.rejected), group_scores(pair), pair.given)
        for pair in preferences
    ]


def group_scores(pair: Preference) -> tuple[float, float]:
    """Return the scores of a pair's answers, or 1.0 and 0.0 where it has none."""
    if pair.chosen_score is None or pair.rejected_score is None:
        return 1.0, 0.0
    return pair.chosen_score, pair.rejected_score


def check_labels(unpaired: Iterable[Unpaired], *, allow_single_label: bool = False) -> tuple[int, int]:
    """Return the counts of desirable and undesirable examples.

    Parameters
    ----------
    unpaired : iterable of Unpaired
    allow_single_label : bool
        Accept a set in which all labels are the same.

    Raises
    ------
    DataError
        If an example has no label, or only one label occurs and `allow_single_label` is False: KTO compares desirable
        with undesirable answers, and with one kind it only pushes all of them up or all of them down.
    """
    counts = {True: 0, False: 0}
    unlabelled = []
    for example in unpaired:
        if example.label is None:
            unlabelled.append(f"{example.id}: no label; expected true or false")
        else:
            counts[example.label] += 1
    if unlabelled:
        raise DataError(f"{len(unlabelled)} examples have no label", unlabelled)
    if not allow_single_label:
        refuse_single_label(counts[True], counts[False])
    return counts[True], counts[False]


def refuse_single_label(desirable: int, undesirable: int) -> None:
    """Raise DataError if there are no desirable or no undesirable examples."""
    if not (desirable and undesirable):
        raise DataError(
            f"labels must hold both true and false; got {desirable} true and {undesirable} false",
            advice="Add rows with the other label, or set allow_single_label: true if this is meant.",
        )


@dataclass(frozen=True, slots=True)
class DuplicateReport:
    """How many examples repeat or contradict an earlier one; the first 20 of each as (later id, earlier id)."""

    duplicates: int
    contradictions: int
    first_duplicates: tuple[tuple[str, str], ...]
    first_contradictions: tuple[tuple[str, str], ...]


def report_duplicates(examples: Iterable[Example]) -> DuplicateReport:
    """Count examples that repeat an earlier one, and those that say the opposite of one.

    The opposite of a labelled answer is the same answer with the other label; of a pair, the same pair swapped. For
    prompts only the prompt is compared, with what the row gives the template. Repeats of a contradiction count as
    duplicates.
    """
    found, names = Duplicates(), []
    for example in examples:
        found.add(example)
        names.append(example.id)
    return found.report(names)


class Duplicates:
    """Look for examples that repeat or contradict an earlier one, by 64 bits of each: no text is kept.

    Two different examples agree in all 64 bits about once in 4e7 sets of a million; it would be a line too many in a
    report, and nothing else.
    """

    def __init__(self) -> None:
        self._contents, self._opposites = array("q"), array("q")

    def add(self, example: Example) -> None:
        """Take note of one more example."""
        content, opposite = _content(example)
        self._contents.append(content)
        self._opposites.append(opposite)

    def report(self, names: Sequence[str]) -> DuplicateReport:
        """Return what was found, with the names that the examples have, in the order in which they were added."""
        import numpy as np  # a reader of rows alone needs none

        contents, opposites = (np.array(one, dtype=np.int64) for one in (self._contents, self._opposites))
        distinct, first, which = np.unique(contents, return_index=True, return_inverse=True)
        places = np.arange(len(contents))
        earlier = first[which]  # where the same content stands for the first time
        (repeats,) = np.nonzero(earlier != places)
        at = np.minimum(np.searchsorted(distinct, opposites), max(len(distinct) - 1, 0))
        opposed = (distinct[at] == opposites) & (first[at] < places) & (earlier == places)
        (against,) = np.nonzero(opposed)
        return DuplicateReport(
            len(repeats),
            len(against),
            tuple((names[i], names[earlier[i]]) for i in repeats[:SHOWN]),
            tuple((names[i], names[first[at[i]]]) for i in against[:SHOWN]),
        )


_NOTHING_ELSE = hash(())  # the content of no example


def _content(example: Example) -> tuple[int, int]:
    """Return a hash of what an example says, and of what would be its opposite."""
    prompt = hash((example.prompt, example.given))
    if isinstance(example, Preference):
        chosen, rejected = hash(example.chosen), hash(example.rejected)
        return hash((prompt, chosen, rejected)), hash((prompt, rejected, chosen))
    if isinstance(example, Unpaired):
        answer = hash(example.completion)
        opposite = _NOTHING_ELSE if example.label is None else hash((prompt, answer, not example.label))
        return hash((prompt, answer, example.label)), opposite
    if isinstance(example, Group):  # scores as text: -1.0 and -2.0 have one hash
        return hash((prompt, example.completions, tuple(map(repr, example.scores)))), _NOTHING_ELSE
    return prompt, _NOTHING_ELSE
