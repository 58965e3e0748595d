r"""Texts -> token ids by way of their words, each of which is tokenised once, where that provably gives the same ids.

Most of a set's words come again and again, and to look one up takes a fraction of the time that a tokenizer takes for
it. A text is cut before each space that stands between two characters other than space: `a b, c` into `a`, ` b,` and
` c`. The tokenizers that are known here (`_PATTERNS`: those of GPT-2, Llama 3, Qwen 2 and 3, and of GPT-4o and its kin)
first cut a text by a pattern themselves and merge bytes only inside of what they have cut. None of these patterns has
a place for a space behind another character, so each cuts there too; none looks back; and the one that looks ahead,
`\s+(?!\S)`, looks at the end of a run of spaces, which is never cut. So the ids of a text are those of its words, one
after the other. A tokenizer of any other make, or with added tokens that hold a space or take one with them, is left to
tokenise whole texts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any

_CONTRACTED = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_FIRST = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_PATTERNS = {
    _FIRST,
    *(
        _CONTRACTED + r"|[^\r\n\p{L}\p{N}]?\p{L}+|" + digits + r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        for digits in (r"\p{N}", r"\p{N}{1,3}")
    ),
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CONTRACTED}?|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_CONTRACTED}?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
}
_CUT = re.compile(r"(?<=\S) (?=\S)")  # what Python takes for a space is all that these patterns do, and some more
_TEXTS = 250  # that are looked up together
_KNOWN = 1 << 14  # words of a place that are remembered, and as many from before; each takes about 200 bytes
_LONGEST = 20  # characters of such a word
_NEW = 0.5  # of the words of some texts: with more new ones the texts are tokenised as they are
_IN_VAIN = 20  # times in a row, after which no words are looked at any more

Encode = Callable[[Sequence[str]], list[list[int]]]
Pieces = Callable[[str], list[str]]


class WordIds:
    """The token ids of texts, from those of their words.

    Parameters
    ----------
    encode : callable
        The ids of each of some texts, by the tokenizer itself; it has to be one of which `treats_words_apart` holds.
    pieces : callable
        Cuts a new word, as `pieces_by` does.
    """

    def __init__(self, encode: Encode, pieces: Pieces) -> None:
        self._encode, self._pieces = encode, pieces
        self._parts = _Known()
        self._begin, self._inner, self._end = _Known(), _Known(), _Known()  # the words, by where they stand in a text
        self._in_vain = 0

    def many(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each text."""
        found: list[list[int]] = []
        for at in range(0, len(texts), _TEXTS):
            some = texts[at : at + _TEXTS]
            found += self._some(some) or self._encode(some)
        return found

    def _some(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each text; of none if too many words are new."""
        if self._in_vain > _IN_VAIN:
            return []
        cut = [text.split(" ") for text in texts]
        places = (self._begin, self._inner, self._end)
        new = self._new(cut)
        odd = [{*filter(is_odd, words)} for is_odd, words in zip((_odd_begin, _odd, _odd_end), new, strict=True)]
        if any(odd):  # spaces beside others: few texts have them, so all are looked at anew
            for number, words in enumerate(cut):
                cut[number] = words if len(words) == 1 or not _holds(words, odd) else _CUT.split(texts[number])
            new = self._new(cut)
        self._in_vain += 1
        if sum(map(len, new)) > _NEW * sum(map(len, cut)):
            return []
        self._in_vain = 0
        alone = [words[0] for words in cut if len(words) == 1]
        asked = [*alone, *new[0], *(f" {word}" for word in chain(new[1], new[2]))]
        ids = iter(self._of_pieces(asked) if asked else [])
        whole = [next(ids) for _ in alone]
        for place, words in zip(places, new, strict=True):
            place.learn(words, ids)
        begin, inner, end = (place.ids for place in places)
        of_alone = iter(whole)
        found = [
            [*begin[words[0]], *chain.from_iterable(map(inner.__getitem__, words[1:-1])), *end[words[-1]]]
            if len(words) > 1
            else next(of_alone)
            for words in cut
        ]
        for place in places:
            place.forget()
        return found

    def _of_pieces(self, words: Sequence[str]) -> list[list[int]]:
        """Return the ids of new words, from those of their pieces, of which there are fewer kinds."""
        cut = [self._pieces(word) for word in words]
        new = self._parts.new({*chain.from_iterable(cut)})
        if new:
            self._parts.learn(new, iter(self._encode(new)))
        known = self._parts.ids
        found = [[*chain.from_iterable(map(known.__getitem__, pieces))] for pieces in cut]
        self._parts.forget()
        return found

    def _new(self, cut: Sequence[Sequence[str]]) -> tuple[list[str], list[str], list[str]]:
        """Return the words that are not known, by where they stand."""
        several = [words for words in cut if len(words) > 1]
        return (
            self._begin.new({words[0] for words in several}),
            self._inner.new({*chain.from_iterable(words[1:-1] for words in several)}),
            self._end.new({words[-1] for words in several}),
        )


class _Known:
    """Words whose ids are known: those met lately, and as many before them."""

    def __init__(self) -> None:
        self.ids: dict[str, tuple[int, ...]] = {}
        self._earlier: dict[str, tuple[int, ...]] = {}
        self._long: list[str] = []

    def new(self, words: set[str]) -> list[str]:
        """Return those of some words that are not known."""
        new = words.difference(self.ids)
        again = new.intersection(self._earlier)
        self.ids.update((word, self._earlier[word]) for word in again)
        return list(new - again)

    def learn(self, words: Sequence[str], ids: Iterator[list[int]]) -> None:
        """Take the next ids for those of some words."""
        self.ids.update(zip(words, map(tuple, ids)))  # noqa: B905 - the ids of other words follow
        self._long += [word for word in words if len(word) > _LONGEST]

    def forget(self) -> None:
        """Forget what takes much room."""
        for word in self._long:
            del self.ids[word]
        self._long = []
        if len(self.ids) > _KNOWN:
            self._earlier, self.ids = self.ids, {}


def _odd(word: str) -> bool:
    return not word or word[0].isspace() or word[-1].isspace()


def _odd_begin(word: str) -> bool:
    return not word or word[-1].isspace()


def _odd_end(word: str) -> bool:
    return not word or word[0].isspace()


def _holds(words: Sequence[str], odd: Sequence[set[str]]) -> bool:
    begin, inner, end = odd
    return words[0] in begin or words[-1] in end or not inner.isdisjoint(words[1:-1])


def treats_words_apart(backend: Any) -> bool:
    """Return whether the ids of a text are those of its words, by a tokenizer of the library `tokenizers`."""
    model = backend.model
    if type(model).__name__ != "BPE" or model.dropout or model.continuing_subword_prefix or model.end_of_word_suffix:
        return False
    for token in backend.get_added_tokens_decoder().values():
        if token.lstrip or token.rstrip or token.single_word or not token.content or _holds_space(token.content):
            return False
    normalizer, cutter = _settings(backend.normalizer), _settings(backend.pre_tokenizer)
    if normalizer not in (None, {"type": "NFC"}):  # which composes nothing with a space
        return False
    steps = cutter.get("pretokenizers", ()) if cutter and cutter.get("type") == "Sequence" else (cutter,)
    *cutters, bytes_of = steps or (None,)
    if not bytes_of or bytes_of.get("type") != "ByteLevel" or bytes_of.get("add_prefix_space") is not False:
        return False
    if not cutters:
        return bytes_of.get("use_regex") is True  # by the first of the patterns
    known = {"type": "Split", "behavior": "Isolated", "invert": False}
    return (
        bytes_of.get("use_regex") is False
        and len(cutters) == 1
        and {name: cutters[0].get(name) for name in known} == known
        and cutters[0].get("pattern", {}).get("Regex") in _PATTERNS
    )


def pieces_by(backend: Any) -> Pieces:
    """Return a function that cuts a word as a tokenizer does of which `treats_words_apart` holds.

    A word of ASCII alone, since there what is a letter, a digit or a space is the same for Python as for the tokenizer;
    any other is left whole. Each piece alone is cut no further: what of a pattern looks ahead ends at a piece's end.
    """
    cutter = _settings(backend.pre_tokenizer)
    pattern = _FIRST
    if cutter["type"] == "Sequence" and len(cutter["pretokenizers"]) > 1:
        pattern = cutter["pretokenizers"][0]["pattern"]["Regex"]
    for wide, narrow in (
        (_UPPER, "[A-Z]"),
        (_LOWER, "[a-z]"),
        (r"\p{L}\p{N}", "A-Za-z0-9"),
        (r"\p{L}", "[A-Za-z]"),
        (r"\p{N}", "[0-9]"),
    ):
        pattern = pattern.replace(wide, narrow)
    find = re.compile(pattern, re.ASCII).findall
    added = backend.get_added_tokens_decoder().values()
    several_passes = any(token.normalized for token in added)
    tokens = sorted((token.content for token in added), key=len, reverse=True)
    apart = re.compile(f"({'|'.join(map(re.escape, tokens))})") if tokens else None

    def cut(word: str) -> list[str]:
        if not word.isascii():
            return [word]
        if apart is None or apart.search(word) is None:
            return find(word)
        if several_passes:
            return [word]
        return [piece for n, part in enumerate(apart.split(word)) for piece in ([part] if n % 2 else find(part))]

    return cut


def _holds_space(text: str) -> bool:
    return any(letter.isspace() for letter in text)


def _settings(part: Any) -> Any:
    """Return the settings of a part of a tokenizer; None where there is no such part."""
    return None if part is None else json.loads(part.__getstate__())
