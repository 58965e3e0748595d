"""What a testbed is: a task that needs nothing from outside, with a scorer, and sizes for the models that learn it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar, Literal, Protocol

#: Who writes the answers of which pairs are made: the start model itself, one that learned other answers about as good,
#: or one that learned better ones.
Source = Literal["near", "far", "better"]
#: What prompts are for: to learn the task from (start models), to make pairs of or sample in rounds, for the score, for
#: the distance. No prompt is in two parts.
Part = Literal["train", "pairs", "score", "distance"]


@dataclass(frozen=True, slots=True)
class Size:
    """A tiny Llama from random weights and how it learns a task by next tokens, before any alignment.

    Parameters
    ----------
    hidden_size, layers, heads : int
    steps, batch_size : int
        Of learning the task.
    lr : float
    """

    hidden_size: int
    layers: int
    heads: int
    steps: int
    batch_size: int
    lr: float
    family: ClassVar[Literal["llama", "gemma2"]] = "llama"  # no field, so that what Llamas are kept by stays as it is


@dataclass(frozen=True, slots=True)
class Gemma2Size(Size):
    """The same of a tiny Gemma 2."""

    family = "gemma2"


class Task(Protocol):
    """A language of prompts and answers, and what an answer is worth. Everything is the same on every machine."""

    def rows(self, source: Source, seed: int) -> list[dict[str, str]]:
        """Return rows {"prompt", "completion"} that a model of this kind learns from; they differ between seeds."""
        ...

    def prompts(self, part: Part) -> list[str]:
        """Return the prompts of a part: different ones."""
        ...

    def score(self, prompt: str, answer: str) -> float:
        """Return what an answer is worth."""
        ...

    def judged(self, prompt: str, answer: str) -> float:
        """Return what the judge says it is worth: the score itself, or the score with noise.

        The noise is a function of prompt and answer, so that a judge asked twice says the same.
        """
        ...


@dataclass(frozen=True, slots=True)
class Testbed:
    """A task at a size.

    Parameters
    ----------
    name : str
    task : Task
    size : Size
    reward : str
        ``module:function`` of `Task.judged`, as a reward of rounds.
    max_tokens : int
        Of an answer, its end token included.
    max_length : int
        Of prompt and answer, tokens.
    vocab_size : int
        Of the tokenizer, which is trained on the start model's rows.
    description : str
        One sentence.
    """

    __test__ = False  # for pytest, which would take it for a test by its name

    name: str
    task: Task
    size: Size
    reward: str
    max_tokens: int
    max_length: int
    vocab_size: int
    description: str

    def __hash__(self) -> int:
        """Return the hash of the name: a task may hold what has no hash."""
        return hash(self.name)


def dealt(drawn: Iterable[str], sizes: Mapping[Part, int]) -> dict[Part, list[str]]:
    """Return the prompts of every part: each in turn takes as many as it needs of what is drawn, none of them twice.

    Parameters
    ----------
    drawn : iterable of str
        It may repeat itself, and need not end.
    sizes : mapping of Part to int
        How many prompts each part has, in the order in which they are taken.

    Raises
    ------
    ValueError
        If fewer different prompts are drawn than the parts need.
    """
    needed = sum(sizes.values())
    different: dict[str, None] = {}
    for prompt in drawn:
        different[prompt] = None
        if len(different) == needed:
            break
    else:
        raise ValueError(f"only {len(different)} different prompts are drawn, and the parts need {needed}")
    left = iter(different)
    return {part: list(islice(left, count)) for part, count in sizes.items()}


def as_rows(prompts: Sequence[str]) -> list[dict[str, Any]]:
    """Return prompts as rows of a data file."""
    return [{"prompt": prompt} for prompt in prompts]


def last_text(prompt: Sequence[Mapping[str, str]]) -> str:
    """Return the text of a prompt's last message, which rewards are given as messages."""
    return prompt[-1]["content"]
