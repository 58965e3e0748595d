"""Asking a judge which of two answers is better: each question once, whatever it says kept as it said it.

What is kept is the judge's words, by the content of the question, not what was read in them: another rule for reading
asks nothing again, and words in which no verdict is found are paid for once. What a server did not answer is not kept,
and is asked again by the next command.
"""

from __future__ import annotations

import asyncio
import collections
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from humanline.evaluate.judge_config import PLACEHOLDER, JudgeConfig
from humanline.system.files import make_folder
from humanline.train.data.messages import Messages
from humanline.train.online.ledger import LedgerError, append, each_line, read_lines
from humanline.train.online.rewards.cache import content_key
from humanline.train.online.rewards.verdict import LONGEST_COMPLETION, Verdict, shown
from humanline.train.online.samplers.http import BadAnswer, Client, Refused, Sleep, api_key, parse, quoted
from humanline.train.online.samplers.under_way import finish
from humanline.train.online.types import SamplerError

PATH = "/v1/chat/completions"
WORDS = "words.jsonl"  # where a judge's words are kept
_HOPELESS = frozenset({401, 403, 404, 405})  # what one request is refused for, all are


class Question(NamedTuple):
    """Two answers to a prompt, in the order in which they are shown."""

    prompt: Messages
    first: str
    second: str


class Told(NamedTuple):
    """A judge's words, and why they ended."""

    text: str
    finish: str


class Unasked(NamedTuple):
    """Why there are no words of a judge."""

    status: str
    reason: str


class JudgeError(ValueError):
    """A judge that cannot be asked; what it has said is kept."""


class Words:
    """A judge's words by the content of the question, in an append-only file of JSON lines.

    Parameters
    ----------
    path : Path
        Made if it is missing, with its folder. A torn end, which a kill has left, is cut off.
    others : iterable of Path
        Files that are read and not written, or folders with one.

    Raises
    ------
    LedgerError, OSError
        If a line is none of these, or a file cannot be read.
    """

    def __init__(self, path: Path, others: Iterable[Path] = ()) -> None:
        self._path = path
        self._known: dict[str, Told] = {}
        make_folder(path.parent)
        files = [other / WORDS if other.is_dir() else other for other in others]
        for file, rows in [*((other, each_line(other)) for other in files), (path, read_lines(path))]:
            for number, row in enumerate(rows, start=1):
                if not all(isinstance(row.get(name), str) for name in ("key", *Told._fields)):
                    raise LedgerError(
                        f"{file}:{number}: not what a judge has said; give {WORDS} of a folder that humanline win-rate "
                        "--judge has made, or the folder"
                    )
                self._known[row["key"]] = Told(row["text"], row["finish"])

    def get(self, key: str) -> Told | None:
        """Return what was said to a question, or None."""
        return self._known.get(key)

    def put(self, key: str, told: Told) -> None:
        """Keep an answer, on the disk when this returns."""
        if key not in self._known:
            append(self._path, [{"key": key, **told._asdict()}])
            self._known[key] = told


class _BudgetSpent(Exception):
    pass


class _Counting(Client):
    """A client that sends no more requests than a budget allows; those that are tried again count too."""

    sent = 0
    budget: int | None = None

    async def send(self, method: str, path: str, body: Any = None) -> tuple[int, Any, bytes]:
        if self.budget is not None and self.sent >= self.budget:
            raise _BudgetSpent
        self.sent += 1
        return await super().send(method, path, body)


@dataclass(slots=True)
class _Round:
    """What all workers of one command share."""

    questions: Mapping[str, Question]
    found: dict[str, Told | Unasked]
    due: list[str]
    in_vain: int = 0  # questions in a row to which there was no answer
    ended: Unasked | None = None  # why no more are asked
    broken: BaseException | None = None


class Judge:
    """A judge who is asked questions, at most once each.

    Parameters
    ----------
    config : JudgeConfig
    words : Words
        What has been said before, and where what is said is kept.
    sleep : callable, optional
        Waits between attempts: `await sleep(seconds)`.

    Attributes
    ----------
    sent : int
        Requests that were sent.
    """

    def __init__(self, config: JudgeConfig, words: Words, *, sleep: Sleep = asyncio.sleep) -> None:
        self.config, self._words, self._sleep, self.sent = config, words, sleep, 0

    def ask(
        self,
        questions: Sequence[Question],
        *,
        stopping: Callable[[], bool] = lambda: False,
        progress: Callable[[int, int], None] | None = None,
    ) -> list[Verdict]:
        """Return a verdict on each question: 1 for the answer shown first, 0 for the second, 0.5 for a tie.

        Parameters
        ----------
        questions : sequence of Question
            Asked in this order; those that are equal once.
        stopping : callable, optional
        progress : callable, optional
            Called with (done, due).

        Returns
        -------
        list of Verdict
            Without a value: "unread" (no verdict in its words), "empty", "truncated" (at max_tokens), "too_long",
            "server" (no usable answer in all attempts), "refused" (this request alone), "not_asked" (the budget was
            spent, or too many failed in a row).

        Raises
        ------
        JudgeError
            If the server refuses every request, as for a wrong key or model.
        SamplerError
            If the URL is none, or the variable with the API key is not set.
        SamplingStopped
            If `stopping` said so; what was said until then is kept.
        """
        keys = [self._key(question) for question in questions]
        by_key = dict(zip(keys, questions, strict=True))
        found: dict[str, Told | Unasked] = {key: told for key in by_key if (told := self._words.get(key)) is not None}
        due = [key for key in by_key if key not in found]
        if due:
            work = _Round(by_key, found, due[::-1])
            client = _Counting(self.config, api_key(self.config), self._sleep)
            client.budget = self.config.budget
            try:
                finish(self._ask_all(client, work, len(by_key), progress), stopping)
            finally:
                self.sent += client.sent
            if work.broken is not None:
                raise work.broken
        elif progress is not None:
            progress(len(by_key), len(by_key))
        return [self._read(found[key]) for key in keys]

    def _key(self, question: Question) -> str:
        """Return the digest of a request and of the server it goes to: names of models say little across servers."""
        return content_key("judge", self.config.url, self.config.fields(self._messages(question))).hex()

    def _messages(self, question: Question) -> list[dict[str, str]]:
        parts = {"prompt": _written(question.prompt), "first": question.first, "second": question.second}
        # In one pass, so that nothing in an answer stands for another part.
        text = PLACEHOLDER.sub(lambda match: parts[match[1]], self.config.question)
        system = [{"role": "system", "content": self.config.system_prompt}] if self.config.system_prompt else []
        return [*system, {"role": "user", "content": text}]

    async def _ask_all(
        self, client: _Counting, work: _Round, total: int, progress: Callable[[int, int], None] | None
    ) -> None:
        async def worker() -> None:
            while work.due and work.broken is None:
                key = work.due.pop()
                work.found[key] = work.ended or await self._ask(client, work, key)
                if progress is not None:
                    progress(len(work.found), total)

        async with client, asyncio.TaskGroup() as group:
            for _ in range(min(self.config.concurrency, len(work.due))):
                group.create_task(worker())

    async def _ask(self, client: _Counting, work: _Round, key: str) -> Told | Unasked:
        """Return the words on one question, which are on the disk by then, or why there are none."""
        body = self.config.fields(self._messages(work.questions[key]))
        try:
            told = await client.post(PATH, body, _words)
        except _BudgetSpent:
            work.ended = Unasked("not_asked", f"the budget of {self.config.budget} requests was spent (judge.budget)")
            return work.ended
        except Refused as error:
            if error.status in _HOPELESS or 300 <= error.status < 400:
                work.broken = work.broken or JudgeError(str(error))
            return self._failed(work, Unasked("refused", str(error)))
        except SamplerError as error:
            return self._failed(work, Unasked("server", str(error)))
        work.in_vain = 0
        self._words.put(key, told)
        return told

    def _failed(self, work: _Round, why: Unasked) -> Unasked:
        """Return why there are no words, and end the asking where too many in a row have none."""
        work.in_vain += 1
        if work.in_vain >= self.config.give_up and work.ended is None:
            told = f"{work.in_vain} requests in a row failed (judge.give_up); the last: {why.reason}"
            work.ended = Unasked("not_asked", told)
        return why

    def _read(self, told: Told | Unasked) -> Verdict:
        """Return the verdict in a judge's words."""
        if isinstance(told, Unasked):
            return Verdict(None, told.status, told.reason)
        if not told.text.strip():
            return Verdict(None, "empty", "the judge said nothing")
        if told.finish == "length":
            return Verdict(None, "truncated", f"{self.config.max_tokens} tokens were too few (judge.max_tokens)")
        if len(told.text) > LONGEST_COMPLETION:
            return Verdict(None, "too_long", f"it has more than {LONGEST_COMPLETION} characters")
        last = next(iter(collections.deque(re.finditer(self.config.verdict, told.text), maxlen=1)), None)
        named = [] if last is None else [name for name, text in last.groupdict().items() if text is not None]
        if len(named) != 1:
            return Verdict(None, "unread", f"no verdict in {shown(told.text[-200:])!r}")
        return Verdict({"first": 1.0, "second": 0.0, "tie": 0.5}[named[0]], reason=shown(told.text))


def _written(prompt: Messages) -> str:
    """Return a prompt as a judge reads it: a single question as it is, else each turn under its role."""
    if len(prompt) == 1 and prompt[0].role == "user" and not prompt[0].keys:
        return prompt[0].content
    turns = [(turn.role, turn.content + (f"\n{turn.keys}" if turn.keys else "")) for turn in prompt]
    return "\n\n".join(f"[{role}]\n{text}" for role, text in turns)


def _words(content: bytes) -> Told:
    """Return the words in an answer; raise BadAnswer if it is no answer of a chat."""
    answer = parse(content)
    choices = answer.get("choices") if isinstance(answer, dict) else None
    choice = choices[0] if isinstance(choices, list) and choices else None
    message = choice.get("message") if isinstance(choice, dict) else None
    if not isinstance(choice, dict) or not isinstance(message, dict):
        raise BadAnswer(f"an answer without a message: {quoted(answer)}")
    text, ended = message.get("content"), choice.get("finish_reason")
    if text is not None and not isinstance(text, str):
        raise BadAnswer(f"a message that is no text: {quoted(message)}")
    text = (text or "")[: LONGEST_COMPLETION + 1].encode("utf-8", "replace").decode()
    return Told(text, ended if isinstance(ended, str) else "")
