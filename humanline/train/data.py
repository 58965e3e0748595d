"""Rows -> examples.

An example keeps its prompt as a tuple of messages and every answer as the text of one assistant turn, whatever the row
looked like: strings, message lists or a mix. A plain string prompt is one user message. An example is never changed
after it was read; rendering and cutting happen in `tokens.py`, on token ids. Where rows come from is in `sources.py`.

Departures from common readers: all problems of a set are found before anything is raised, each with its place; blank
texts, labels that are not true or false and non-finite scores are problems, not values; nothing is trained in a turn
that is not the last assistant turn.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar, get_args

from humanline._checks import one_of
from humanline.train.sources import SHOWN as SHOWN
from humanline.train.sources import DataError as DataError
from humanline.train.sources import Source, kind, open_source, short
from humanline.train.sources import existing_file as existing_file
from humanline.train.sources import json_lines as json_lines

T = TypeVar("T")
Shape = Literal["preference", "unpaired", "completion", "prompt"]
ROLES = ("system", "user", "assistant")


class Message(NamedTuple):
    """One turn of a conversation."""

    role: str
    content: str


Messages: TypeAlias = tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class Preference:
    """Two answers to one prompt, the first preferred."""

    id: str
    prompt: Messages
    chosen: str
    rejected: str
    chosen_score: float | None = None
    rejected_score: float | None = None


@dataclass(frozen=True, slots=True)
class Unpaired:
    """One answer, desirable (True), undesirable (False) or, for next-token training, without a label (None)."""

    id: str
    prompt: Messages
    completion: str
    label: bool | None = None


@dataclass(frozen=True, slots=True)
class PromptOnly:
    """A prompt to sample from, with the row's other columns (a reference answer, for example)."""

    id: str
    prompt: Messages
    extra: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Group:
    """Several answers to one prompt, one score each; higher is better."""

    id: str
    prompt: Messages
    completions: tuple[str, ...]
    scores: tuple[float, ...]


Example: TypeAlias = Preference | Unpaired | PromptOnly | Group


# ---------------------------------------------------------------------------------------------------------------------
# Rows to examples

_ALIASES = {"chosen_score": "score_chosen", "rejected_score": "score_rejected"}
_COLUMNS: dict[str, tuple[str, ...]] = {
    "preference": ("prompt", "chosen", "rejected", *_ALIASES),
    "unpaired": ("prompt", "completion", "messages", "label"),
    "completion": ("prompt", "completion", "messages", "chosen", "label", "rejected", *_ALIASES),
}
_RIGHT_ROW = {
    "preference": '{"prompt": "What is 2+2?", "chosen": "4", "rejected": "5"}',
    "unpaired": '{"prompt": "What is 2+2?", "completion": "4", "label": true}',
    "completion": '{"prompt": "What is 2+2?", "completion": "4"}',
    "prompt": '{"prompt": "What is 2+2?", "answer": "4"}',
}
_TEXT = "a string or a list of messages"


def read_rows(source: str | Path, shape: Shape, *, columns: Mapping[str, str] | None = None) -> list[Example]:
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
        Texts are strings or lists of {"role", "content"}; other keys of a message are ignored. Answers given as lists
        may repeat the prompt. Only the last assistant turn is the answer, the turns before it are prompt.
    columns : mapping or None
        Our name -> the file's name, for columns called differently; with "prompt", also names inside `extra`.

    Returns
    -------
    list of Preference, Unpaired ("unpaired", "completion") or PromptOnly

    Raises
    ------
    FileNotFoundError
        If `source` is not a file.
    ValueError
        If `shape` is unknown or `columns` names a column that the shape does not have.
    DataError
        If the source cannot be read, has no rows, or any row breaks a rule; `problems` holds every problem.
    """
    one_of("shape", shape, get_args(Shape))
    columns = dict(columns or {})
    known = _COLUMNS.get(shape, ())
    unknown = [name for name in columns if known and name not in known]
    if unknown:
        raise ValueError(
            f"columns must map our names for shape {shape!r} ({', '.join(known)}) to the file's; "
            f"got {', '.join(map(repr, unknown))}"
        )
    opened = open_source(source)
    wanted = {*known, *_ALIASES.values(), *columns.values()} if known else None
    problems: list[str] = []
    examples: list[Example] = []
    for name, values in opened.rows(problems, wanted):
        row = _Row(name, values, columns, problems, opened)
        before = len(problems)
        missing = [theirs for theirs in columns.values() if theirs not in values]
        for theirs in missing:
            expected = f"it among the row's columns: {_names(opened.columns(values))}"
            row.wrong(f"no column {theirs!r} (named in columns)", expected)
        example = None if missing else _BUILDERS[shape](row)
        if example is not None and len(problems) == before:
            examples.append(example)
        if opened.is_table and (missing or row.lacks_column):
            break  # as does every other row
    advice = f"A right row of shape {shape!r}: {_RIGHT_ROW[shape]}"
    if problems:
        count = f"{len(problems)} problem{'s' if len(problems) > 1 else ''}"
        raise DataError(f"{opened.name}: {count}, {len(examples)} right rows", problems, advice)
    if not examples:
        expected = "" if opened.is_table else "; expected one JSON object per line"
        raise DataError(f"{opened.name} has no rows{expected}", advice=advice)
    return examples


@dataclass(slots=True)
class _Row:
    """One row while it is read: every getter returns None after it has noted what is wrong, and where."""

    name: str
    values: dict[str, Any]
    columns: Mapping[str, str]
    problems: list[str]
    source: Source
    lacks_column: bool = False

    def wrong(self, what: str, expected: str, *at: str | int) -> T | None:
        """Note a problem of the value under the keys `at` and return None, typed so that any getter can return it."""
        self.problems.append(f"{self.source.place(*at)}: {what}; expected {expected}")
        return None

    def column(self, name: str) -> str:
        """Return what the file calls our column `name`."""
        alias = _ALIASES.get(name)
        if alias is not None and name not in self.columns and not self._holds(name) and self._holds(alias):
            return alias
        return self.columns.get(name, name)

    def _holds(self, column: str) -> bool:
        return column in self.values and not (self.source.is_table and self.values[column] is None)

    def has(self, name: str) -> bool:
        return self._holds(self.column(name))

    def missing(self, name: str, expected: str) -> T | None:
        column = self.column(name)
        if column in self.values:
            return self.wrong(f"{column!r} is null", expected, column)
        self.lacks_column = True
        hint = "" if name in self.columns else f" (or columns: {{{name}: its name}})"
        return self.wrong(f"no column {column!r} among {_names(self.source.columns(self.values))}", expected + hint)

    def messages(self, name: str, role: str) -> Messages | None:
        """Return a text column as messages; a string is one message of `role`."""
        if not self.has(name):
            return self.missing(name, _TEXT)
        column = self.column(name)
        value = self.values[column]
        if isinstance(value, str):
            return (Message(role, value),) if self._good(value, f"{column!r}", False, column) else None
        if not isinstance(value, list) or not value:
            return self.wrong(f"{column!r} is {kind(value)}", _TEXT, column)
        turns = [self._message(turn, column, i) for i, turn in enumerate(value)]
        kept = tuple(turn for turn in turns if turn is not None)
        return kept if len(kept) == len(turns) else None

    def _message(self, turn: Any, column: str, number: int) -> Message | None:
        name = f"{column!r} message {number + 1}"
        if not isinstance(turn, dict) or not {"role", "content"} <= turn.keys():
            got = f"an object of the keys {_names(list(turn))}" if isinstance(turn, dict) else kind(turn)
            return self.wrong(f"{name} is {got}", 'a message {"role": ..., "content": ...}', column, number)
        role = turn["role"]
        if role not in ROLES:
            what = f"{name} has the role {_shown(role)}"
            return self.wrong(what, f"one of {', '.join(ROLES)}", column, number, "role")
        if not self._good(turn["content"], f"the content of {name}", role == "system", column, number, "content"):
            return None
        return Message(role, turn["content"])

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
        value = self.values[column]
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
        value = self.values[column]
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
        if answer[0].role == "system" and answer[1 : len(prompt) + 1] == prompt:
            return answer
        what = f"{column!r} begins with other turns than {given!r}"
        return self.wrong(what, "the prompt's own turns, or the answer", column)

    def split(self, conversation: Messages, common: int, name: str) -> tuple[Messages, str] | None:
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
        return prompt, rest[0].content


def _preference(row: _Row) -> Preference | None:
    chosen, rejected = row.messages("chosen", "assistant"), row.messages("rejected", "assistant")
    lists = all(isinstance(row.values.get(row.column(name)), list) for name in ("chosen", "rejected"))
    prompt = () if lists and not row.has("prompt") else row.messages("prompt", "user")
    scores: list[float | None] = [None, None]
    present = [name for name in ("chosen_score", "rejected_score") if row.has(name)]
    if len(present) == 1:
        row.wrong(f"{row.column(present[0])!r} stands alone", "both scores or none", row.column(present[0]))
    elif present:
        scores = [row.score(name) for name in present]
        if scores[0] is not None and scores[1] is not None and scores[0] < scores[1]:
            what = f"the chosen score {scores[0]:g} is below the rejected one {scores[1]:g}"
            row.wrong(what, "chosen >= rejected", row.column("chosen_score"))
    if prompt is None or chosen is None or rejected is None:
        return None
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
    return Preference(row.name, better[0], better[1], worse[1], scores[0], scores[1])


def _one_answer(row: _Row, names: tuple[str, ...]) -> tuple[Messages, str] | None:
    """Return prompt and answer from the first of the columns `names` that the row has."""
    name = next((name for name in names if row.has(name)), names[0])
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
    return None if parts is None else Unpaired(row.name, *parts, label)


def _completion(row: _Row) -> Unpaired | None:
    if row.has("label") and row.label() is False:
        column = row.column("label")
        row.wrong(f"{column!r} is false", "desirable answers only; leave the others out of this file", column)
    parts = _one_answer(row, ("completion", "messages", "chosen"))
    return None if parts is None else Unpaired(row.name, *parts)


def _prompt(row: _Row) -> PromptOnly | None:
    prompt = row.messages("prompt", "user")
    if prompt is None:
        return None
    if prompt[-1].role == "assistant":
        return row.wrong(f"{row.column('prompt')!r} ends with the assistant's turn", "the user's", row.column("prompt"))
    ours = {theirs: name for name, theirs in row.columns.items()}
    extra = {ours.get(name, name): value for name, value in row.values.items() if name != row.column("prompt")}
    return PromptOnly(row.name, prompt, extra)


_BUILDERS = {"preference": _preference, "unpaired": _unpaired, "completion": _completion, "prompt": _prompt}


def _shown(value: Any) -> str:
    if not isinstance(value, str | int | float | None):
        return kind(value)
    text = json.dumps(value)
    return text if len(text) <= 40 else text[:37] + "..."


def _names(names: Sequence[str]) -> str:
    return ", ".join(map(short, names[:12])) + (", ..." if len(names) > 12 else "") if names else "none"


def _encodable(text: str) -> bool:
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
        Unpaired(f"{pair.id}#{name}", pair.prompt, answer, label)
        for pair in preferences
        for name, answer, label in (("chosen", pair.chosen, True), ("rejected", pair.rejected, False))
    ]


def pairs_to_groups(preferences: Iterable[Preference]) -> list[Group]:
    """Make each pair a group of two, with the row's scores where given and 1.0 and 0.0 where not."""
    groups = []
    for pair in preferences:
        given = pair.chosen_score is not None and pair.rejected_score is not None
        scores = (pair.chosen_score, pair.rejected_score) if given else (1.0, 0.0)
        groups.append(Group(pair.id, pair.prompt, (pair.chosen, pair.rejected), scores))  # type: ignore[arg-type]
    return groups


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
    if not allow_single_label and not (counts[True] and counts[False]):
        raise DataError(
            f"labels must hold both true and false; got {counts[True]} true and {counts[False]} false",
            advice="Add rows with the other label, or set allow_single_label: true if this is meant.",
        )
    return counts[True], counts[False]


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
    prompts only the prompt is compared. Repeats of a contradiction count as duplicates.
    """
    first: dict[tuple[Any, ...], str] = {}
    duplicates, contradictions = [], []
    for example in examples:
        content, opposite = _content(example)
        if content in first:
            duplicates.append((example.id, first[content]))
            continue
        first[content] = example.id
        if opposite in first:
            contradictions.append((example.id, first[opposite]))
    shown = tuple(duplicates[:SHOWN]), tuple(contradictions[:SHOWN])
    return DuplicateReport(len(duplicates), len(contradictions), *shown)


def _content(example: Example) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    prompt = example.prompt
    if isinstance(example, Preference):
        return (prompt, example.chosen, example.rejected), (prompt, example.rejected, example.chosen)
    if isinstance(example, Unpaired):
        answer = example.completion
        opposite = () if example.label is None else (prompt, answer, not example.label)
        return (prompt, answer, example.label), opposite
    if isinstance(example, Group):
        return (prompt, example.completions, example.scores), ()
    return (prompt,), ()
