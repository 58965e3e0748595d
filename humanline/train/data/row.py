"""One row -> one example, or a sentence on what is wrong with it.

An example keeps its prompt as a tuple of messages and every answer as one assistant turn, a text or a message, whatever
the row looked like: strings, message lists or a mix. A plain string prompt is one user message. An example is never
changed after it was read; rendering and cutting happen later (`render.py`, `truncation.py`, `tokenize.py`).

Departures from common readers: blank texts, labels that are not true or false and non-finite scores are problems, not
values; nothing is trained in a turn that is not the last assistant turn.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import pairwise
from typing import Any, TypeVar

from humanline.train.data.dialogue import common_prompt, count_turns, opens_answer, turns_of
from humanline.train.data.json_lines import kind, listed, parse_json, short
from humanline.train.data.messages import (
    KWARGS,
    NOTHING,
    TOOLS,
    Answer,
    Given,
    Message,
    Messages,
    is_empty,
    to_json,
    without_nulls,
)
from humanline.train.data.reading import Reading
from humanline.train.data.shapes import INSTRUCTING, ROLES, Preference, PromptOnly, Unpaired
from humanline.train.data.source import Source

T = TypeVar("T")

ALIASES = {"chosen_score": "score_chosen", "rejected_score": "score_rejected"}
SIDES = ("output_A", "output_B", "reward_A", "reward_B")  # of pairs as the paper's released code writes them
OUTPUT = "output"  # of its labelled answers
_TEXT = "a string or a list of messages"
_LAST_ONLY = "them to differ in their last turn only"
# Columns that hold prompts under other names: beside one of these, what two answers begin with is no prompt.
_ASKING = ("question", "instruction", "query", "input", "problem", "context", "history", "prompts", "conversations")


@dataclass(slots=True)
class RowReader:
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
    how: Reading
    lacks_column: bool = False
    sides: Mapping[str, str] = field(default_factory=dict)  # our column -> the file's, of this row alone
    marked: int = 0  # rows whose prompt is a text with turn marks
    cut: list[str] = field(default_factory=list)  # rows whose answers begin with their prompt, which has no column
    asked: int = 0  # rows of two texts with a prompt in a column

    def wrong(self, what: str, expected: str, *at: str | int) -> T | None:
        """Note a problem of the value under the keys `at` and return None, typed so that any getter can return it."""
        self.problems.append(f"{self.source.place(*at)}: {what}; expected {expected}")
        return None

    def column(self, name: str) -> str:
        """Return the file's name for our column `name`."""
        if name in self.sides:
            return self.sides[name]
        if name in ALIASES and name not in self.columns and not self._holds(name) and self._holds(ALIASES[name]):
            return ALIASES[name]
        return self.columns.get(name, name)

    def _holds(self, column: str) -> bool:
        return column in self.values and not (self.source.is_table and self.values[column] is None)

    def value(self, name: str) -> Any:
        """Return the value in our column `name`, which then counts as read."""
        self.used.add(self.column(name))
        return self.values[self.column(name)]

    def has(self, name: str) -> bool:
        """Return whether the row holds our column `name`."""
        return self._holds(self.column(name))

    def missing(self, name: str, expected: str) -> T | None:
        """Note that our column `name` is not there, or null."""
        column = self.column(name)
        if column in self.values:
            return self.wrong(f"{column!r} is null", expected, column)
        self.lacks_column = True
        hint = "" if name in self.columns else f" (or columns: {{{name}: its name}})"
        return self.wrong(f"no column {column!r} among {listed(self.source.columns(self.values))}", expected + hint)

    def plain(self, name: str) -> str | None:
        """Return a text column that is a good string and no conversation; note nothing of any other."""
        column = self.sides.get(name) or self.columns.get(name, name)
        value = self.values.get(column)
        if self.how.format is not None or not isinstance(value, str) or not value.strip() or not _encodable(value):
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
            if not self._good(value, f"{column!r}", False, column):
                return None
            return (Message(role, value, plain=True),) if self.how.format is None else self._dialogue(value, name, role)
        if not isinstance(value, list) or not value:
            return self.wrong(f"{column!r} is {kind(value)}", _TEXT, column)
        turns = [self._message(turn, column, i) for i, turn in enumerate(value)]
        kept = tuple(turn for turn in turns if turn is not None)
        return kept if len(kept) == len(turns) else None

    def _dialogue(self, text: str, name: str, role: str) -> Messages | None:
        """Return the turns of a text with marks of turns; of one without marks a single message."""
        column = self.column(name)
        turns = turns_of(text)
        if not turns:
            if (name == "prompt" or self.has("prompt")) and not count_turns(text):
                return (Message(role, text.strip()),)  # a turn without its mark, as an answer beside a prompt is
            what = f"{column!r} does not begin with a turn"
            return self.wrong(what, r"\n\nHuman: or \n\nAssistant:, as data.format: hh has them", column)
        if name == "prompt" and turns[-1] == ("assistant", ""):  # the opening of the answer
            turns.pop()
        if not turns:
            return self.wrong(f"{column!r} has no turn but the opening of an answer", "a prompt", column)
        for number, (who, content) in enumerate(turns, start=1):
            if not self._good(content, f"the content of {column!r} message {number} ({who})", False, column):
                return None
        return tuple(Message(who, content) for who, content in turns)

    def holds_prompt(self, *names: str) -> bool:
        """Return whether each of these columns is a conversation, and no column has the prompt alone."""
        kinds: tuple[type, ...] = (list,) if self.how.format is None else (list, str)
        return all(isinstance(self.values.get(self.column(name)), kinds) for name in names) and not self.has("prompt")

    def _message(self, turn: Any, column: str, number: int) -> Message | None:
        name = f"{column!r} message {number + 1}"
        keys = self._keys(turn, name, column, number) if isinstance(turn, dict) else {}
        if keys is None:
            return None
        calls = bool(keys.get("tool_calls")) and turn.get("role") == "assistant"  # what calls tools may say nothing
        if not isinstance(turn, dict) or not {"role", "content"} - ({"content"} if calls else set()) <= turn.keys():
            got = f"an object of the keys {listed(list(turn))}" if isinstance(turn, dict) else kind(turn)
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
        """Return the tools and arguments that the row gives the chat template besides messages."""
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
        """Return a column that is a finite number."""
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
        """Return the label: true and false, 1 and 0, or 1.0 and 0.0."""
        column = self.column("label")
        value = self.value("label")
        if not isinstance(value, int | float) or value not in (0, 1):
            return self.wrong(f"{column!r} is {_shown(value)}", "true or false", column)
        return bool(value)

    def system(self) -> Messages | None:
        """Return the system prompt of the column that `columns` names for it; nothing where there is none."""
        if "system" not in self.columns or not self.has("system"):
            return ()
        column, value = self.column("system"), self.value("system")
        if value is None or (isinstance(value, str) and not value.strip()):  # many rows of a set may have none
            return ()
        return (Message("system", value),) if self._good(value, f"{column!r}", False, column) else None

    def instructed(self, prompt: Messages) -> Messages | None:
        """Return a prompt, or a conversation, after the system prompt of the row where it has one."""
        system = self.system()
        if not system or not prompt:
            return None if system is None else prompt
        if prompt[0].role in INSTRUCTING:
            column = self.column("system")
            what = f"{column!r} holds a system prompt, and the messages begin with the {prompt[0].role}'s turn"
            return self.wrong(what, "one of both", column)
        return system + prompt

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
        """Split a conversation into `common` turns of prompt and the answer: one turn, or as many as may teach."""
        column = self.column(name)
        prompt, rest = conversation[:common], conversation[common:]
        if len(rest) > 1 and self.how.turns == "last":
            return self.parts_early(len(rest), column)
        if not prompt:
            return self.wrong(f"{column!r} has no turn before the answer, so there is no prompt", "a prompt", column)
        if rest[0].role != "assistant":
            what = f"the two answers part in the {rest[0].role}'s turn, {len(rest)} turns before the end of {column!r}"
            return self.wrong(what, "two answers to the same turns", column)
        for before, turn in pairwise((prompt[-1], *rest)):
            if before.role == turn.role == "assistant":
                what = f"the turn before the answer in {column!r} is the assistant's too"
                return self.wrong(what, "the user's", column)
        if len(rest) > 1:
            return prompt, rest
        return prompt, rest[0] if rest[0].keys else rest[0].content

    def parts_early(self, turns: int, column: str) -> T | None:
        """Note that two answers differ in more than their last turn."""
        what = f"the two answers part {turns} turns before the end of {column!r}"
        return self.wrong(what, f"{_LAST_ONLY}, or data.turns: all", column)

    def take_sides(self) -> None:
        """Read output_A and output_B as the chosen answer and the rejected one, whichever the label says."""
        self.sides = {}
        named = any(name in self.columns or self._holds(name) for name in ("chosen", "rejected"))
        if named or not (self._holds("output_A") and self._holds("output_B")):
            return
        label = self.label() if self.has("label") else self.missing("label", "1 where output_A is the better one, or 0")
        better, worse = "AB" if label or label is None else "BA"
        self.sides = {"chosen": f"output_{better}", "rejected": f"output_{worse}"}
        if self._holds("reward_A") or self._holds("reward_B"):
            self.sides |= {"chosen_score": f"reward_{better}", "rejected_score": f"reward_{worse}"}

    def cut_prompt(self, chosen: str, rejected: str) -> tuple[str, str, str] | None:
        """Return the prompt that two texts begin with, and what is left of both."""
        names = self.column("chosen"), self.column("rejected")
        if chosen == rejected:
            return self.wrong(f"{names[0]!r} and {names[1]!r} are the same", "two answers", names[1])
        there = self.source.columns(self.values)
        if any(name in there and name not in self.ignore for name in _ASKING):
            return self.missing("prompt", _TEXT)
        if self.asked:
            what = f"no column 'prompt' among {listed(there)}, which {self.asked} rows before have"
            return self.wrong(what, f"{_TEXT}: where some rows have one, it is not what both answers begin with")
        at = common_prompt(chosen, rejected)
        if not at:
            what = f"no column 'prompt' among {listed(there)}"
            more = "(or columns: {prompt: its name}), or two answers that begin with the same prompt"
            return self.wrong(what, f"{_TEXT} {more}")
        rest = chosen[at:], rejected[at:]
        for answer, column in zip(rest, names, strict=True):
            if turns := count_turns(answer):
                what = f"the two answers part {turns + 1} turns before the end of {column!r}"
                return self.wrong(what, f"{_LAST_ONLY}, or data.format: hh and data.turns: all", column)
            if not answer.strip():
                return self.wrong(f"the answer in {column!r} is {'blank' if answer else 'empty'}", "some text", column)
        self.marked += opens_answer(chosen[:at])
        self.cut.append(self.name)
        return chosen[:at], *rest


def _preference(row: RowReader) -> Preference | None:
    row.take_sides()
    before = len(row.problems)
    texts = _three_texts(row)
    chosen: Messages | None = ()
    rejected: Messages | None = ()
    prompt: Messages | None = ()
    if texts is not None:  # three strings, as most rows are: nothing can be wrong with how they go together
        prompt = row.instructed((Message("user", texts[0]),))
    elif len(row.problems) == before:
        chosen, rejected = row.messages("chosen", "assistant"), row.messages("rejected", "assistant")
        alone = row.holds_prompt("chosen", "rejected")
        if not alone and (row.has("prompt") or len(row.problems) == before or not _two_strings(row)):
            prompt = row.messages("prompt", "user")
    scores = _scores(row)
    given = row.given()
    if prompt is None or chosen is None or rejected is None or given is None or len(row.problems) > before:
        return None
    if texts is not None:
        return Preference(row.name, prompt, texts[1], texts[2], *scores, given)
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
    instructed = worse and row.instructed(worse[0])
    if better is None or worse is None or instructed is None:
        return None
    return Preference(row.name, instructed, better[1], worse[1], *scores, given)


def _three_texts(row: RowReader) -> tuple[str, str, str] | None:
    """Return a prompt and two different answers where all are good strings, or the answers hold the prompt."""
    chosen, rejected = row.plain("chosen"), row.plain("rejected")
    if chosen is None or rejected is None:
        return None
    if not row.has("prompt") and row.column("prompt") not in row.values and "prompt" not in row.columns:
        return row.cut_prompt(chosen, rejected)
    row.asked += 1
    prompt = row.plain("prompt")
    return None if prompt is None or chosen == rejected else (prompt, chosen, rejected)


def _two_strings(row: RowReader) -> bool:
    return all(isinstance(row.values.get(row.column(name)), str) for name in ("chosen", "rejected"))


def _scores(row: RowReader) -> tuple[float | None, float | None]:
    """Return the scores of a pair, where it has both."""
    names = ("chosen_score", "rejected_score")
    present = [name for name in names if row.has(name) and row.column(name) not in row.ignore]
    if len(present) < 2:
        if present:
            row.wrong(f"{row.column(present[0])!r} stands alone", "both scores or none", row.column(present[0]))
        return None, None
    better, worse = row.score(present[0]), row.score(present[1])
    if better is not None and worse is not None and better < worse:
        what = f"the chosen score {better:g} is below the rejected one {worse:g}"
        row.wrong(what, "chosen >= rejected", row.column("chosen_score"))
    return better, worse


def _one_answer(row: RowReader, names: tuple[str, ...]) -> tuple[Messages, Answer] | None:
    """Return prompt and answer from the first of the columns `names` that the row has."""
    name = next((name for name in names if row.has(name)), names[0])
    texts = (row.plain("prompt"), row.plain(name)) if name != "messages" else (None, None)
    if texts[0] is not None and texts[1] is not None:  # two strings, as most rows are
        prompt = row.instructed((Message("user", texts[0]),))
        return None if prompt is None else (prompt, texts[1])
    answer = row.messages(name, "assistant")
    prompt = () if name == "messages" or row.holds_prompt(name) else row.messages("prompt", "user")
    if prompt is None or answer is None:
        return None
    conversation = row.conversation(prompt, answer, name)
    if conversation is None:
        return None
    common = len(conversation) - 1
    if row.how.turns == "all":
        before = len(prompt) + (conversation[: len(prompt)] != prompt)  # an answer may put instructions before it
        asked = range(before, common)
        common = next((place for place in asked if conversation[place].role == "assistant"), common)
    parts = row.split(conversation, common, name)
    instructed = parts and row.instructed(parts[0])
    return None if parts is None or instructed is None else (instructed, parts[1])


def _unpaired(row: RowReader) -> Unpaired | None:
    row.sides = {}
    if row.has(OUTPUT) and not any(row.has(name) or name in row.columns for name in ("completion", "messages")):
        row.sides = {"completion": OUTPUT}
    parts = _one_answer(row, ("completion", "messages"))
    label = row.label() if row.has("label") else row.missing("label", "true or false")
    given = row.given()
    return None if parts is None or given is None else Unpaired(row.name, *parts, label, given)


def _completion(row: RowReader) -> Unpaired | None:
    if row.has("label") and row.label() is False:
        column = row.column("label")
        row.wrong(f"{column!r} is false", "desirable answers only; leave the others out of this file", column)
    parts = _one_answer(row, ("completion", "messages", "chosen"))
    given = row.given()
    return None if parts is None or given is None else Unpaired(row.name, *parts, given=given)


def _prompt(row: RowReader) -> PromptOnly | None:
    prompt = row.messages("prompt", "user")
    if prompt is None:
        return None
    if prompt[-1].role == "assistant":
        return row.wrong(f"{row.column('prompt')!r} ends with the assistant's turn", "the user's", row.column("prompt"))
    prompt, given = row.instructed(prompt), row.given()
    if prompt is None or given is None:
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


BUILDERS = {"preference": _preference, "unpaired": _unpaired, "completion": _completion, "prompt": _prompt}


def _shown(value: Any) -> str:
    if not isinstance(value, str | int | float | None):
        return kind(value)
    text = json.dumps(value)
    return text if len(text) <= 40 else text[:37] + "..."


def _encodable(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
