"""Rows of a JSON lines file -> examples.

An example keeps its prompt as a tuple of messages and every answer as the text of one assistant turn, whatever the row
looked like: strings, message lists or a mix. A plain string prompt is one user message. An example is never changed
after it was read; rendering and cutting happen in `tokens.py`, on token ids.

Departures from common readers: all problems of a file are found before anything is raised, each with file and line;
nulls, NaN, repeated keys and non-finite scores are problems, not values; nothing is trained in a turn that is not the
last assistant turn.
"""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar, get_args

from humanline._checks import one_of

T = TypeVar("T")
Shape = Literal["preference", "unpaired", "completion", "prompt"]
ROLES = ("system", "user", "assistant")
SHOWN = 20  # problems listed in a message; the rest is counted


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


class DataError(ValueError):
    """Data that must not be trained on; `problems` holds every finding, the message the first 20."""

    def __init__(self, heading: str, problems: Sequence[str] = (), advice: str = "") -> None:
        self.problems = tuple(problems)
        lines = [heading, *(f"  {problem}" for problem in self.problems[:SHOWN])]
        if len(self.problems) > SHOWN:
            lines.append(f"  and {len(self.problems) - SHOWN} more")
        super().__init__("\n".join([*lines, advice] if advice else lines))


# ---------------------------------------------------------------------------------------------------------------------
# Files and lines


def existing_file(path: str | Path) -> Path:
    """Return `path` as a Path; raise FileNotFoundError, with the nearest name, unless it is a file."""
    given = Path(path).expanduser()
    if given.is_file():
        return given
    full = given.resolve()
    if given.is_dir():
        raise FileNotFoundError(f"{full} is a directory; expected a file, for example {full / 'train.jsonl'}")
    if not full.parent.is_dir():
        raise FileNotFoundError(f"{full} does not exist, and neither does its directory; check the path")
    names = sorted(item.name for item in full.parent.iterdir() if item.is_file())
    near = difflib.get_close_matches(full.name, names, n=1)
    hint = f"did you mean {near[0]}?" if near else "relative paths start at the current directory"
    raise FileNotFoundError(f"{full} does not exist; {hint}")


def json_lines(path: Path, problems: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (`file:line`, object) for each good line and append a message to `problems` for each bad one.

    Blank lines are skipped but counted, and a byte order mark is tolerated.
    """
    with path.open("rb") as file:  # bytes: lines end at \n only, and a bad byte costs one line, not the file
        for number, raw in enumerate(file, start=1):
            where = f"{path.name}:{number}"
            try:
                line = raw.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
                if not line.strip():
                    continue
                row = json.loads(line, parse_constant=_refuse_constant, object_pairs_hook=_refuse_repeats)
            except UnicodeDecodeError as error:
                byte = raw[error.start]
                problems.append(f"{where}:{error.start + 1}: byte 0x{byte:02x} is not UTF-8; expected UTF-8 text")
            except json.JSONDecodeError as error:
                what = f"not valid JSON ({error.msg})"
                problems.append(f"{where}:{error.colno}: {what}; expected one complete JSON object per line")
            except (ValueError, RecursionError) as error:  # from the two hooks, huge integers, deep nesting
                problems.append(f"{where}: {error}; expected one complete JSON object per line")
            else:
                if isinstance(row, dict):
                    yield where, row
                else:
                    problems.append(f"{where}: the row is {_kind(row)}; expected one JSON object per line")


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _refuse_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {next(name for name in names if names.count(name) > 1)!r} appears twice")
    return result


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


def read_rows(path: str | Path, shape: Shape, *, columns: Mapping[str, str] | None = None) -> list[Example]:
    """Read a JSON lines file strictly into examples of one shape.

    Parameters
    ----------
    path : str or Path
        A UTF-8 file with one JSON object per line.
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
        If `path` is not a file.
    ValueError
        If `shape` is unknown or `columns` names a column that the shape does not have.
    DataError
        If the file is empty or any row breaks a rule; `problems` holds every problem of the file.
    """
    one_of("shape", shape, get_args(Shape))
    columns = dict(columns or {})
    unknown = [name for name in columns if shape != "prompt" and name not in _COLUMNS[shape]]
    if unknown:
        raise ValueError(
            f"columns must map our names for shape {shape!r} ({', '.join(_COLUMNS[shape])}) to the file's; "
            f"got {', '.join(map(repr, unknown))}"
        )
    file = existing_file(path)
    problems: list[str] = []
    examples: list[Example] = []
    for where, values in json_lines(file, problems):
        row = _Row(where, values, columns, problems)
        before = len(problems)
        missing = [name for name in columns.values() if name not in values]
        for name in missing:
            row.wrong(f"no column {name!r} (named in columns)", f"it among the row's columns: {_names(values)}")
        example = None if missing else _BUILDERS[shape](row)
        if example is not None and len(problems) == before:
            examples.append(example)
    advice = f"A right row of shape {shape!r}: {_RIGHT_ROW[shape]}"
    if problems:
        count = f"{len(problems)} problem{'s' if len(problems) > 1 else ''}"
        raise DataError(f"{file}: {count}, {len(examples)} right rows", problems, advice)
    if not examples:
        raise DataError(f"{file} has no rows; expected one JSON object per line", advice=advice)
    return examples


@dataclass(slots=True)
class _Row:
    """One row while it is read: every getter returns None after it has noted what is wrong."""

    where: str
    values: dict[str, Any]
    columns: Mapping[str, str]
    problems: list[str]

    def wrong(self, what: str, expected: str) -> T | None:  # None, typed so that any getter can return it
        self.problems.append(f"{self.where}: {what}; expected {expected}")
        return None

    def column(self, name: str) -> str:
        """Return what the file calls our column `name`."""
        alias = _ALIASES.get(name)
        if name not in self.columns and name not in self.values and alias in self.values:
            return str(alias)
        return self.columns.get(name, name)

    def has(self, name: str) -> bool:
        return self.column(name) in self.values

    def missing(self, name: str, expected: str) -> T | None:
        hint = "" if name in self.columns else f" (or columns: {{{name}: its name}})"
        return self.wrong(f"no column {self.column(name)!r} among {_names(self.values)}", expected + hint)

    def messages(self, name: str, role: str) -> Messages | None:
        """Return a text column as messages; a string is one message of `role`."""
        if not self.has(name):
            return self.missing(name, _TEXT)
        column = self.column(name)
        value = self.values[column]
        if isinstance(value, str):
            return (Message(role, value),) if self._good(value, f"{column!r}", empty_ok=False) else None
        if not isinstance(value, list) or not value:
            return self.wrong(f"{column!r} is {_kind(value)}", _TEXT)
        turns = [self._message(turn, f"{column!r} message {i}") for i, turn in enumerate(value, start=1)]
        kept = tuple(turn for turn in turns if turn is not None)
        return kept if len(kept) == len(turns) else None

    def _message(self, turn: Any, name: str) -> Message | None:
        if not isinstance(turn, dict) or not {"role", "content"} <= turn.keys():
            got = f"the keys {_names(turn)}" if isinstance(turn, dict) else _kind(turn)
            return self.wrong(f"{name} is {got}", 'a message {"role": ..., "content": ...}')
        role = turn["role"]
        if role not in ROLES:
            return self.wrong(f"{name} has the role {_shown(role)}", f"one of {', '.join(ROLES)}")
        if not self._good(turn["content"], f"the content of {name}", empty_ok=role == "system"):
            return None
        return Message(role, turn["content"])

    def _good(self, text: Any, name: str, empty_ok: bool) -> bool:
        if not isinstance(text, str):
            self.wrong(f"{name} is {_kind(text)}", "a string")
        elif not text.strip() and not empty_ok:
            self.wrong(f"{name} is {'blank' if text else 'empty'}", "some text")
        elif not _encodable(text):
            self.wrong(f"{name} holds half a surrogate pair, which no tokenizer can read", "whole characters")
        else:
            return True
        return False

    def score(self, name: str) -> float | None:
        column = self.column(name)
        value = self.values[column]
        if isinstance(value, bool) or not isinstance(value, int | float):
            return self.wrong(f"{column!r} is {_kind(value)}", "a finite number")
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            return self.wrong(f"{column!r} is not finite", "a finite number")
        return number

    def label(self) -> bool | None:
        column = self.column("label")
        value = self.values[column]
        if not isinstance(value, int) or value not in (0, 1):
            return self.wrong(f"{column!r} is {_shown(value)}", "true or false")
        return bool(value)

    def conversation(self, prompt: Messages, answer: Messages, name: str) -> Messages | None:
        """Join a prompt and an answer that may repeat it."""
        if answer[-1].role != "assistant":
            return self.wrong(f"{self.column(name)!r} ends with the {answer[-1].role}'s turn", "the assistant's")
        if answer[: len(prompt)] == prompt:
            return answer
        if answer[0].role == "assistant":
            return prompt + answer
        if answer[0].role == "system" and answer[1 : len(prompt) + 1] == prompt:
            return answer
        column, given = self.column(name), self.column("prompt")
        return self.wrong(f"{column!r} begins with other turns than {given!r}", "the prompt's own turns, or the answer")

    def split(self, conversation: Messages, common: int, name: str) -> tuple[Messages, str] | None:
        """Split a conversation into `common` turns of prompt and one assistant turn."""
        column = self.column(name)
        prompt, rest = conversation[:common], conversation[common:]
        if len(rest) > 1:
            what = f"the two answers part {len(rest)} turns before the end of {column!r}"
            return self.wrong(what, "them to differ in their last turn only")
        if not prompt:
            return self.wrong(f"{column!r} has no turn before the answer, so there is no prompt", "a prompt")
        if prompt[-1].role == "assistant":
            return self.wrong(f"the turn before the answer in {column!r} is the assistant's too", "the user's")
        return prompt, rest[0].content


def _preference(row: _Row) -> Preference | None:
    chosen, rejected = row.messages("chosen", "assistant"), row.messages("rejected", "assistant")
    lists = all(isinstance(row.values.get(row.column(name)), list) for name in ("chosen", "rejected"))
    prompt = () if lists and not row.has("prompt") else row.messages("prompt", "user")
    scores: list[float | None] = [None, None]
    present = [name for name in ("chosen_score", "rejected_score") if row.has(name)]
    if len(present) == 1:
        row.wrong(f"{row.column(present[0])!r} stands alone", "both scores or none")
    elif present:
        scores = [row.score(name) for name in present]
        if scores[0] is not None and scores[1] is not None and scores[0] < scores[1]:
            row.wrong(f"the chosen score {scores[0]:g} is below the rejected one {scores[1]:g}", "chosen >= rejected")
    if prompt is None or chosen is None or rejected is None:
        return None
    first, second = row.conversation(prompt, chosen, "chosen"), row.conversation(prompt, rejected, "rejected")
    if first is None or second is None:
        return None
    if first == second:
        return row.wrong(f"{row.column('chosen')!r} and {row.column('rejected')!r} are the same", "two answers")
    longest = min(len(first), len(second)) - 1  # at least one turn is left for each answer
    common = next((i for i in range(longest) if first[i] != second[i]), longest)
    if not common:
        return row.wrong("the two answers begin with different turns", "the same prompt in both, or a prompt column")
    better = row.split(first, common, "chosen")
    worse = better and row.split(second, common, "rejected")
    if better is None or worse is None:
        return None
    return Preference(row.where, better[0], better[1], worse[1], scores[0], scores[1])


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
    return None if parts is None else Unpaired(row.where, *parts, label)


def _completion(row: _Row) -> Unpaired | None:
    if row.has("label") and row.label() is False:
        row.wrong(f"{row.column('label')!r} is false", "desirable answers only; leave the others out of this file")
    parts = _one_answer(row, ("completion", "messages", "chosen"))
    return None if parts is None else Unpaired(row.where, *parts)


def _prompt(row: _Row) -> PromptOnly | None:
    prompt = row.messages("prompt", "user")
    if prompt is None:
        return None
    if prompt[-1].role == "assistant":
        return row.wrong(f"{row.column('prompt')!r} ends with the assistant's turn", "the user's")
    ours = {theirs: name for name, theirs in row.columns.items()}
    extra = {ours.get(name, name): value for name, value in row.values.items() if name != row.column("prompt")}
    return PromptOnly(row.where, prompt, extra)


_BUILDERS = {"preference": _preference, "unpaired": _unpaired, "completion": _completion, "prompt": _prompt}


def _kind(value: Any) -> str:
    """Name a JSON value by its type."""
    if value is None:
        return "null"
    if isinstance(value, list):
        return "a list" if value else "an empty list"
    names = {bool: "true or false", int: "a number", float: "a number", str: "a string", dict: "an object"}
    return names[type(value)]


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else text[:37] + "..."


def _names(row: Mapping[str, Any]) -> str:
    return ", ".join(map(repr, list(row)[:12])) + (", ..." if len(row) > 12 else "") if row else "none"


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
