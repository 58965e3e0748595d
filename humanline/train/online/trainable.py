"""Whether a completion can be trained on: its tokens are the model's, say what its text says, and are not too many.

The reward reads a completion's text, training raises the probability of its ids. Everything that samples or reads
samples back asks here, so that nothing is kept on which training would break, or raise the probability of what was
not scored.

Texts are compared as a reader would: decoders drop special tokens, a space before the first word, a character that the
length limit has cut in two, and templates trim; none of this makes another text. Everything else does.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from humanline.system.terminal import redact, visible
from humanline.train.data.dialogue import first_difference
from humanline.train.data.render import Renderer
from humanline.train.online.types import Completion, Rollout

Reason = Literal["ids_outside_vocabulary", "ids_of_another_text", "too_many_tokens"]
SHOWN = 40  # characters of a text in a message


class Untrainable(ValueError):
    """A completion that must not be trained on; `reason` says why, for counts."""

    def __init__(self, reason: Reason, message: str) -> None:
        self.reason: Reason = reason
        super().__init__(message)


class Trainable:
    """Refuse completions that cannot be trained on.

    Parameters
    ----------
    renderer : Renderer
        Whose tokenizer and max_length are those of training.
    max_tokens : int
        The most tokens of a completion, its end token included.
    vocabulary : int, optional
        Ids that the model has rows for, 0 to vocabulary - 1; default: those that the tokenizer knows.
    """

    def __init__(self, renderer: Renderer, max_tokens: int, vocabulary: int | None = None) -> None:
        self.renderer, self.max_tokens = renderer, max_tokens
        self.vocabulary = vocabulary or max(renderer.tokenizer.get_vocab().values()) + 1

    def room(self, prompt: int) -> int:
        """Return the most tokens that a completion can have after so many of the prompt."""
        return min(self.max_tokens, self.renderer.limits.max_length - prompt)

    def check_rollout(self, rollout: Rollout, prompt: int) -> None:
        """Raise Untrainable, with the number of the completion, if one of a rollout cannot be trained on.

        Completions without ids, which files from elsewhere may have, are left alone: no training takes them.
        """
        for number, completion in enumerate(rollout.completions, start=1):
            if not completion.ids:
                continue
            try:
                self.check(completion, prompt)
            except Untrainable as error:
                raise Untrainable(error.reason, f"completion {number}: {error}") from None

    def check(self, completion: Completion, prompt: int) -> None:
        """Raise Untrainable if a completion cannot be trained on after a prompt of so many tokens."""
        self.check_ids(completion.ids)
        room = self.room(prompt)
        if len(completion.ids) > room:
            raise Untrainable(
                "too_many_tokens",
                f"it has {len(completion.ids)} tokens, where source.sampling.max_tokens {self.max_tokens} and "
                f"data.max_length {self.renderer.limits.max_length} leave {room}",
            )
        if not self._says(completion):
            text, found = completion.text, self.decode(completion.ids)
            at = max(0, first_difference(text, found) - SHOWN // 4)
            raise Untrainable(
                "ids_of_another_text", f"its text is {_shown(text, at)}, but its token ids say {_shown(found, at)}"
            )

    def check_ids(self, ids: Sequence[int]) -> None:
        """Raise Untrainable if the model has no row for an id."""
        wrong = next((one for one in ids if not 0 <= one < self.vocabulary), None)
        if wrong is not None:
            raise Untrainable(
                "ids_outside_vocabulary",
                f"token id {wrong} is none of the model's, which are 0 to {self.vocabulary - 1}",
            )

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        """Return the text of token ids, with special tokens or without."""
        text: Any = self.renderer.tokenizer.decode(
            list(ids), skip_special_tokens=not special, clean_up_tokenization_spaces=False
        )
        return str(text)

    def _says(self, completion: Completion) -> bool:
        """Return whether the ids say the text."""
        text = _plain(completion.text)
        if any(_plain(found) == text for found in self._readings(completion)):
            return True
        if completion.finish != "stop":
            return False
        # A stop text may end inside a token, of which the text has the first part only.
        whole, before = (_plain(self.decode(ids)) for ids in (completion.ids, completion.ids[:-1]))
        return whole.startswith(text) and text.startswith(before)

    def _readings(self, completion: Completion) -> Iterator[str]:
        """Yield the texts that servers may make of the ids, the usual one first."""
        ids, tokenizer = completion.ids, self.renderer.tokenizer
        # Some models end by a token that their tokenizer does not call special.
        for part in (ids, ids[:-1]) if completion.finish == "end" else (ids,):
            yield self.decode(part)
            yield self.decode(part, special=True)
            if tokenizer.clean_up_tokenization_spaces:  # decoders then drop spaces before dots, or do not
                yield tokenizer.clean_up_tokenization(self.decode(part))


def vocabulary_of(model: Any) -> int:
    """Return how many token ids a model of transformers has rows for."""
    return int(model.get_input_embeddings().weight.shape[0])


def _plain(text: str) -> str:
    """Return a text without what decoders differ in: space at its ends, halves of characters, composed forms."""
    return unicodedata.normalize("NFC", text.replace("\N{REPLACEMENT CHARACTER}", "")).strip()


def _shown(text: str, start: int) -> str:
    """Return a part of a text in quotes, fit to be shown."""
    part = visible(redact(text[start : start + SHOWN]))
    return f"{'...' if start else ''}'{part}'{'...' if start + SHOWN < len(text) else ''}"
