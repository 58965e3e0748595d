"""Whole conversations written as one text each, as HH-RLHF is published, and answers that hold their prompt as text."""

from __future__ import annotations

import re

_MARK = re.compile(r"(?:\r?\n){2}Assistant:")  # of HH-RLHF: what follows is the assistant's turn
_MARKS = re.compile(r"(?:\r?\n){2}(Human|Assistant):")
_ROLES = {"Human": "user", "Assistant": "assistant"}


def common_prompt(first: str, second: str) -> int:
    """Return the length of the prompt that two texts begin with, 0 if there is none.

    It ends behind the last turn mark of their common beginning, and where that holds none, at its last white space: a
    space belongs to the word that follows it, as tokenizers have it, any other white space to the prompt.
    """
    common = first[: first_difference(first, second)]
    marks = list(_MARK.finditer(common))
    if marks:
        return marks[-1].end()
    at = next((place for place in reversed(range(len(common))) if common[place].isspace()), -1)
    end = at if at >= 0 and common[at] == " " else at + 1
    return end if common[:end].strip() else 0


def opens_answer(text: str) -> bool:
    """Return whether a text ends in the turn mark of the assistant."""
    return text.endswith("Assistant:") and any(mark.end() == len(text) for mark in _MARK.finditer(text))


def count_turns(text: str) -> int:
    """Return how many turns begin in a text."""
    return len(_MARKS.findall(text))


def turns_of(text: str) -> list[tuple[str, str]]:
    """Return the role and the text of each turn, without the spaces around it; nothing unless it begins with a mark."""
    text = text.strip()
    before, *pieces = _MARKS.split(f"\n\n{text}")
    if before.strip():
        return []
    return [(_ROLES[name], content.strip()) for name, content in zip(pieces[::2], pieces[1::2], strict=True)]


def first_difference(a: str, b: str) -> int:
    """Return the first place at which two texts differ; the end of the shorter one where it begins the other."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
