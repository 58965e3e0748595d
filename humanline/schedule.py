"""Reference schedules: which earlier snapshot of the policy is the reference of a step.

theta_t are the weights before update t (t = 0, 1, ...). A schedule says the same thing in two ways, and the tests hold
them against each other: `snapshot(step)` is the closed form that scoring ahead asks, the two `copies_*` events are what
a reference model in memory needs. This module knows nothing about models.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field

PositiveInt = Annotated[int, Field(ge=1, le=10**15)]  # a larger count of anything is a slip of the pen


class _Schedule(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True)

    def snapshot(self, step: int) -> int:
        """Return t such that theta_t is the reference of `step`."""
        raise NotImplementedError

    def copies_before_update(self, step: int) -> bool:
        """Return whether a reference model takes over theta_step after the loss and before update `step`."""
        return False

    def copies_after_update(self, step: int) -> bool:
        """Return whether a reference model takes over theta_{step+1} right after update `step`."""
        return False


class Never(_Schedule):
    """Offline: theta_0 is the reference of every step (arXiv 2509.24207, Fig. 3 left)."""

    kind: Literal["never"] = "never"

    def snapshot(self, step: int) -> int:
        """Return 0."""
        return 0


class BeforeStep(_Schedule):
    """Humanline syncing (arXiv 2509.24207, section 5.1): every k steps the policy as it was before its update.

    theta_t, t = k * floor(max(0, s - 1) / k), is the reference of step s: the weights just before the update of sync
    step t serve steps t + 1 ... t + k. Steps 0 and 1 both see theta_0 when k = 1.
    """

    kind: Literal["before_step"] = "before_step"
    every: PositiveInt = 1
    """Optimizer steps between syncs."""

    def snapshot(self, step: int) -> int:
        """Return k * floor(max(0, step - 1) / k)."""
        return self.every * (max(0, step - 1) // self.every)

    def copies_before_update(self, step: int) -> bool:
        """Return whether `step` is 0, k, 2k, ..."""
        return step % self.every == 0


class AfterStep(_Schedule):
    """Trust-region syncing (arXiv 2509.24207, Fig. 10): after every k-th update the reference equals the policy."""

    kind: Literal["after_step"] = "after_step"
    every: PositiveInt
    """Optimizer steps between syncs."""

    def snapshot(self, step: int) -> int:
        """Return k * floor(step / k)."""
        return self.every * (step // self.every)

    def copies_after_update(self, step: int) -> bool:
        """Return whether update `step` is the k-th since the last copy."""
        return (step + 1) % self.every == 0


class EachRound(_Schedule):
    """Online (arXiv 2509.24207, Algorithm 1 line 3): the weights at the start of a round serve all of it.

    On a fixed data set a round is a given number of steps; the paper's is 32 (1024 contexts). Where rounds of sampling
    say how long they are (`InRounds`), none is given, and steps are counted from the start of the round.
    """

    kind: Literal["each_round"] = "each_round"
    round_steps: PositiveInt | None = None
    """Optimizer steps of a round on fixed data."""

    def snapshot(self, step: int) -> int:
        """Return the first step of the round that `step` belongs to."""
        return 0 if self.round_steps is None else self.round_steps * (step // self.round_steps)

    def copies_after_update(self, step: int) -> bool:
        """Return whether update `step` ends a round."""
        return self.round_steps is not None and (step + 1) % self.round_steps == 0


Schedule = Annotated[Never | BeforeStep | AfterStep | EachRound, Field(discriminator="kind")]


class InRounds:
    """A schedule within rounds of sampling: it begins anew at each round, with the policy as it is then.

    Parameters
    ----------
    schedule : Snapshots
    bounds : callable
        Returns, for a step whose round is known, the round's first step and the first step after it.
    """

    def __init__(self, schedule: Snapshots, bounds: Callable[[int], tuple[int, int]]) -> None:
        self.schedule, self.bounds = schedule, bounds

    def snapshot(self, step: int) -> int:
        """Return t such that theta_t is the reference of `step`: never from before its round."""
        start, _ = self.bounds(step)
        return start + self.schedule.snapshot(step - start)

    def copies_before_update(self, step: int) -> bool:
        """Return whether a reference model takes over theta_step after the loss and before update `step`."""
        start, _ = self.bounds(step)
        return self.schedule.copies_before_update(step - start)

    def copies_after_update(self, step: int) -> bool:
        """Return whether a reference model takes over theta_{step+1}: also where update `step` ends a round."""
        start, end = self.bounds(step)
        return step + 1 == end or self.schedule.copies_after_update(step - start)


class Snapshots(Protocol):
    """A schedule as a reference uses it, within rounds or not."""

    def snapshot(self, step: int) -> int:
        """Return t such that theta_t is the reference of `step`."""

    def copies_before_update(self, step: int) -> bool:
        """Return whether a reference model takes over theta_step after the loss and before update `step`."""

    def copies_after_update(self, step: int) -> bool:
        """Return whether a reference model takes over theta_{step+1} right after update `step`."""
