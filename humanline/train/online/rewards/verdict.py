"""The verdict of one reward on one completion; light enough for worker processes to import."""

from __future__ import annotations

from typing import NamedTuple

from humanline.system.terminal import visible

LONGEST_COMPLETION = 100_000  # characters; longer ones are not verified
UNREAD = "no answer read"  # reasons of verdicts on texts in which no answer is found begin so
NOT_SCORED = "not_scored"  # the status where a reward has nothing to say of a completion: TRL's None
_LONGEST_REASON = 300


class Verdict(NamedTuple):
    """A value, or None and the status that says why there is none (`humanline.train.online.types.Score`)."""

    value: float | None
    status: str = "ok"
    reason: str = ""


def shown(text: str, limit: int = _LONGEST_REASON) -> str:
    """Return a foreign text on one line, its control characters visible, cut to `limit` characters."""
    line = visible(" ".join(text[: 2 * limit].split()))
    return line if len(line) <= limit and len(text) <= 2 * limit else line[: limit - 1] + "…"


def described(error: BaseException) -> str:
    """Return the kind and the words of an exception; one that cannot say them is named only."""
    try:
        words = str(error)
    except Exception:
        words = ""
    name = type(error).__name__
    return shown(f"{name}: {words}" if words else name)
