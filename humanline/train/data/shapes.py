"""The kinds of example: a preference, an answer with a label, a prompt, a group; and one kind made of another."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from humanline.train.data.messages import NOTHING, Answer, Given, Messages
from humanline.train.data.source import DataError

Shape = Literal["preference", "unpaired", "completion", "prompt"]
ROLES = ("system", "user", "assistant", "tool", "developer")
INSTRUCTING = ("system", "developer")  # they may stand before a prompt, and be empty


@dataclass(frozen=True, slots=True)
class Preference:
    """Two answers to one prompt, the first preferred."""

    id: str
    prompt: Messages
    chosen: Answer
    rejected: Answer
    chosen_score: float | None = None
    rejected_score: float | None = None
    given: Given = NOTHING


@dataclass(frozen=True, slots=True)
class Unpaired:
    """One answer, desirable (True), undesirable (False) or, for next-token training, without a label (None)."""

    id: str
    prompt: Messages
    completion: Answer
    label: bool | None = None
    given: Given = NOTHING


@dataclass(frozen=True, slots=True)
class PromptOnly:
    """A prompt to sample from, with the row's other columns (a reference answer, for example, or its tools)."""

    id: str
    prompt: Messages
    extra: dict[str, Any]
    given: Given = NOTHING


@dataclass(frozen=True, slots=True)
class Group:
    """Several answers to one prompt, one score each; higher is better."""

    id: str
    prompt: Messages
    completions: tuple[Answer, ...]
    scores: tuple[float, ...]
    given: Given = NOTHING


Example: TypeAlias = Preference | Unpaired | PromptOnly | Group


def pairs_to_unpaired(preferences: Iterable[Preference]) -> list[Unpaired]:
    """Split each pair into a desirable and an undesirable example."""
    return [
        Unpaired(f"{pair.id}#{name}", pair.prompt, answer, label, pair.given)
        for pair in preferences
        for name, answer, label in (("chosen", pair.chosen, True), ("rejected", pair.rejected, False))
    ]


def group_scores(pair: Preference) -> tuple[float, float]:
    """Return the scores of a pair's answers, or 1.0 and 0.0 where it has none."""
    if pair.chosen_score is None or pair.rejected_score is None:
        return 1.0, 0.0
    return pair.chosen_score, pair.rejected_score


def refuse_some_scores(without: int, pairs: int, first: str) -> None:
    """Raise DataError if some pairs have scores and others, of which `first` names the first, have none."""
    if 0 < without < pairs:
        raise DataError(
            f"{without} of {pairs} pairs have no scores, the first of them {first}; their answers would count 1 and 0 "
            "beside the scores of the others",
            advice="Give every pair chosen_score and rejected_score, or set data.ignore to leave them out of all: "
            "every pair counts 1 and 0 then.",
        )


def refuse_single_label(desirable: int, undesirable: int) -> None:
    """Raise DataError if there are no desirable or no undesirable examples."""
    if not (desirable and undesirable):
        raise DataError(
            f"labels must hold both true and false; got {desirable} true and {undesirable} false",
            advice="Add rows with the other label, or set allow_single_label: true if this is meant.",
        )


def refuse_unweighted(labels: Collection[int], weights: tuple[float, float]) -> None:
    """Raise DataError if all answers have one label, of weight 0; `weights` are those of false and of true."""
    if labels and not any(weights[label] for label in set(labels)):
        which = "desirable" if any(labels) else "undesirable"
        raise DataError(
            f"all labels are {str(any(labels)).lower()}, and objective.{which}_weight is 0, so that every loss is 0 "
            "and nothing is learned",
            advice=f"Add rows with the other label, or leave {which}_weight out.",
        )
