"""What an answer says, as a vote among answers takes it, and whether a checker could read one."""

from __future__ import annotations

from typing import Literal

from humanline.train.online.rewards.math_answer import last_box
from humanline.train.online.rewards.notation import tidy
from humanline.train.online.rewards.verdict import UNREAD
from humanline.train.online.rewards.verifiers import read_number


def answer_key(text: str, kind: Literal["math", "number"]) -> str | None:
    r"""Return what an answer says, None if it says nothing; equal for answers that a vote takes for the same.

    For numbers that is their value. For mathematics it is what stands in the last box, white space aside: 1/2 and 0.5
    are two answers there.
    """
    if kind == "number":
        number = read_number(text)
        return None if number is None else str(number)
    box = last_box(text)
    return None if box is None else "".join(tidy(box).split())


def is_unread(reason: str) -> bool:
    """Return whether the reason of a score says that no answer was found in the text."""
    return reason.startswith(UNREAD)
