"""Texts -> token ids, many at a time.

One call a text costs about as much in wrapping as in tokenising, so a fast tokenizer is asked for a whole batch, and
not for the offsets that nobody reads. Every batch is held against the tokenizer's own `encode` in its first text.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import Any

from humanline.train.data.word_ids import Encode, WordIds, pieces_by, treats_words_apart

_THREADS = "TOKENIZERS_PARALLELISM"


class UnknownText(ValueError):
    """A text that a tokenizer cannot write down."""


class TextIds:
    """The token ids of texts by a tokenizer, with no special tokens added.

    Parameters
    ----------
    tokenizer : PreTrainedTokenizerBase
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        backend = getattr(tokenizer, "backend_tokenizer", None)
        own = [getattr(type(tokenizer), name, None) for name in ("encode", "_encode_plus")]
        known = all(str(getattr(one, "__module__", "")).startswith("transformers.") for one in own)
        self._many: Encode | None = None
        special = (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id)
        unknown = tokenizer.unk_token_id
        #: The token of text that there is no other token for; None where there is none, or it has another meaning.
        self.unknown: int | None = None if unknown in special else unknown
        if backend is not None and known:  # a tokenizer that encodes in a way of its own does so text by text
            self._backend = getattr(backend, "encode_batch_fast", None) or backend.encode_batch
            self._many = WordIds(self._whole, pieces_by(backend)).many if treats_words_apart(backend) else self._whole

    def refuse_unknown(self, ids: Sequence[int], text: str) -> None:
        """Raise UnknownText if a text, whose ids these are, holds what the tokenizer has no token for."""
        if self.unknown is not None and self.unknown in ids:
            mark, read = self._tokenizer.unk_token, self._tokenizer.decode(list(ids))
            raise UnknownText(
                f"the tokenizer has no tokens for a part of {text[:60]!r}, and reads {read[:60]!r}: leave such rows "
                f"out (data.bad_rows: drop), or use a tokenizer that writes no {mark}"
            )

    def one(self, text: str) -> list[int]:
        """Return the ids of a text."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False)
        return ids

    def many(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each text: those of `one`.

        More than one thread works on it only if the environment has TOKENIZERS_PARALLELISM=true.
        """
        if not texts:
            return []
        first = self.one(texts[0])  # which also sets the backend to neither cut nor pad
        if self._many is not None:
            found = self._many(texts)
            if found[0] == first:
                return found
            self._many = None
        return [first, *map(self.one, texts[1:])]

    def _whole(self, texts: Sequence[str]) -> list[list[int]]:
        with _one_thread():
            return [encoding.ids for encoding in self._backend(list(texts), add_special_tokens=False)]


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Keep the tokenizer, which takes all processors by itself, to one thread, unless the environment says."""
    if _THREADS in os.environ:
        yield
        return
    os.environ[_THREADS] = "false"
    try:
        yield
    finally:
        del os.environ[_THREADS]
