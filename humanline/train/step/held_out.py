"""Held-out metrics, always against the initial policy.

The reference of training moves with the schedule; measured against it, two variants could not be compared. Here every
variant is held against the same fixed point, the weights the run started from, with untransformed log-ratios.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from humanline.objectives import token_log_ratio
from humanline.system.activity import HERE
from humanline.train.config import TrainConfig
from humanline.train.config.objective import NoTransform, ObjectiveSection, PairObjective
from humanline.train.data.batch import MicroBatch, Unit
from humanline.train.data.render import Renderer
from humanline.train.data.run_data import pad_id
from humanline.train.data.sets import DataSets
from humanline.train.data.stream import StepBatch, Stream
from humanline.train.run.processes import Reduce
from humanline.train.run.state import own_first
from humanline.train.step.kept import Kept, KeptLogprobs, find_kept, kept_state
from humanline.train.step.loss import ObjectiveStep
from humanline.train.step.reference import BatchLogprobs, LogprobsOf


class Evaluator:
    """Measure a policy on held-out data.

    Building it only forms the batches; `start` runs the initial policy over them.

    Parameters
    ----------
    objective : ObjectiveSection
        Its loss is reported, with its own settings.
    units : sequence of Unit
        Of the objective's own kind.
    pairs : sequence of Unit
        The same data as (chosen, rejected) pairs where `units` are their answers one by one; else empty.
    logprobs_of : callable
        Gives the policy's token log-probabilities of a block, without gradient.
    reduce : callable
        Reduction over ranks.
    batch_size : int
        Units a forward pass and rank.
    pad_id, max_length, rank, ranks : int
    device : torch.device
    check : callable, optional
        Called after each forward pass; it may raise to stop the run, and the evaluation is done again later.

    Raises
    ------
    ValueError
        If there are too few units for the objective (KTO needs two prompts, BCO two answers).
    """

    def __init__(
        self,
        objective: ObjectiveSection,
        units: Sequence[Unit],
        pairs: Sequence[Unit],
        *,
        logprobs_of: LogprobsOf,
        reduce: Reduce,
        batch_size: int,
        pad_id: int,
        max_length: int,
        device: torch.device,
        rank: int = 0,
        ranks: int = 1,
        check: Callable[[], None] | None = None,
    ) -> None:
        self.logprobs_of, self.reduce, self.device, self.ranks, self.check = logprobs_of, reduce, device, ranks, check

        def share(of: Sequence[Unit], objective: ObjectiveSection) -> tuple[StepBatch, MicroBatch]:
            """Return this rank's micro-batches of the whole set, at most batch_size units each, and the last of all."""
            rows = 1 if objective.grouping is None else max(len(unit.sequences) for unit in of)  # which it counts there
            try:
                stream = Stream(
                    of,
                    objective,
                    batch_size=len(of),
                    micro_batch_size=min(batch_size, len(of)) * rows,
                    seed=None,
                    pad_id=pad_id,
                    max_length=max_length,
                    whole_units=True,
                )
            except ValueError as error:
                raise ValueError(f"the held-out data (data.eval) cannot be evaluated: {error}") from None
            batch = stream.step(0)  # of all ranks; shares may be uneven, since no gradient is exchanged
            return replace(batch, micro_batches=batch.micro_batches[rank::ranks]), batch.micro_batches[-1]

        self.objective = ObjectiveStep(objective, NoTransform(), seed=0, device=device)
        self.batch, idle = share(units, objective)
        self._idle = [idle]  # of each set: what a process runs over, for nothing, in a turn in which it has no share
        self.pairs: StepBatch | None = None
        if pairs:
            self.pairs, idle = share(pairs, PairObjective())
            self._idle.append(idle)
        if objective.members == 2:
            self.pairs = self.batch
        self.initial: list[BatchLogprobs] = []
        self.initial_pairs: list[BatchLogprobs] = []
        self.started = False  # whether these are there

    @HERE.doing("evaluating")
    def start(self) -> dict[str, float]:
        """Keep the initial policy's log-probabilities, while the policy still is that, and return its metrics."""
        logprobs = self._logprobs(self.batch, self._idle[0])
        self.initial_pairs = self._of_pairs(logprobs)
        self.initial, self.started = logprobs, True
        return self._measure(logprobs, self.initial_pairs)

    @HERE.doing("evaluating")
    @torch.no_grad()
    def __call__(self) -> dict[str, float]:
        """Return the metrics of the policy as it is now.

        Returns
        -------
        dict
            ``loss`` (the objective's, against the initial policy); for nll ``perplexity``; for preference data
            ``accuracy`` (share of pairs whose chosen answer gained more than the rejected one; a tie counts one
            half), its standard error ``accuracy_se``, ``margin`` (mean difference of sequence log-ratios, nats), and
            ``chosen_logprob``, ``rejected_logprob`` (mean log-probability a token, nats).
        """
        logprobs = self._logprobs(self.batch, self._idle[0])
        return self._measure(logprobs, self._of_pairs(logprobs))

    @torch.no_grad()
    def _measure(self, logprobs: list[BatchLogprobs], pair_logprobs: list[BatchLogprobs]) -> dict[str, float]:
        micros = tuple(micro.to(self.device) for micro in self.batch.micro_batches)
        known = {  # computed already, so not once more
            id(block): own
            for micro, both in zip(micros, logprobs, strict=True)
            for block, own in zip((micro.block, micro.mismatched), both, strict=True)
            if own is not None
        }
        batch = replace(self.batch, micro_batches=micros)
        facts = self.objective.look(0, batch, self.initial, lambda block: known[id(block)], self.reduce)
        total = torch.zeros((), device=self.device)
        for micro, (now, _), (initial, _) in zip(micros, logprobs, self.initial, strict=True):
            total += self.objective.loss(facts, micro, now, initial, None)[0]
        result = {"loss": float(self.reduce(total, "sum"))}
        if not self.objective.objective.needs_reference:
            result["perplexity"] = math.exp(min(result["loss"], 700.0))
        if self.pairs is not None:
            result |= self._preferences(self.pairs, pair_logprobs)
        return result

    def _preferences(self, pairs: StepBatch, logprobs: list[BatchLogprobs]) -> dict[str, float]:
        sums = torch.zeros(6, dtype=torch.float64)
        for micro, (now, _), (initial, _) in zip(pairs.micro_batches, logprobs, self.initial_pairs, strict=True):
            half, mask, now = len(micro.units), micro.block.mask, now.cpu().double()
            z = token_log_ratio(now, initial.cpu().double(), mask).sum(1)
            margin = z[:half] - z[half:]
            wins = 0.5 * ((margin > 0).double() + (margin >= 0).double())
            lengths, totals = mask.sum(1), now.sum(1)
            sums += torch.stack(
                [
                    wins.sum(),
                    margin.sum(),
                    totals[:half].sum(),
                    totals[half:].sum(),
                    lengths[:half].sum(),
                    lengths[half:].sum(),
                ]
            )
        count = pairs.total_units
        won, margin_sum, chosen, rejected, chosen_tokens, rejected_tokens = self.reduce(sums, "sum").tolist()
        accuracy = won / count
        return {
            "accuracy": accuracy,
            "accuracy_se": math.sqrt(accuracy * (1 - accuracy) / count),
            "margin": margin_sum / count,
            "chosen_logprob": chosen / chosen_tokens,
            "rejected_logprob": rejected / rejected_tokens,
        }

    def state(self) -> dict[str, Tensor]:
        """Return the log-probabilities of the initial policy, of which nothing else is left."""
        if not self.started:
            return {}
        state = {"started": torch.tensor(True)}
        for prefix, (batch, logprobs) in self._sets(self.initial, self.initial_pairs).items():
            kept: list[Kept] = []
            for micro, (rows, other) in zip(batch.micro_batches, logprobs, strict=True):
                pairs = None
                if micro.mismatched is not None and other is not None:
                    pairs = KeptLogprobs.of(micro.mismatched, other)
                kept.append((KeptLogprobs.of(micro.block, rows), pairs))
            state |= kept_state(kept, prefix)
        return state

    def load_states(self, states: Sequence[Mapping[str, Tensor]], rank: int) -> None:
        """Take over what all processes had, this one's own first; nothing if the run was stopped before there was."""
        others = own_first(states, rank)
        first = next(others)
        self.started = "started" in first
        if not self.started:
            return
        sets = self._sets([], [])
        found = find_kept(
            itertools.chain([first], others), {prefix: batch.micro_batches for prefix, (batch, _) in sets.items()}
        )

        def whole(prefix: str, batch: StepBatch) -> list[BatchLogprobs]:
            logprobs: list[BatchLogprobs] = []
            for micro, (rows, other) in zip(batch.micro_batches, found[prefix], strict=True):
                micro, pairs = micro.to(self.device), None
                if micro.mismatched is not None and other is not None:
                    pairs = other.in_block(micro.mismatched)
                logprobs.append((rows.in_block(micro.block), pairs))
            return logprobs

        loaded = {prefix: whole(prefix, batch) for prefix, (batch, _) in sets.items()}
        self.initial = loaded["units/"]
        self.initial_pairs = self.initial if self.pairs is self.batch else loaded.get("pairs/", [])

    def _sets(
        self, of_units: list[BatchLogprobs], of_pairs: list[BatchLogprobs]
    ) -> dict[str, tuple[StepBatch, list[BatchLogprobs]]]:
        """Return both sets, if they are two, with log-probabilities of theirs, by the prefix under which these go."""
        sets = {"units/": (self.batch, of_units)}
        if self.pairs is not None and self.pairs is not self.batch:
            sets["pairs/"] = (self.pairs, of_pairs)
        return sets

    def _of_pairs(self, of_units: list[BatchLogprobs]) -> list[BatchLogprobs]:
        """Return the log-probabilities of the pairs, whose units may be what was run already."""
        if self.pairs is None:
            return []
        return of_units if self.pairs is self.batch else self._logprobs(self.pairs, self._idle[1])

    def _logprobs(self, batch: StepBatch, idle: MicroBatch) -> list[BatchLogprobs]:
        logprobs: list[BatchLogprobs] = []
        for turn in range(-(-batch.total_micro_batches // self.ranks)):  # the same number in every process
            own = turn < len(batch.micro_batches)
            micro = (batch.micro_batches[turn] if own else idle).to(self.device)
            other = None if micro.mismatched is None else self.logprobs_of(micro.mismatched)
            rows = self.logprobs_of(micro.block)
            if own:
                logprobs.append((rows, other))
            if self.check is not None:
                self.check()
        return logprobs


def held_out_evaluator(
    config: TrainConfig,
    sets: DataSets,
    renderer: Renderer,
    logprobs_of: LogprobsOf,
    reduce: Reduce,
    device: torch.device,
    *,
    rank: int = 0,
    ranks: int = 1,
    check: Callable[[], None] | None = None,
) -> Evaluator | None:
    """Return the evaluator of the held-out set, if there is one; raise ValueError as `Evaluator` does."""
    if config.data.eval is None:
        return None
    return Evaluator(
        config.objective,
        sets.held_out,
        sets.held_out_pairs,
        logprobs_of=logprobs_of,
        reduce=reduce,
        batch_size=config.evaluation.batch_size,
        pad_id=pad_id(renderer),
        max_length=config.data.max_length,
        device=device,
        rank=rank,
        ranks=ranks,
        check=check,
    )
