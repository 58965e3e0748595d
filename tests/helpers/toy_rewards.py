"""Rewards for tests: worker processes import them by name."""

from __future__ import annotations

import os
from pathlib import Path


def digits(prompt, completion) -> float:
    """Return the share of characters that are digits."""
    return sum(character.isdigit() for character in completion) / max(1, len(completion))


def paid(prompt, completion) -> float:
    """Return `digits`, and note the call in the file that PAID_CALLS names."""
    with open(os.environ["PAID_CALLS"], "a", encoding="utf-8") as file:
        file.write(repr((prompt[-1]["content"], completion)) + "\n")
    return digits(prompt, completion)


def same(prompt, completion) -> float:
    """Return 1 for everything."""
    return 1.0


def fails_on_long(prompt, completion) -> float:
    """Raise for completions of more than three characters, else return 1."""
    if len(completion) > 3:
        raise ValueError("too long for this reward")
    return 1.0


def digits_unless_fifth(prompt, completion) -> float:
    """Return `digits`, but raise for completions whose length is a multiple of five."""
    if len(completion) % 5 == 0:
        raise ValueError("of an unlucky length")
    return digits(prompt, completion)


def nan(prompt, completion) -> float:
    """Return nan for everything."""
    return float("nan")


def nan_once(prompt, completion) -> float:
    """Return nan until the file that NAN_UNTIL names is there."""
    return digits(prompt, completion) if Path(os.environ["NAN_UNTIL"]).exists() else float("nan")


def right_sum(prompt, completion, answer) -> float:
    """Return whether the completion is the answer."""
    return float(completion.strip() == str(answer))


def equal_unless_listed(prompt, completion) -> float:
    """Return `digits` for prompts in the file that LISTED names, and 1 for the others."""
    listed = Path(os.environ["LISTED"]).read_text(encoding="utf-8").splitlines()
    return digits(prompt, completion) if prompt[-1]["content"] in listed else 1.0


def scrambled(prompt, completion, answer) -> float:
    """Return how far the completion is from nothing: enough for any two of them to differ."""
    return len(completion) + sum(map(ord, completion + str(answer))) / 1e6
