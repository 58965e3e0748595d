"""A run that is only begun, to be looked at."""

from __future__ import annotations

from dataclasses import dataclass

from humanline.train.step.loss import Observe


@dataclass(frozen=True, slots=True)
class Trial:
    """A run that is taken to be looked at: its first steps, bit for bit, of which no checkpoint and no model is saved.

    Parameters
    ----------
    steps : int >= 1
        How many; what hangs on the length of the run, such as its warm-up, is as in the whole of it.
    observe : Observe
    """

    steps: int
    observe: Observe
