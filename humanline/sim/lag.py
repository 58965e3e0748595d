"""A reference that trails the policy by so many updates: as old as a synced one, and never synced."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from humanline import _checks
from humanline.sim.world import at_least, settle


@dataclass(frozen=True)
class Lag:
    """Score step s with the policy before update ``max(0, s - age)``, whose age is always the same or goes about.

    ``BeforeStep(every=k)`` has references that are 1, 2, ..., k updates old, over and over: they age until a sync.
    ``Lag(a)`` has one that is always a updates old. ``Lag(k, stride)`` has each of the ages 1 to k once in k steps, in
    the order of ``1 + stride s mod k``, stride and k without a common divisor: as old as the synced one in every
    respect, but none ages and none is synced. ``Lag(1)`` is ``BeforeStep(every=1)``.

    Parameters
    ----------
    updates : int >= 1
        The age, or the largest.
    stride : int >= 0
        0 for a single age.

    Raises
    ------
    ValueError
        If a number is out of its range, or stride and updates have a common divisor: some ages would never come.

    Notes
    -----
    Source: not from arXiv 2509.24207; a placebo for the syncs of its section 5.1.
    """

    updates: int
    stride: int = 0
    kind: ClassVar[str] = "lag"

    def __post_init__(self) -> None:
        settle(self, updates=at_least(1), stride=at_least(0))
        if self.stride and math.gcd(self.stride, self.updates) > 1:
            raise _checks.fail("stride", f"share no divisor with updates ({self.updates})", self.stride)

    def snapshot(self, step: int) -> int:
        """Return ``max(0, step - age)``."""
        age = 1 + self.stride * step % self.updates if self.stride else self.updates
        return max(0, step - age)

    def copies_before_update(self, step: int) -> bool:
        """Return False: what scores the next step is an older policy than this."""
        return False

    def copies_after_update(self, step: int) -> bool:
        """Return False, as `copies_before_update` does."""
        return False
