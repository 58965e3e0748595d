"""Token sequences of a whole set in little memory: two or three bytes a token, and no object for any of them.

A prompt that several answers share is kept once, as is a text that comes again soon; what training sees of a sequence
is made when it is asked for.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, Self, TypeAlias

import numpy as np

_CHUNK = 1 << 18  # tokens that are packed together


Span: TypeAlias = tuple[int, int]  # where ids begin in a store, and how many they are; or begin and end of some


@dataclass(frozen=True, slots=True)
class TokenSequence:
    """Token ids of a prompt followed by its completion.

    `said` are begins and ends, counted from the begin of the completion, of what others say between the turns of one
    that has several: it is read and not learned.
    """

    ids: tuple[int, ...]
    prompt_length: int
    truncated: bool = False
    said: tuple[Span, ...] = ()

    @property
    def completion_length(self) -> int:
        """Count the completion's tokens, those that others say too."""
        return len(self.ids) - self.prompt_length

    @property
    def learned(self) -> int:
        """Count the completion's tokens that are learned."""
        return self.completion_length - sum(end - start for start, end in self.said)

    @property
    def mask(self) -> tuple[bool, ...]:
        """Mark the tokens that are learned, by position."""
        marks = [False] * self.prompt_length + [True] * self.completion_length
        for start, end in self.said:
            marks[self.prompt_length + start : self.prompt_length + end] = [False] * (end - start)
        return tuple(marks)


def said_within(said: Iterable[Span], length: int) -> tuple[Span, ...]:
    """Return what of some spans lies in the first `length` tokens."""
    return tuple((start, min(end, length)) for start, end in said if start < length)


def joined(parts: Sequence[Sequence[int]]) -> tuple[list[int], tuple[Span, ...]]:
    """Return the ids of a completion's parts one behind the other, and the spans of every second one, which is said."""
    if len(parts) == 1:
        return list(parts[0]), ()
    ends = list(accumulate(map(len, parts)))
    return [token for part in parts for token in part], tuple(zip(ends[::2], ends[1::2], strict=False))


class IdStore:
    """Token ids one after the other, in chunks of as few bytes an id as the largest of a chunk needs."""

    def __init__(self) -> None:
        self._chunks: list[np.ndarray] = []  # (n,) of 2 or 4 bytes, or (n, 3) of one byte, the lowest first
        self._starts = [0]  # of each chunk, and of what is not packed yet
        self._loose = array("I")

    def add(self, ids: Sequence[int]) -> int:
        """Keep ids, each from 0 to 2**32 - 1, and return where they begin."""
        start = self._starts[-1] + len(self._loose)
        self._loose.extend(ids)
        if len(self._loose) >= _CHUNK:
            self._pack()
        return start

    def read(self, start: int, length: int) -> np.ndarray:
        """Return `length` ids, as int64, of what was added in one call and begins at or before `start`."""
        number = bisect_right(self._starts, start) - 1
        place = slice(start - self._starts[number], start - self._starts[number] + length)
        if number == len(self._chunks):
            return np.array(self._loose[place], dtype=np.int64)
        chunk = self._chunks[number][place]
        if chunk.ndim == 1:
            return chunk.astype(np.int64)
        wide = np.zeros((len(chunk), 8), dtype=np.uint8)
        wide[:, :3] = chunk
        return wide.view("<i8")[:, 0].astype(np.int64, copy=False)

    def arrays(self) -> dict[str, np.ndarray]:
        """Return all ids as arrays, from which `of_arrays` makes the store anew."""
        chunks = {f"chunk-{number}": chunk for number, chunk in enumerate(self._chunks)}
        return chunks | {"loose": np.array(self._loose, dtype=np.uint32)}

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, np.ndarray]) -> Self:
        """Return the store of which these are the arrays."""
        store = cls()
        store._chunks = [arrays[f"chunk-{number}"] for number in range(len(arrays) - 1)]
        store._starts = [0, *accumulate(len(chunk) for chunk in store._chunks)]
        store._loose = filled("I", arrays["loose"])
        return store

    def _pack(self) -> None:
        ids = np.array(self._loose, dtype="<u4")
        largest = int(ids.max())
        if largest < 1 << 16:
            chunk: np.ndarray = ids.astype(np.uint16)
        elif largest < 1 << 24:
            chunk = ids.view(np.uint8).reshape(-1, 4)[:, :3].copy()
        else:
            chunk = ids
        self._chunks.append(chunk)
        self._starts.append(self._starts[-1] + len(ids))
        self._loose = array("I")


def filled(kind: str, numbers: np.ndarray) -> array[Any]:
    """Return an `array.array` of a kind with the numbers of an array of the same width."""
    result: array[Any] = array(kind)
    result.frombytes(numbers.tobytes())
    return result


# What is kept of rows, and the kind of array that it is in; none for bytes.
_COLUMNS = {
    "_prompts": "q",
    "_prompt_lengths": "i",
    "_prompt_hashes": "q",
    "_completions": "q",
    "_lengths": "i",
    "_cut": "",
    "_ends": "q",
}


def under(prefix: str, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the arrays whose names begin so, by the rest of their names."""
    return {name.removeprefix(prefix): one for name, one in arrays.items() if name.startswith(prefix)}


class Sequences:
    """The sequences of examples, in rows: of one example each, which share its prompt."""

    def __init__(self) -> None:
        self.store = IdStore()
        self._prompts, self._prompt_lengths, self._prompt_hashes = array("q"), array("i"), array("q")
        self._completions, self._lengths, self._cut = array("q"), array("i"), bytearray()
        self._ends = array("q", [0])  # of each row among the completions
        self._said: dict[int, tuple[Span, ...]] = {}  # of completions that have any

    def __len__(self) -> int:
        return len(self._prompts)

    def add(
        self,
        prompt: Span,
        prompt_hash: int,
        completions: Sequence[Span],
        cut: Sequence[int],
        said: Sequence[tuple[Span, ...]] = (),
    ) -> None:
        """Add a row.

        Parameters
        ----------
        prompt, completions : spans of `store`
        prompt_hash : int
            Of the prompt's ids.
        cut : sequence of int
            1 for each completion that is cut, 0 for others.
        said : sequence of tuples of spans, optional
            Of each completion, as `TokenSequence` has it.
        """
        for number, spans in enumerate(said):
            if spans:
                self._said[len(self._completions) + number] = spans
        self._prompts.append(prompt[0])
        self._prompt_lengths.append(prompt[1])
        self._prompt_hashes.append(prompt_hash)
        for start, length in completions:
            self._completions.append(start)
            self._lengths.append(length)
        self._cut.extend(cut)
        self._ends.append(len(self._completions))

    def arrays(self) -> dict[str, np.ndarray]:
        """Return all rows as arrays, from which `of_arrays` makes them anew."""
        columns = {
            f"row/{name}": np.array(getattr(self, name), dtype=np.uint8 if name == "_cut" else None)
            for name in _COLUMNS
        }
        said = [(number, *span) for number, spans in self._said.items() for span in spans]
        columns["said"] = np.array(said, dtype=np.int64).reshape(-1, 3)
        return columns | {f"store/{name}": ids for name, ids in self.store.arrays().items()}

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, np.ndarray]) -> Self:
        """Return the rows of which these are the arrays."""
        made = cls()
        for name, kind in _COLUMNS.items():
            column = arrays[f"row/{name}"]
            setattr(made, name, filled(kind, column) if kind else bytearray(column.tobytes()))
        for number, start, end in arrays["said"].tolist():
            made._said[number] = (*made._said.get(number, ()), (start, end))
        made.store = IdStore.of_arrays(under("store/", arrays))
        return made

    def row(self, number: int) -> tuple[TokenSequence, ...]:
        """Return the sequences of a row."""
        length = self._prompt_lengths[number]
        return tuple(
            TokenSequence(tuple(ids.tolist()), length, bool(self._cut[place]), self._said.get(place, ()))
            for place, ids in zip(self._places(number), self.ids(number), strict=True)
        )

    def rows(self) -> Iterator[tuple[TokenSequence, ...]]:
        """Yield the sequences of every row, to be kept: equal ids are one object, so that a token costs 8 bytes."""
        numbers: dict[int, int] = {}
        shared = numbers.setdefault
        for number in range(len(self)):
            yield tuple(replace(one, ids=tuple(shared(i, i) for i in one.ids)) for one in self.row(number))

    def ids(self, number: int) -> list[np.ndarray]:
        """Return the token ids of each sequence of a row, as int64."""
        prompt = self.store.read(self._prompts[number], self._prompt_lengths[number])
        return [
            np.concatenate([prompt, self.store.read(self._completions[place], self._lengths[place])])
            for place in self._places(number)
        ]

    def lengths(self, number: int) -> tuple[int, ...]:
        """Return the length of each sequence of a row, prompt and completion."""
        length = self._prompt_lengths[number]
        return tuple(length + self._lengths[place] for place in self._places(number))

    def said(self, number: int) -> tuple[tuple[Span, ...], ...]:
        """Return for each sequence of a row what others say in its completion."""
        return tuple(self._said.get(place, ()) for place in self._places(number)) if self._said else ()

    def learned(self, number: int) -> tuple[int, ...]:
        """Return for each sequence of a row how many tokens are learned."""
        places = self._places(number)
        return tuple(
            self._lengths[place] - sum(end - start for start, end in self._said.get(place, ())) for place in places
        )

    def columns(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return of every sequence length, prompt's length and tokens learned, and of every row where its own begin."""
        ends, learned = np.array(self._ends), np.array(self._lengths, dtype=np.int64)
        prompts = np.repeat(np.array(self._prompt_lengths, dtype=np.int64), np.diff(ends))
        lengths = prompts + learned
        for place, spans in self._said.items():
            learned[place] -= sum(end - start for start, end in spans)
        return lengths, prompts, learned, ends[:-1]

    def prompt_length(self, number: int) -> int:
        """Return the length of a row's prompt."""
        return self._prompt_lengths[number]

    @property
    def prompt_hashes(self) -> np.ndarray:
        """Return 64 bits of each row's prompt, which are equal for prompts of equal tokens."""
        return np.array(self._prompt_hashes, dtype=np.int64)

    def _places(self, number: int) -> range:
        return range(self._ends[number], self._ends[number + 1])
