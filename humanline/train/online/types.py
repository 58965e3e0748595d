"""Rollouts: prompts and what was sampled from them, as objects and as JSON rows."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, get_args

from humanline.train.data.messages import Given, Message, Messages
from humanline.train.data.prompts import Context

Finish = Literal["end", "stop", "length"]


@dataclass(frozen=True, slots=True)
class Completion:
    """A completion, as it was sampled.

    Parameters
    ----------
    text : str
        Without the end token.
    ids : tuple of int
        As sampled, with the end token if one was; where a server tells only the text, the text's own tokens.
    finish : {"end", "stop", "length"}
        Whether it ended by an end token or a stop text, or was truncated.
    logprobs : sequence of float or None
        The sampler's own, of every id, at temperature 1 and before top-p, nats; None where a server does not tell.
    """

    text: str
    ids: tuple[int, ...]
    finish: Finish
    logprobs: Sequence[float] | None = None

    @property
    def truncated(self) -> bool:
        """Return whether it ran into its length limit."""
        return self.finish == "length"


@dataclass(slots=True)
class OwnTokens:
    """The mean of -log p over tokens that a policy has drawn itself: what its entropy is told from.

    Drawn at temperature 1 from the whole distribution, it is an unbiased estimate of the policy's entropy a token.
    Drawn at a lower temperature, or with top-p, it lies below that, and still follows it.
    """

    total: float = 0.0
    tokens: int = 0

    def add(self, completion: Completion) -> None:
        """Take in a completion, if its sampler has told log-probabilities."""
        if completion.logprobs is not None:
            self.total -= math.fsum(completion.logprobs)
            self.tokens += len(completion.logprobs)

    def facts(self) -> dict[str, float]:
        """Return ``completion_nll``, nats a token; nothing where no sampler has told any."""
        return {"completion_nll": self.total / self.tokens} if self.tokens else {}


@dataclass(frozen=True, slots=True)
class Rollout:
    """A prompt with its completions, and the version of the policy that made them.

    `asked_again` counts answers of a server in whose place others were asked for, by why they could not be trained on.
    """

    id: str
    prompt: Messages
    completions: tuple[Completion, ...]
    extra: Mapping[str, Any] = field(default_factory=dict)
    policy: str = ""
    asked_again: Mapping[str, int] = field(default_factory=dict)

    @property
    def given(self) -> Given:
        """Return the tools and arguments that its columns give the chat template."""
        return Given.of(self.extra)

    @property
    def plain(self) -> bool:
        """Return whether its row has the prompt as a text, not as messages."""
        return bool(self.prompt) and self.prompt[-1].plain

    def row(self) -> dict[str, Any]:
        """Return a JSON row."""
        again: dict[str, Any] = {"asked_again": dict(self.asked_again)} if self.asked_again else {}
        again |= {"plain": True} if self.plain else {}
        return {
            "id": self.id,  # first, with the policy, where they can be read without the rest
            "policy": self.policy,
            "prompt": [message.as_dict() for message in self.prompt],
            "extra": dict(self.extra),
            "completions": [
                {
                    "text": one.text,
                    "ids": list(one.ids),
                    "finish": one.finish,
                    "logprobs": None if one.logprobs is None else list(one.logprobs),
                }
                for one in self.completions
            ],
        } | again

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Rollout:
        """Return the rollout of a row that `row` made; raise KeyError, TypeError or ValueError if it is none."""
        prompt = tuple(map(Message.of, row["prompt"]))
        found = cls(
            id=row["id"],
            prompt=(*prompt[:-1], replace(prompt[-1], plain=True)) if row.get("plain") and prompt else prompt,
            extra=dict(row["extra"]),
            policy=row["policy"],
            asked_again=dict(row.get("asked_again", {})),
            completions=tuple(
                Completion(
                    text=one["text"],
                    ids=tuple(one["ids"]),
                    finish=one["finish"],
                    logprobs=None if one["logprobs"] is None else tuple(one["logprobs"]),
                )
                for one in row["completions"]
            ),
        )
        found._check()
        return found

    def _check(self) -> None:
        """Raise TypeError or ValueError if a value is not what its type says."""
        texts = [self.id, self.policy]
        texts += [text for message in self.prompt for text in (message.role, message.content)]
        if not all(isinstance(text, str) for text in [*texts, *(one.text for one in self.completions)]):
            raise TypeError("id, policy, role, content and text must be strings")
        if not all(isinstance(why, str) and type(count) is int for why, count in self.asked_again.items()):
            raise TypeError("asked_again must hold counts by reason")
        _ = self.given  # raises if it cannot be read
        for one in self.completions:
            if one.finish not in get_args(Finish):
                raise ValueError(f"finish must be one of {', '.join(get_args(Finish))}; got {one.finish!r}")
            if not all(type(number) is int for number in one.ids):
                raise TypeError("ids must be integers")
            if one.logprobs is not None and (
                len(one.logprobs) != len(one.ids) or not all(isinstance(number, float | int) for number in one.logprobs)
            ):
                raise ValueError("logprobs must be null or one number for each id")


@dataclass(frozen=True, slots=True)
class Score:
    """The score of a completion, or why it has none.

    Parameters
    ----------
    value : float or None
        None unless the status is "ok".
    status : str
        "ok", or what went wrong: "timeout", "memory", "crashed", "too_long", "no_reference", "not_finite", "error",
        or "not_scored" where no reward scores such a completion.
    parts : mapping of str to float
        Values of the single rewards, unweighted.
    reason : str
        For people: the error, or how an answer was read.
    """

    value: float | None
    status: str = "ok"
    parts: Mapping[str, float] = field(default_factory=dict)
    reason: str = ""


class SamplerError(ValueError):
    """A sampler that cannot give what it was asked for; what it gave before is kept."""


@contextlib.contextmanager
def saying_how_to_go_on(how: str) -> Iterator[None]:
    """Add to a sampler's error how its work is gone on with, which only the command that was given knows."""
    try:
        yield
    except SamplerError as error:
        text = str(error)
        # A text of several lines ends with another's words, such as a command's, which are not continued.
        gap = "\n" if "\n" in text else " " if text.endswith(".") else ". "
        raise SamplerError(f"{text}{gap}What is finished is kept: mend that, then {how}") from error


class Sampler(Protocol):
    """Anything that draws completions."""

    def together(self, samples: int) -> int | None:
        """Return how many contexts of so many samples are drawn together; None where each is drawn alone."""

    def sample(self, contexts: Sequence[Context], samples: int, *, key: tuple[int, ...]) -> Iterator[list[Rollout]]:
        """Draw so many completions of every context.

        Parameters
        ----------
        contexts : sequence of Context
        samples : int
            Completions a context.
        key : tuple of int
            (seed, round): with a context's id and a sample's number the key of all its random numbers.

        Yields
        ------
        list of Rollout
            Whole ones, in any order, as soon as they are there: what was yielded need not be sampled again.

        Raises
        ------
        SamplerError
            If it cannot go on.
        """

    def close(self) -> None:
        """Give back what it holds."""


class Scorer(Protocol):
    """Anything that scores completions."""

    def score(self, rollouts: Sequence[Rollout]) -> Iterator[tuple[int, int, Score]]:
        """Score every completion.

        Yields
        ------
        (index of the rollout, number of the completion, Score)
            In any order, each exactly once, as soon as it is known.
        """

    def close(self) -> None:
        """Give back what it holds: processes, models."""
