"""A reference that trails the policy by a fixed number of updates: as old as a synced one, and never synced."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from humanline.sim.world import at_least, settle


@dataclass(frozen=True)
class Lag:
    """Score step s with the policy before update ``max(0, s - updates)``.

    ``BeforeStep(every=k)`` has references that are 1 to k updates old, ``(k + 1) / 2`` on average, and jumps at every
    sync; this has one of a single age, which moves with every update. ``Lag(1)`` is ``BeforeStep(every=1)``.

    Parameters
    ----------
    updates : int >= 1

    Notes
    -----
    Source: not from arXiv 2509.24207; a placebo for the syncs of its section 5.1.
    """

    updates: int
    kind: ClassVar[str] = "lag"

    def __post_init__(self) -> None:
        settle(self, updates=at_least(1))

    def snapshot(self, step: int) -> int:
        """Return ``max(0, step - updates)``."""
        return max(0, step - self.updates)

    def copies_before_update(self, step: int) -> bool:
        """Return False: what scores the next step is an older policy than this."""
        return False

    def copies_after_update(self, step: int) -> bool:
        """Return False, as `copies_before_update` does."""
        return False
