"""What the steps of a run change: the policy, how it lies in the processes, its optimizer and its adapter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from humanline.train.policy.adapter import Adapter
from humanline.train.policy.logprobs import LogprobModel
from humanline.train.policy.spread import Spread
from humanline.train.step.reference import LogprobsOf


@dataclass(frozen=True, slots=True)
class Trained:
    """What the steps of a run change.

    Parameters
    ----------
    policy : LogprobModel
    spread : Spread
        How it lies in the processes.
    optimizer
        As accelerate wraps it.
    adapter : Adapter or None
        What is trained in place of the policy's own weights.
    logprobs_of : callable
        Gives the policy's token log-probabilities of a block, without gradient.
    """

    policy: LogprobModel
    spread: Spread
    optimizer: Any
    adapter: Adapter | None
    logprobs_of: LogprobsOf
