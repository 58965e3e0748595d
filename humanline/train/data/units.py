"""The units of a set, as columns: each unit is made when it is read, so a million of them stay small.

Everything here also takes a plain sequence of units, as rounds make them.
"""

from __future__ import annotations

import hashlib
import json
from abc import abstractmethod
from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self, TypeVar, overload

import numpy as np

from humanline.train.data.batch import Unit
from humanline.train.data.sequences import Sequences, filled, under

T = TypeVar("T")
SIDES = ("chosen", "rejected")


class _Made(Sequence[T]):
    """A sequence whose members are made when they are read."""

    @abstractmethod
    def _at(self, place: int) -> T:
        """Make the member at a place from 0 on."""

    @overload
    def __getitem__(self, place: int) -> T: ...
    @overload
    def __getitem__(self, place: slice) -> list[T]: ...
    def __getitem__(self, place: int | slice) -> T | list[T]:
        if isinstance(place, slice):
            return [self._at(i) for i in range(*place.indices(len(self)))]
        return self._at(range(len(self))[place])


class Names(_Made[str]):
    """Names that end in a number, of which most have the same beginning, such as `pairs.jsonl:17`."""

    def __init__(self) -> None:
        self._stem: str | None = None
        self._numbers = array("q")
        self._others: dict[int, str] = {}

    def append(self, name: str) -> None:
        """Add a name."""
        if self._stem and name.startswith(self._stem):  # as nearly all do; then the number alone is looked at
            digits = name[len(self._stem) :]
            if digits.isdecimal() and digits.isascii() and digits[0] != "0" and len(digits) < 19:
                self._numbers.append(int(digits))
                return
        stem = name.rstrip("0123456789")
        digits = name[len(stem) :]
        if self._stem is None:
            self._stem = stem
        if stem == self._stem and digits.isascii() and len(digits) < 19 and str(int(digits or "0")) == digits:
            self._numbers.append(int(digits))
        else:
            self._others[len(self._numbers)] = name
            self._numbers.append(-1)

    def arrays(self) -> dict[str, np.ndarray]:
        """Return all names as arrays, from which `of_arrays` makes them anew."""
        text = json.dumps([self._stem, list(self._others.items())]).encode()
        return {"numbers": np.array(self._numbers), "text": np.frombuffer(text, dtype=np.uint8)}

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, np.ndarray]) -> Self:
        """Return the names of which these are the arrays."""
        names = cls()
        names._stem, others = json.loads(arrays["text"].tobytes())
        names._numbers, names._others = filled("q", arrays["numbers"]), dict(others)
        return names

    def __len__(self) -> int:
        return len(self._numbers)

    def _at(self, place: int) -> str:
        number = self._numbers[place]
        return self._others[place] if number < 0 else f"{self._stem}{number}"


class BothSides(_Made[str]):
    """The names of the two answers of each of some pairs."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names

    def __len__(self) -> int:
        return 2 * len(self._names)

    def _at(self, place: int) -> str:
        row, side = divmod(place, 2)
        return f"{self._names[row]}#{SIDES[side]}"


class Units(_Made[Unit]):
    """The units of a set.

    Parameters
    ----------
    sequences : Sequences
        A row a unit, or a row for the two units of a pair.
    names : Names
        Of the rows.
    taken_apart : bool
        Whether each answer of a pair is a unit of its own, the first desirable and the second not.
    """

    def __init__(self, sequences: Sequences, names: Names, *, taken_apart: bool = False) -> None:
        self.sequences, self.names, self.taken_apart = sequences, names, taken_apart
        self.labels = bytearray()  # of the rows, where they have labels
        self.scores = array("d")  # two a row, where they have scores

    def pairs(self) -> Units:
        """Return the same rows as pairs."""
        return Units(self.sequences, self.names)

    def arrays(self) -> dict[str, np.ndarray]:
        """Return all units as arrays, from which `of_arrays` makes them anew."""
        own = {
            "labels": np.frombuffer(bytes(self.labels), dtype=np.uint8),
            "scores": np.array(self.scores),
            "taken_apart": np.array([self.taken_apart], dtype=np.uint8),
        }
        names = {f"names/{name}": one for name, one in self.names.arrays().items()}
        return own | names | {f"sequences/{name}": one for name, one in self.sequences.arrays().items()}

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, np.ndarray]) -> Self:
        """Return the units of which these are the arrays."""
        names = Names.of_arrays(under("names/", arrays))
        sequences = Sequences.of_arrays(under("sequences/", arrays))
        units = cls(sequences, names, taken_apart=bool(arrays["taken_apart"][0]))
        units.labels, units.scores = bytearray(arrays["labels"].tobytes()), filled("d", arrays["scores"])
        return units

    def __len__(self) -> int:
        return len(self.sequences) * (2 if self.taken_apart else 1)

    def _at(self, place: int) -> Unit:
        row, name, desirable, scores, members = self._facts(place)
        return Unit(name, self.sequences.row(row)[members], desirable, scores)

    def _facts(self, place: int) -> tuple[int, str, bool, tuple[float, ...], slice]:
        """Return the row of a unit, its name, label and scores, and which sequences of the row are its own."""
        if self.taken_apart:
            row, side = divmod(place, 2)
            return row, f"{self.names[row]}#{SIDES[side]}", side == 0, (), slice(side, side + 1)
        desirable = bool(self.labels[place]) if self.labels else True
        scores = (self.scores[2 * place], self.scores[2 * place + 1]) if self.scores else ()
        return place, self.names[place], desirable, scores, slice(None)

    def facts(self) -> Iterator[tuple[list[Any], list[np.ndarray]]]:
        """Yield for each unit what tells it from others, and its ids.

        The former are [name, label, scores, [(length, prompt length)]]; behind these stands what others say in the
        completion, where there is any.
        """
        for place in range(len(self)):
            row, name, desirable, scores, members = self._facts(place)
            prompt = self.sequences.prompt_length(row)
            lengths: list[Any] = [(length, prompt) for length in self.sequences.lengths(row)[members]]
            for number, said in enumerate(self.sequences.said(row)[members]):
                if said:
                    lengths[number] = (*lengths[number], said)
            yield [name, desirable, scores, lengths], self.sequences.ids(row)[members]

    def lengths(self) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
        """Yield for each unit the lengths of its sequences, and how many tokens of each are learned."""
        for place in range(len(self)):
            row, side = divmod(place, 2) if self.taken_apart else (place, None)
            lengths, learned = self.sequences.lengths(row), self.sequences.learned(row)
            yield (lengths, learned) if side is None else ((lengths[side],), (learned[side],))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or isinstance(other, str):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]


def facts_of(units: Sequence[Unit]) -> Iterator[tuple[list[Any], list[np.ndarray]]]:
    """Yield what `Units.facts` does."""
    if isinstance(units, Units):
        yield from units.facts()
        return
    for unit in units:
        lengths = [(len(one.ids), one.prompt_length, *([one.said] if one.said else [])) for one in unit.sequences]
        yield (
            [unit.id, unit.desirable, unit.scores, lengths],
            [np.asarray(one.ids, dtype=np.int64) for one in unit.sequences],
        )


def lengths_of(units: Sequence[Unit]) -> Iterator[tuple[int, ...]]:
    """Yield the lengths of each unit's sequences, prompt and completion."""
    if isinstance(units, Units):
        yield from (lengths for lengths, _ in units.lengths())
    else:
        yield from (tuple(len(one.ids) for one in unit.sequences) for unit in units)


def columns_of(units: Sequence[Unit]) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return of every sequence length, prompt's length and tokens learned, and of every unit where its own begin."""
    if isinstance(units, Units):
        lengths, prompts, learned, starts = units.sequences.columns()
        return lengths, prompts, learned, np.arange(len(units)) if units.taken_apart else starts
    facts = [(len(one.ids), one.prompt_length, one.learned) for unit in units for one in unit.sequences]
    lengths, prompts, learned = np.array(facts, dtype=np.int64).T
    return lengths, prompts, learned, np.cumsum([0, *(len(unit.sequences) for unit in units)])[:-1]


def count_tokens(units: Sequence[Unit]) -> tuple[int, int]:
    """Count the tokens of all sequences, and those of them that are learned."""
    if isinstance(units, Units):
        whole = own = 0
        for lengths, learned in units.lengths():
            whole += sum(lengths)
            own += sum(learned)
        return whole, own
    return sum(len(one.ids) for unit in units for one in unit.sequences), sum(unit.tokens for unit in units)


def prompt_hashes(units: Units) -> np.ndarray:
    """Return 64 bits of each different prompt, in ascending order."""
    return np.unique(units.sequences.prompt_hashes)


def units_hash(units: Sequence[Unit]) -> str:
    """Return the SHA-256 of what training sees of its data: names, token ids, labels and scores, in order."""
    sha = hashlib.sha256()
    for facts, ids in facts_of(units):
        sha.update(json.dumps(facts).encode())
        for one in ids:
            sha.update(one.tobytes())
    return sha.hexdigest()
