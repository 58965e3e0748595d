"""TRL's fused output head, which for a policy computes more than log-probabilities."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

MODULE, HEAD = "trl.trainer.utils", "_ChunkedLogProbFunction"


@contextlib.contextmanager
def log_probs_alone() -> Iterator[None]:
    """Have TRL's heads compute log-probabilities alone, as they do for a reference model of TRL's own.

    A policy's head gives entropies and the like too, which nobody asks a reference for and which take time: the list of
    them is the last argument of the function that is wrapped here. Where there is no such function nothing is changed.
    """
    module = sys.modules.get(MODULE)
    head: Any = getattr(module, HEAD, None)
    if head is None:
        yield
        return
    setattr(module, HEAD, SimpleNamespace(apply=lambda *given: head.apply(*given[:-1], ("log_probs",))))
    try:
        yield
    finally:
        setattr(module, HEAD, head)
