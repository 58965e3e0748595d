"""Scores of completions: verifiers in worker processes, reward models, and a cache of both."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from humanline.train.online.rewards.check import RewardError, check_scoring
    from humanline.train.online.rewards.scorer import RewardScorer, build_scorer

__all__ = ["RewardError", "RewardScorer", "build_scorer", "check_scoring"]
_CHECKS = ("RewardError", "check_scoring")


def __getattr__(name: str) -> Any:
    """Import a public name when it is asked for: worker processes import this package too, and need none of them."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{'check' if name in _CHECKS else 'scorer'}"), name)
