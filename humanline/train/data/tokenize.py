"""A whole set -> token sequences, batch by batch and each text once, with a report of what was cut or left out."""

from __future__ import annotations

import contextlib
import gc
import math
from array import array
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from humanline.train.data.chat_template import RenderError
from humanline.train.data.messages import Answer, Message
from humanline.train.data.render import Renderer
from humanline.train.data.sequences import Sequences, Span, TokenSequence, joined, said_within
from humanline.train.data.shapes import Group, Preference, PromptOnly, Unpaired
from humanline.train.data.source import DataError
from humanline.train.data.text_ids import TextIds, UnknownText
from humanline.train.data.write import Unfit

E = TypeVar("E", Preference, Unpaired, PromptOnly, Group)


@dataclass(frozen=True, slots=True)
class LengthReport:
    """How a set fits the limits, counted in examples; lengths are tokens of the longest answer with its prompt."""

    total: int
    kept: int
    truncated: int
    dropped_too_long: int
    dropped_prompt_too_long: int
    dropped_empty_completion: int
    dropped_identical: int
    dropped_special_token: int
    longest: int
    limit_99: int  # the smallest max_length at which 99 % fit uncut
    prompt_limit_99: int  # the smallest max_prompt_length at which 99 % of the prompts fit
    said: int = 0  # tokens of other turns between those of answers, which are read and not learned

    def __str__(self) -> str:
        counts = {
            "truncated": self.truncated,
            "dropped: too long": self.dropped_too_long,
            "dropped: prompt too long": self.dropped_prompt_too_long,
            "dropped: empty completion": self.dropped_empty_completion,
            "dropped: answers identical": self.dropped_identical,
            "dropped: special tokens in the text": self.dropped_special_token,
        }
        parts = [f"{self.kept} of {self.total} kept", *(f"{n} {name}" for name, n in counts.items() if n)]
        said = f"; {self.said} tokens of other turns inside of answers are read, not learned" if self.said else ""
        return (
            f"{', '.join(parts)}; longest {self.longest} tokens; max_length {self.limit_99} would keep 99 % whole{said}"
        )


@dataclass(frozen=True, slots=True)
class Tokenized(Generic[E]):
    """Examples that can be trained on, with their token sequences in the same order.

    A preference has two sequences (chosen, rejected), an unpaired example or a prompt one, a group one per completion.
    """

    examples: tuple[E, ...]
    sequences: tuple[tuple[TokenSequence, ...], ...]
    report: LengthReport

    def __len__(self) -> int:
        return len(self.examples)


def tokenize(examples: Iterable[E], renderer: Renderer) -> Tokenized[E]:
    """Render every example, apply the renderer's length policy and count what it did.

    An example is left out whole when any of its sequences cannot be used: the prompt leaves no room for a completion
    token, a completion is blank, the whole is too long (unless it is cut), all its answers came out the same, or a text
    holds a special token.

    Parameters
    ----------
    examples : iterable of Preference, Unpaired, PromptOnly or Group
    renderer : Renderer

    Raises
    ------
    DataError
        If there are no examples, any example cannot be rendered, any would be left out and `too_long` is "error" (for
        special tokens, `special_tokens`), or none is left.
    ValueError
        If the tokenizer loses text, or two begin tokens come out.
    """
    tokenizing: Tokenizing[E] = Tokenizing(renderer)
    kept: list[E] = []
    with contextlib.closing(in_batches(examples)) as batches:
        for batch in batches:
            kept += tokenizing.add(batch)
    report = tokenizing.finish()
    return Tokenized(tuple(kept), tuple(tokenizing.sequences.rows()), report)


def in_batches(examples: Iterable[E]) -> Generator[list[E], None, None]:
    """Give examples in lists of as many as are rendered and tokenised together.

    Until it is closed the garbage collector runs between batches, over what is new, and not at all in them: the many
    small objects of a batch would otherwise make it go through everything that the process holds, again and again.
    """
    automatic = gc.isenabled()
    gc.disable()
    try:
        for batch in _batches(examples):
            yield batch
            if automatic:
                gc.collect(1)
    finally:
        if automatic:
            gc.enable()


def _batches(examples: Iterable[E]) -> Iterator[list[E]]:
    batch: list[E] = []
    characters = 0
    for example in examples:
        batch.append(example)
        characters += sum(len(turn.content) for turn in example.prompt)
        characters += sum(map(_characters, _answers(example)))
        if len(batch) == _ROWS or characters >= _CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def _characters(answer: Answer) -> int:
    if isinstance(answer, tuple):
        return sum(len(turn.content) for turn in answer)
    return len(answer.content if isinstance(answer, Message) else answer)


_ROWS = 1000  # of a batch; with more of them it is hardly faster
_CHARACTERS = 1 << 20  # of a batch: about 10 MB while it is tokenised
_LATELY = 1 << 23  # bytes of texts that are remembered, about, and once more of those before them
_ENTRY = 300  # bytes of what is remembered of a text, about, besides its characters


@dataclass(slots=True)
class _Text:
    """The ids of a text: as a list while it is in hand, and where they are kept once they are."""

    ids: list[int] | None
    length: int
    start: int = -1
    hash: int = 0  # of the ids; 0 = not made yet
    unknown: bool = False  # whether it holds what the tokenizer has no token for


class Tokenizing(Generic[E]):
    """Tokenise a set batch by batch, each text once, into `sequences`, and count what became of its examples.

    Parameters
    ----------
    renderer : Renderer
    dropping : bool
        Whether examples that cannot be rendered are left out; what is wrong with each is then in `dropped`.

    Notes
    -----
    A text is tokenised again only if so much else was read since that it is forgotten. Nothing is raised before
    `finish`, so that problems of rows that come later can still be told of first.
    """

    def __init__(self, renderer: Renderer, *, dropping: bool = False) -> None:
        self.sequences = Sequences()
        self.total = 0
        self.dropped: list[str] = []
        self._dropping = dropping
        self._renderer = renderer
        self._text_ids = TextIds(renderer.tokenizer)
        self._batch: dict[str, _Text] = {}
        self._lately: dict[str, _Text] = {}
        self._earlier: dict[str, _Text] = {}
        self._remembered = 0
        self._failure: ValueError | None = None
        self._problems: list[str] = []
        self._left_out: list[str] = []
        self._holding: list[str] = []
        self._reasons: Counter[str] = Counter()
        self._truncated = self._said = 0
        self._lengths, self._prompt_lengths = array("i"), array("i")

    def add_some(self, examples: Sequence[E], limit: int | None) -> list[E]:
        """Return what `add` does, and look at no further examples once so many were kept of all."""
        if limit is None:
            return self.add(examples)
        kept: list[E] = []
        at = 0
        while at < len(examples) and (room := limit - len(self.sequences)) > 0:
            kept += self.add(examples[at : at + room])
            at += room
        return kept

    def add(self, examples: Sequence[E]) -> list[E]:
        """Render and tokenise examples; return those that are kept, whose rows of `sequences` are the last ones."""
        self.total += len(examples)
        if self._failure is not None:
            return []
        try:
            return self._add(examples)
        except ValueError as error:  # of the tokenizer or the template, not of one example
            self._failure = error
            return []

    def _add(self, examples: Sequence[E]) -> list[E]:
        rendered = [(example, self._rendered(example)) for example in examples]
        if self._problems:  # nothing will be used; only the other problems are looked for
            return []
        self._encode(text for _, texts in rendered if isinstance(texts, list) for parts in texts for text in parts)
        kept = []
        for example, texts in rendered:
            if not texts:  # it is dropped
                continue
            try:
                if isinstance(texts, Unfit):
                    raise texts
                if self._refused(example, texts):
                    continue
                self._fit(example, texts)
            except Unfit as error:
                self._reasons[error.reason] += 1
                found = self._holding if error.reason == "special_token" else self._left_out
                found.append(f"{error.place or example.id}: {error}")
            else:
                kept.append(example)
        self._remember()
        return kept

    def _rendered(self, example: E) -> list[tuple[str, ...]] | Unfit:
        """Return the text of an example's prompt and the parts of each of its answers, with the anchor."""
        renderer: Renderer = self._renderer
        try:
            if isinstance(example, PromptOnly):
                return [(renderer.writer.written_prompt(example.prompt, example.given),)]
            found: list[tuple[str, ...]]
            found = [renderer.texts(example.prompt, answer, example.given) for answer in _answers(example)]
            return [found[0][:1], *(tuple(renderer.anchor + part for part in parts) for _, *parts in found)]
        except Unfit as error:
            return error
        except (RenderError, UnknownText) as error:
            self._note(example, error)
            return []

    def _refused(self, example: E, texts: list[tuple[str, ...]]) -> bool:
        """Note an example of which the tokenizer would lose text, and return whether it is one."""
        for text in (text for parts in texts for text in parts if self._batch[text].unknown):
            try:
                self._text_ids.refuse_unknown(self._text_ids.one(text), text)
            except UnknownText as error:
                self._note(example, error)
                return True
        return False

    def _note(self, example: E, error: RenderError | UnknownText) -> None:
        place = error.place if isinstance(error, RenderError) else ""
        (self.dropped if self._dropping else self._problems).append(f"{place or example.id}: {error}")

    def _encode(self, texts: Iterable[str]) -> None:
        """Put the texts of a batch, each once, into `_batch`, with their ids if they are not remembered."""
        self._batch = {}
        new = []
        for text in texts:
            if text not in self._batch:
                known = self._lately.get(text) or self._earlier.get(text)
                if known is None:
                    known = _Text(None, 0)
                    new.append(text)
                self._batch[text] = known
        unknown = self._text_ids.unknown
        for text, ids in zip(new, self._text_ids.many(new), strict=True):
            one = self._batch[text]
            one.ids, one.length, one.unknown = ids, len(ids), unknown is not None and unknown in ids

    def _remember(self) -> None:
        """Remember the texts of a batch whose ids are kept, and forget those of long ago."""
        for text, one in self._batch.items():
            one.ids = None
            if one.start >= 0 and text not in self._lately:
                self._lately[text] = one
                self._remembered += len(text) + _ENTRY
        self._batch = {}
        if self._remembered > _LATELY:
            self._earlier, self._lately, self._remembered = self._lately, {}, 0

    def _joined(self, parts: tuple[str, ...]) -> tuple[_Text, tuple[Span, ...]]:
        """Return the parts of an answer as one text, and the spans of what others say in it."""
        if len(parts) == 1:
            return self._batch[parts[0]], ()
        skipped: int = self._renderer.skipped
        ids: list[list[int]] = [self._ids(self._batch[part], self._batch[part].length) for part in parts]
        own: tuple[list[int], tuple[Span, ...]] = joined([one[skipped:] for one in ids])
        whole: list[int] = [*ids[0][:skipped], *own[0]]
        return _Text(whole, len(whole)), own[1]

    def _fit(self, example: E, texts: list[tuple[str, ...]]) -> None:
        """Take note of the lengths of an example, and keep its sequences if they fit."""
        renderer = self._renderer
        prompt, whole = self._batch[texts[0][0]], [self._joined(parts) for parts in texts[1:]]
        answers = [text for text, _ in whole]
        if not prompt.hash:
            ids = self._ids(prompt, prompt.length)
            renderer.refuse_begin_twice(ids)
            prompt.hash = hash(tuple(ids)) or 1
        skipped = renderer.skipped
        lengths = [one.length - skipped for one in answers] or [0]  # a prompt alone has an answer of no token
        self._lengths.append(prompt.length + max(lengths) + (not answers))
        self._prompt_lengths.append(prompt.length)
        rooms = [renderer.limits.room(prompt.length, length) for length in lengths]
        if len(answers) > 1 and rooms.count(rooms[0]) == len(rooms):
            ids = self._ids(answers[0], skipped + rooms[0])
            if all(self._ids(one, skipped + rooms[0]) == ids for one in answers[1:]):
                raise Unfit("identical", f"the answers are the same tokens{' once cut' if rooms != lengths else ''}")
        start = self._kept(prompt, prompt.length)
        spans = [
            (self._kept(one, skipped + room) + skipped, room) for one, room in zip(answers, rooms, strict=False)
        ] or [(start, 0)]
        self._truncated += rooms != lengths
        cut = [room < length for room, length in zip(rooms, lengths, strict=True)] if rooms != lengths else None
        said = [said_within(one, room) for (_, one), room in zip(whole, rooms, strict=False)]
        self._said += sum(end - start for one in said for start, end in one)
        self.sequences.add((start, prompt.length), prompt.hash, spans, cut or bytes(len(spans)), said)

    def _ids(self, text: _Text, length: int) -> list[int]:
        """Return the first ids of a text."""
        if text.ids is not None:
            return text.ids[:length]
        ids: list[int] = self.sequences.store.read(text.start, length).tolist()
        return ids

    def _kept(self, text: _Text, length: int) -> int:
        """Return where the first ids of a text are kept; of one that is cut no more than these."""
        if text.start >= 0:
            return text.start
        start = self.sequences.store.add(self._ids(text, length))
        if length == text.length:
            text.start = start
        return start

    def finish(self) -> LengthReport:
        """Return how the set fits; raise as `tokenize` does."""
        if self._failure is not None:
            raise self._failure
        if not self.total:
            raise DataError("there are no examples to tokenise")
        renderer, total, kept = self._renderer, self.total - len(self.dropped), len(self.sequences)
        if self._problems:
            raise DataError(f"{len(self._problems)} of {total} examples cannot be rendered", self._problems)
        report = LengthReport(
            total=total,
            kept=kept,
            truncated=self._truncated,
            dropped_too_long=self._reasons["too_long"],
            dropped_prompt_too_long=self._reasons["prompt_too_long"],
            dropped_empty_completion=self._reasons["empty_completion"],
            dropped_identical=self._reasons["identical"],
            dropped_special_token=self._reasons["special_token"],
            longest=max(self._lengths, default=0),
            limit_99=_limit_99(self._lengths),
            prompt_limit_99=_limit_99(self._prompt_lengths),
            said=self._said,
        )
        if self._holding and (renderer.special_tokens == "error" or not (kept or self._left_out)):
            advice = "Take the tokens out of the texts, or set data.special_tokens: drop to leave these examples out."
            what = f"{len(self._holding)} of {total} examples hold special tokens"
            raise DataError(what, self._holding, advice)
        if self._left_out and (renderer.limits.too_long == "error" or not kept):
            what = "no example is left" if not kept else f"{len(self._left_out)} of {total} examples cannot be used"
            limits = f"data.max_length: {report.limit_99} would keep 99 % whole"
            if self._reasons["prompt_too_long"] and renderer.limits.max_prompt_length is not None:
                limits += f", data.max_prompt_length: {report.prompt_limit_99} 99 % of the prompts"
            advice = f"{limits}; or set data.too_long: drop or truncate." if kept else f"{limits}."
            raise DataError(f"{what} with max_length {renderer.limits.max_length}", self._left_out, advice)
        return report


def _answers(example: Preference | Unpaired | PromptOnly | Group) -> tuple[Answer, ...]:
    if isinstance(example, Preference):
        return (example.chosen, example.rejected)
    if isinstance(example, PromptOnly):
        return ()
    return example.completions if isinstance(example, Group) else (example.completion,)


def _limit_99(lengths: Sequence[int]) -> int:
    """Return the smallest limit that at least 99 % of the lengths do not exceed."""
    if not lengths:
        return 0
    place = math.ceil(0.99 * len(lengths)) - 1
    return int(np.partition(np.array(lengths, dtype=np.int64), place)[place])
