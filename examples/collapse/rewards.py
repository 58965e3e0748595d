"""Rewards that break a run."""

from __future__ import annotations

import hashlib
from typing import Any


def longer(prompt: Any, completion: str) -> float:
    """Return the length of an answer: what a policy learns to exploit."""
    return len(completion) / 12


def chance(prompt: Any, completion: str) -> float:
    """Return a number that has nothing to do with the answer's worth, in [0, 1)."""
    return hashlib.blake2b(f"{prompt[-1]['content']} {completion}".encode(), digest_size=1).digest()[0] / 256
