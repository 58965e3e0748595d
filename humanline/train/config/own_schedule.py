"""A reference schedule of the user's own.

The function is `snapshot(step)`, the closed form of `humanline.schedule`; the events that a second model in memory
needs follow from it.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from humanline.schedule import AfterStep, BeforeStep, EachRound, Never
from humanline.system.own_code import OwnCodeError
from humanline.train.config.base import OwnPart

_LOOKED_AT = 100_000  # steps of a run that are asked for ahead; later ones when their time comes


class FunctionSchedule(OwnPart):
    """A schedule of your own: `snapshot(step)` returns the step whose weights, before its update, are the reference.

    It never looks ahead or back behind an earlier answer: 0 <= snapshot(step) <= step, and never less than
    snapshot(step - 1).
    """

    kind: Literal["function"] = "function"

    place = "reference.schedule"

    def snapshot(self, step: int) -> int:
        """Return t such that theta_t is the reference of `step`.

        Raises
        ------
        OwnCodeError
            If the function fails, or returns what no schedule may.
        """
        found, before = self._asked(step), self._asked(step - 1) if step else 0
        if not before <= found <= step:
            earlier = f" after {before} for step {step - 1}" if step else ""
            raise OwnCodeError(
                f"reference.schedule: {self.call} returned {found} for step {step}{earlier}; expected a step that is "
                "not in the future, and never an earlier one than for the step before"
            )
        return found

    def copies_before_update(self, step: int) -> bool:
        """Return whether a reference model takes over theta_step after the loss and before update `step`.

        Raises
        ------
        OwnCodeError
            If it did not have the weights that the step's losses want: nothing is updated by them.
        """
        self._refuse_lost(step)
        return self.snapshot(step + 1) == step != self.snapshot(step)

    def copies_after_update(self, step: int) -> bool:
        """Return whether a reference model takes over theta_{step+1} right after update `step`."""
        return self.snapshot(step + 1) == step + 1

    def refuse_unfit(self, steps: int, storage: str) -> None:
        """Raise OwnCodeError if the function returns what no schedule may, or not the same twice, for the first steps.

        Parameters
        ----------
        steps : int
            Of the run, or of a round.
        storage : {"score_ahead", "model"}
            A second model holds one copy alone, so that it can only keep it, or take the newest weights over.
        """
        asked = range(min(steps, _LOOKED_AT))
        first = [self.snapshot(step) for step in asked]
        if first != [self.snapshot(step) for step in asked]:
            raise OwnCodeError(f"reference.schedule: {self.call} does not return the same twice for the same step")
        if storage == "model":
            self.snapshot(len(asked))  # after the last update it is asked whether the second model follows
            for step in asked:
                self._refuse_lost(step)

    def longest_window(self, steps: int) -> int:
        """Return the most steps whose log-probabilities wait, of a run or a round of so many steps."""
        snapshots = [self.snapshot(step) for step in range(min(steps, _LOOKED_AT))]
        end = most = 0
        for step in range(len(snapshots)):
            while end < len(snapshots) and snapshots[end] <= step:
                end += 1
            most = max(most, end - step)
        return most

    def _refuse_lost(self, step: int) -> None:
        """Raise OwnCodeError if a second model no longer has the weights of a step's snapshot."""
        before, now = self.snapshot(max(0, step - 1)), self.snapshot(step)
        if now not in (before, step - 1, step):
            raise OwnCodeError(
                f"reference.schedule: {self.call} goes from {before} to {now} at step {step}, and a second model "
                f"(reference.storage: model) no longer has the weights of step {now} then; set "
                "reference.storage: score_ahead, which scores with them in time"
            )

    def _asked(self, step: int) -> int:
        try:
            found = self.load().function(step, **self.options)
        except OwnCodeError:
            raise
        except (Exception, SystemExit) as error:
            raise OwnCodeError(
                f"reference.schedule: {self.call}({step}) raised {type(error).__name__}: {error}"
            ) from None
        if not isinstance(found, int) or isinstance(found, bool):
            raise OwnCodeError(
                f"reference.schedule: {self.call}({step}) returned {type(found).__name__}; expected an int, a step"
            )
        return found


AnySchedule = Annotated[Never | BeforeStep | AfterStep | EachRound | FunctionSchedule, Field(discriminator="kind")]
