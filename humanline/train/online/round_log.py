"""The log of rounds: the numbers of each, and how far its sampler is from training."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from humanline.train.config import TrainConfig
from humanline.train.config.run import SYNCED
from humanline.train.data.batch import MicroBatch
from humanline.train.data.stream import StepBatch
from humanline.train.online.samplers.proof import check_in_words
from humanline.train.online.stages import Served, served_name
from humanline.train.run.processes import Reduce


class RoundLog:
    """Log the numbers of each round when it is made, and say a line about it once its sampler's mismatch is known.

    Parameters
    ----------
    config : TrainConfig
    served : Served or None
        Its facts about a server's weights go into the row of the round that the server sampled.
    log : callable
        Called with the numbers of a round, at its first step.
    say : callable
        Shows what a person should know.
    """

    def __init__(
        self,
        config: TrainConfig,
        served: Served | None,
        log: Callable[[dict[str, Any]], None],
        say: Callable[[str], None],
    ) -> None:
        assert config.rounds is not None
        self.config, self.rounds = config, config.rounds
        self.served, self.log, self.say = served, log, say
        self._line = ""  # what is to be said of a round, once the sampler's mismatch is known
        self._is_first = True

    def made(self, number: int, report: dict[str, Any], steps: int, seconds: float, sampled_by: str) -> None:
        """Log the numbers of a round; a line about it follows at its first step.

        Parameters
        ----------
        number : int
        report : dict
            `Selection.report`.
        steps : int
            Number of the round's steps.
        seconds : float
            Time that it took to make.
        sampled_by : str
            Version of the policy.
        """
        facts, check = report["facts"], self._write(number, report, steps, seconds, sampled_by)
        parts = [f"score {facts['score']:.4g}"] if "score" in facts else []
        parts.append(f"{facts['kept_contexts']} of {facts['contexts']} prompts kept")
        if facts["kept_contexts"] < facts["contexts"] or facts["without_score"] or facts.get("asked_again"):
            parts.append(report["why"])
        if self.config.keeps_groups and facts["equal_scores"]:
            parts.append(f"{facts['equal_scores']} with equal scores, of advantage 0")
        if check:
            parts.append(f"server: {check_in_words(check)}")
        self._line = f"round {number}: {'; '.join(parts)}; {steps} steps"
        if self._is_first or steps == 1:
            self._warn_of_still_reference(number, steps)
        self._is_first = False

    def skipped(self, number: int, report: dict[str, Any], seconds: float, sampled_by: str, why: str) -> None:
        """Log the numbers of a round that no step is taken on, and say why: a policy that breaks leaves such rounds."""
        self._write(number, report, 0, seconds, sampled_by)
        self.say(why)

    def _write(
        self, number: int, report: dict[str, Any], steps: int, seconds: float, sampled_by: str
    ) -> Mapping[str, Any]:
        """Log the row of a round, and return what is known of its server's weights."""
        check = {} if self.served is None else self.served.facts(served_name(sampled_by))
        numbers = {f"server_{name}": value for name, value in check.items() if isinstance(value, float)}
        self.log({"round": number, "steps": steps, **report["facts"], **numbers, "seconds": seconds})
        return check

    def _warn_of_still_reference(self, number: int, steps: int) -> None:
        """Warn where a round ends before the reference that it began with is synced: the schedule does nothing."""
        reference = self.config.reference
        syncs = reference.schedule.kind in SYNCED and reference.round_start == "sync"
        if not syncs or reference.schedule.snapshot(steps - 1):
            return
        if steps == 1:
            self.say(
                f"warning: round {number} has a single step, and the reference was made equal to the policy at "
                "its start: every log-ratio is 0, so that neither sync nor clip does anything"
            )
            return
        self.say(
            f"warning: round {number} has {steps} steps, and the reference, which was made equal to the policy at its "
            "start, is not synced before they are over: this is what reference.schedule: {kind: each_round} does, "
            "whatever `every` is. Set a smaller `every` or longer rounds, or reference.round_start: keep (with "
            "reference.storage: model), under which a reference outlives its round"
        )

    def begun(self, number: int, mismatch: Mapping[str, float] = MappingProxyType({})) -> None:
        """Show the line about a round, unless that was done, with how far its sampler is from training."""
        rms = mismatch.get("sampler_mismatch_rms")
        if self._line:
            self.say(self._line + ("" if rms is None else f"; sampler off by {rms:.2g} nats (rms)"))
        self._line = ""
        limit = self.rounds.sampling.mismatch_limit
        if rms is not None and rms > limit:
            self.say(
                f"warning: round {number}: the sampler's log-probabilities of its own tokens differ from those "
                f"that training computes by {rms:.3g} nats (rms), more than source.sampling.mismatch_limit: {limit:g}: "
                "it may have other weights, settings or a cache of older ones, and then the data are not from this "
                "policy"
            )


def mismatch(
    name: str,
    behaviour: Mapping[str, Sequence[float]],
    batch: StepBatch,
    logprobs_of: Callable[[MicroBatch], Tensor],
    reduce: Reduce,
) -> dict[str, float]:
    """Return how far a sampler's token log-probabilities are from those that training computes, over all ranks.

    Parameters
    ----------
    name : str
        What the difference is called.
    behaviour : mapping of str to sequence of float
        The sampler's, nats, by the names of rows.
    batch : StepBatch
    logprobs_of : callable
        Gives token log-probabilities of the policy as it is now.
    reduce : callable

    Returns
    -------
    dict
        ``<name>_rms`` and ``<name>_max`` of the differences, nats; empty where the sampler told nothing of these rows.
    """
    if not behaviour:  # which all ranks have alike
        return {}
    sums = torch.zeros(2, dtype=torch.float64)
    largest = torch.zeros((), dtype=torch.float64)
    for micro in batch.micro_batches:  # all of them: every rank makes the same number of passes
        rows = [behaviour.get(name) for name in micro.block.names]
        ours, mask = logprobs_of(micro).cpu().double(), micro.block.on_host.mask
        for row, theirs in enumerate(rows):
            if theirs is not None:
                gap = ours[row][mask[row]] - torch.tensor(theirs, dtype=torch.float64)
                sums += torch.tensor([gap.square().sum(), len(gap)], dtype=torch.float64)
                largest = torch.maximum(largest, gap.abs().max())
    squares, count = reduce(sums, "sum").tolist()
    top = reduce(largest, "max").item()
    return {f"{name}_rms": math.sqrt(squares / count), f"{name}_max": top} if count else {}
