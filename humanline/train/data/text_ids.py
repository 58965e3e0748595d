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
        if backend is not None and known:  # a tokenizer that encodes in a way of its own does so text by text
            self._backend = getattr(backend, "encode_batch_fast", None) or backend.encode_batch
            self._many = WordIds(self._whole, pieces_by(backend)).many if treats_words_apart(backend) else self._whole

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
