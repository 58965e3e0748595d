"""The truncation rule: how long an example may be, and what becomes of one that is longer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from humanline._checks import fail, one_of
from humanline.train.data.sequences import TokenSequence, said_within
from humanline.train.data.write import Unfit

TooLong = Literal["error", "drop", "truncate"]


@dataclass(frozen=True, slots=True)
class LengthLimits:
    """How many tokens a prompt and its completion may have.

    Parameters
    ----------
    max_length : int
        Tokens of prompt and completion together, >= 2.
    too_long : "error", "drop" or "truncate"
        What happens to longer examples. "truncate" cuts the completion's end and adds no end token. A prompt is never
        cut.
    max_prompt_length : int or None
        Tokens of the prompt, 1 <= max_prompt_length < max_length; None = as many as leave room for a completion token.

    Raises
    ------
    ValueError
        If an argument is outside its domain.
    """

    max_length: int
    too_long: TooLong = "error"
    max_prompt_length: int | None = None

    def __post_init__(self) -> None:
        one_of("too_long", self.too_long, get_args(TooLong))
        if not _is_int(self.max_length) or self.max_length < 2:
            raise fail("max_length", "be an integer >= 2 (one token of prompt, one of completion)", self.max_length)
        of_prompt = self.max_prompt_length
        if of_prompt is not None and not (_is_int(of_prompt) and 1 <= of_prompt < self.max_length):
            rule = f"be an integer from 1 to max_length - 1 = {self.max_length - 1}"
            raise fail("max_prompt_length", rule, of_prompt)

    def fit(self, sequence: TokenSequence) -> TokenSequence:
        """Return the sequence within the limits, cut if `too_long` is "truncate".

        Raises
        ------
        Unfit
            If the prompt alone is over its limit or leaves no room for a completion token, or the whole is longer than
            `max_length` and `too_long` is not "truncate".
        """
        room = self.room(sequence.prompt_length, sequence.completion_length)
        if room == sequence.completion_length:
            return sequence
        said = said_within(sequence.said, room)
        return replace(sequence, ids=sequence.ids[: sequence.prompt_length + room], truncated=True, said=said)

    def room(self, prompt_length: int, completion_length: int) -> int:
        """Return how many tokens of a completion are kept; raise Unfit as `fit` does."""
        limit = min(self.max_length - 1, self.max_prompt_length or self.max_length)
        if prompt_length > limit:
            raise Unfit("prompt_too_long", f"the prompt has {prompt_length} tokens; expected at most {limit}")
        length = prompt_length + completion_length
        if length <= self.max_length:
            return completion_length
        if self.too_long != "truncate":
            raise Unfit("too_long", f"prompt and completion have {length} tokens; expected at most {self.max_length}")
        return self.max_length - prompt_length


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
