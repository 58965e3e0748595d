"""The batch stream: the batch of any step, computed from the step's number alone.

The stream runs on over epoch seams and has no state, so looking ahead, resuming and splitting over ranks are all the
same call. Every rank knows the whole step and takes its own micro-batches of it; global counts therefore need no
communication.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from humanline.schedule import Snapshots
from humanline.train.config.objective import ObjectiveSection
from humanline.train.config.own_schedule import AnySchedule
from humanline.train.data.ahead import MadeAhead
from humanline.train.data.batch import (
    IDLE,
    MicroBatch,
    Row,
    Unit,
    idle_micro_batch,
    idle_sequence,
    make_micro_batch,
    rows_of,
)
from humanline.train.data.deal import Dealer, longest_first
from humanline.train.data.sequences import TokenSequence, said_within
from humanline.train.data.units import Units, lengths_of


@dataclass(frozen=True, slots=True)
class StepBatch:
    """One optimizer step: this rank's micro-batches, and counts over all ranks.

    `total_tokens` are learned, `total_length` are all of them, prompts included and padding left out.
    """

    micro_batches: tuple[MicroBatch, ...]
    total_micro_batches: int
    total_units: int
    total_tokens: int
    total_length: int

    @property
    def own_tokens(self) -> int:
        """Return the number of tokens, prompts included and padding left out, of this rank's rows."""
        return sum(len(row.sequence.ids) for micro in self.micro_batches for row in micro.rows)

    def pinned(self) -> StepBatch:
        """Return the batch in memory from which a GPU takes it without a wait."""
        return replace(self, micro_batches=tuple(micro.pinned() for micro in self.micro_batches))


class Batches(Protocol):
    """The batches of a run, as training and references read them."""

    @property
    def end(self) -> int:
        """Return the number of steps whose batches are known by now."""

    def prepare(self, step: int) -> bool:
        """Make the batch of a step known; return False if the run ends before it."""

    def step(self, step: int) -> StepBatch:
        """Return the batch of a step before `end`."""

    def schedule(self, schedule: AnySchedule) -> Snapshots:
        """Return a reference schedule as it is meant for these batches."""

    def mismatch(self, step: int, batch: StepBatch, logprobs_of: Callable[[MicroBatch], Tensor]) -> dict[str, float]:
        """Return how far log-probabilities that came with the data are from the policy's own, where there are any."""

    def close(self) -> None:
        """End what makes batches; nothing that is needed to go on is lost."""


_KEPT = 1 << 19  # tokens of batches that are kept because they will be asked for again, about 40 MB


class FixedBatches:
    """So many steps of a stream whose data are there from the start, made in a second thread ahead of their use.

    Parameters
    ----------
    stream : Stream
    steps : int
    device : torch.device, optional
        Where training wants them; for a GPU they lie in memory from which it takes them without a wait.
    """

    def __init__(self, stream: Stream, steps: int, device: torch.device | None = None) -> None:
        self.stream, self.end = stream, steps
        gpu = device if device is not None and device.type == "cuda" else None

        def make(step: int) -> StepBatch:
            return stream.step(step) if gpu is None else stream.step(step).pinned()

        begin = None
        if gpu is not None:  # a thread has a current GPU of its own; "cuda", without a number, is this thread's
            number = torch.cuda.current_device() if gpu.index is None else gpu.index
            begin = partial(torch.cuda.set_device, number)
        self._ahead = MadeAhead(make, lambda batch: batch.own_tokens, _KEPT, steps, begin)

    def prepare(self, step: int) -> bool:
        """Return whether there is such a step, and let go of those before it."""
        self._ahead.over(step)
        return step < self.end

    def step(self, step: int) -> StepBatch:
        """Return the batch of a step."""
        return self._ahead.get(step)

    def schedule(self, schedule: AnySchedule) -> Snapshots:
        """Return the schedule itself."""
        return schedule

    def mismatch(self, step: int, batch: StepBatch, logprobs_of: Callable[[MicroBatch], Tensor]) -> dict[str, float]:
        """Return nothing: fixed data come without."""
        return {}

    def close(self) -> None:
        """End the thread that makes them."""
        self._ahead.close()


class Stream:
    """Serve the batch of every step of a run over a fixed list of units.

    Units are drawn without replacement epoch by epoch, from a permutation keyed by (seed, epoch). Within a step they
    are sorted by length before they are cut into micro-batches, so that little is padded. A micro-batch is as many
    units as `micro_batch_size` says, or as fit into `micro_batch_tokens`.

    GRPO's groups are split: each row carries its advantage, so rows are sorted and cut one by one, and
    `micro_batch_size` counts them. Where the loss is a mean of each micro-batch (`normalise: local`) it depends on
    what is in one; there a micro-batch holds whole groups, as many as have so many rows.

    Under a budget, and where groups are split, steps differ in their number of micro-batches, but never ranks: one that
    has no row left for a turn gets a micro-batch in which nothing counts. KTO's mismatched pairs, of which only the sum
    over a step is needed, are sorted and cut by their own lengths into as many blocks as there are micro-batches.
    `deal.py` says which rank has which.

    Parameters
    ----------
    units : sequence of Unit
    objective : ObjectiveSection
        How it reads groups, and whether it needs mismatched pairs.
    batch_size : int
        Units a step, over all ranks.
    micro_batch_size : int or None
        Units, or under GRPO rows, a forward pass and rank; None = the whole share of a rank at once, or as many as the
        budget allows.
    seed : int or None
        None = keep the order as it is (evaluation).
    pad_id, max_length, rank, ranks : int
    micro_batch_tokens : int, optional
        The most tokens a forward pass and rank; not together with a micro_batch_size.
    padding : "right" or "free"
        Whether tokens of padding are part of the budget.
    whole_units : bool
        Split no group, whatever the loss (evaluation, which compares the rows of a pair).

    Raises
    ------
    ValueError
        If the batch is larger than the data, cannot be shared evenly by the ranks, or, under KTO and BCO, is a single
        example, which would be held against itself; if under KTO the data have a single prompt, so that no mismatched
        pair exists; or if what must stay together, a unit or where groups are split a row, exceeds the budget, or a
        group that is kept whole has too many rows.
    """

    def __init__(
        self,
        units: Sequence[Unit],
        objective: ObjectiveSection,
        *,
        batch_size: int,
        micro_batch_size: int | None,
        seed: int | None,
        pad_id: int,
        max_length: int,
        rank: int = 0,
        ranks: int = 1,
        micro_batch_tokens: int | None = None,
        padding: Literal["right", "free"] = "right",
        whole_units: bool = False,
    ) -> None:
        if batch_size > len(units):
            raise ValueError(f"training.batch_size {batch_size} is larger than the data: {len(units)} to use")
        if micro_batch_size is not None and micro_batch_tokens is not None:
            raise ValueError("give at most one of training.micro_batch_size and training.micro_batch_tokens")
        self.padding = padding
        self.grouping = objective.grouping
        self.splits = self.grouping is not None and not (self.grouping.whole or whole_units)
        whole = self.grouping is not None and not self.splits
        if not self.splits and (why := why_uneven(micro_batch_size, micro_batch_tokens, batch_size, ranks, whole)):
            raise ValueError(why)
        self.dealer = Dealer(micro_batch_size, micro_batch_tokens, padding, ranks, groups_whole=whole)
        if micro_batch_tokens is not None:
            self._refuse_budget(units, micro_batch_tokens)
        elif micro_batch_size is not None and self.grouping is not None and not self.splits:
            self._refuse_groups(units, micro_batch_size)
        if objective.reference_point is not None:
            of = "mismatched pairs" if objective.mismatched else "the answers of a step"
            what = f"{objective.title} estimates z_0 from {of}"
            if batch_size < 2:
                raise ValueError(f"{what}: training.batch_size must be at least 2; got 1")
            if objective.mismatched and one_prompt(units):
                raise ValueError(f"{what}, but all examples have the same prompt")
        self.units = units if isinstance(units, Units) else list(units)
        self.objective, self.batch_size = objective, batch_size
        self.seed, self.pad_id, self.max_length, self.rank, self.ranks = seed, pad_id, max_length, rank, ranks
        self.micro_batch_size, self.micro_batch_tokens = micro_batch_size, micro_batch_tokens
        self._order = lru_cache(maxsize=2)(self._shuffled)  # of two epochs, since a step may be over their seam

    def steps(self, epochs: float) -> int:
        """Return the number of whole steps in so many epochs, at least 1."""
        return max(1, math.floor(epochs * len(self.units) / self.batch_size + 1e-9))

    def step(self, step: int) -> StepBatch:
        """Return the batch of a step."""
        (own,) = self._step(step, range(self.rank, self.rank + 1))
        return own

    def of_all(self, step: int) -> list[StepBatch]:
        """Return the batch of a step as each rank sees it."""
        return self._step(step, range(self.ranks))

    def places(self, steps: int) -> np.ndarray:
        """Return which units the first steps draw, (steps, batch_size): no batch is formed for that."""
        count = steps * self.batch_size
        epochs = [self._order(epoch) for epoch in range(-(-count // len(self.units)))]
        return np.concatenate(epochs)[:count].reshape(steps, self.batch_size)

    def _step(self, step: int, ranks: range) -> list[StepBatch]:
        units = self._draw(step * self.batch_size, self.batch_size)
        mismatched = self._mismatched(units, step) if self.objective.mismatched else []
        pieces = [rows_of(units[i], self.grouping) for i in longest_first([unit.sequences for unit in units])]
        if self.splits:
            pieces = [(row,) for piece in pieces for row in piece]
        cuts, others = self.dealer.deal(
            [tuple(row.sequence for row in piece) for piece in pieces], [(sequence,) for _, sequence in mismatched]
        )
        micro_batches = [
            self._micro_batch(pieces, cut, [mismatched[i] for i in other] if mismatched else None)
            for place, (cut, other) in enumerate(zip(cuts, others, strict=True))
            if place % self.ranks in ranks
        ]
        tokens = sum(unit.tokens for unit in units)
        length = sum(len(sequence.ids) for unit in units for sequence in unit.sequences)
        return [
            StepBatch(tuple(micro_batches[n :: len(ranks)]), len(cuts), len(units), tokens, length)
            for n in range(len(ranks))
        ]

    def _micro_batch(
        self,
        pieces: Sequence[tuple[Row, ...]],
        cut: Sequence[int],
        mismatched: Sequence[tuple[str, TokenSequence]] | None,
    ) -> MicroBatch:
        if not cut or mismatched == []:  # and other ranks make a pass
            idle = idle_sequence(row.sequence for piece in pieces for row in piece)
            mismatched = [(IDLE, idle)] if mismatched == [] else mismatched
            if not cut:
                return idle_micro_batch(idle, self.pad_id, mismatched)
        rows = [row for i in sorted(cut) for row in pieces[i]]  # unit by unit
        return make_micro_batch(rows, self.pad_id, mismatched)

    def _refuse_budget(self, units: Sequence[Unit], budget: int) -> None:
        """Refuse a budget of tokens into which a unit, or where groups are split a row, does not fit."""
        largest = above = place = member = 0
        for number, lengths in enumerate(lengths_of(units)):
            for part, piece in enumerate([(length,) for length in lengths] if self.splits else [lengths]):
                size = self.dealer.tokens(piece)
                above += size > budget
                if size > largest:
                    largest, place, member = size, number, part
        name = Row(units[place], member).name if self.splits else units[place].id
        if largest > budget:
            more = f", and {above - 1} more are above it too" if above > 1 else ""
            raise ValueError(
                f"training.micro_batch_tokens is {budget}, but {name} alone takes {largest} tokens{more}; set "
                f"training.micro_batch_tokens to at least {largest}, or lower data.max_length"
            )

    def _refuse_groups(self, units: Sequence[Unit], size: int) -> None:
        """Refuse a micro-batch that cannot hold a group as a whole."""
        rows, place = max(((len(lengths), -number) for number, lengths in enumerate(lengths_of(units))), default=(0, 0))
        if rows > size:
            raise ValueError(
                f"training.micro_batch_size counts rows and is {size}, but {units[-place].id} is a group of {rows}, "
                "which objective.normalise: local, a mean of each micro-batch, keeps together; set "
                f"training.micro_batch_size to at least {rows}, or objective.normalise: global"
            )

    def _draw(self, start: int, count: int) -> list[Unit]:
        """Return the units at some positions of the endless stream."""
        drawn: list[Unit] = []
        size = len(self.units)
        while count:
            epoch, place = divmod(start, size)
            places = self._order(epoch)[place : place + count].tolist()
            drawn += [self.units[one] for one in places]
            start, count = start + len(places), count - len(places)
        return drawn

    def _shuffled(self, epoch: int) -> np.ndarray:
        if self.seed is None:
            return np.arange(len(self.units))
        return np.random.default_rng([self.seed, epoch]).permutation(len(self.units))

    def _mismatched(self, units: Sequence[Unit], step: int) -> list[tuple[str, TokenSequence]]:
        """Pair each prompt with the answer of the next example, in the order of the step, that has another prompt.

        Where the whole step has one prompt the answers come from the examples that follow it in the stream.
        """
        others, end = list(units), (step + 1) * self.batch_size
        prompts = [_prompt(unit) for unit in others]
        while len(set(prompts)) < 2:
            drawn = self._draw(end, self.batch_size)
            others, prompts = others + drawn, prompts + [_prompt(unit) for unit in drawn]
            end += self.batch_size
        pairs = []
        for unit, prompt, place in zip(units, prompts, _next_other(prompts), strict=False):
            other = others[place].sequences[0]
            whole = prompt + other.ids[other.prompt_length :]
            ids = whole[: self.max_length]
            said = said_within(other.said, len(ids) - len(prompt))
            pair = TokenSequence(ids, len(prompt), len(ids) < len(whole), said)
            pairs.append((f"{unit.id}#mismatched", pair))
        return pairs


def why_uneven(size: int | None, budget: int | None, batch_size: int, ranks: int, grouped: bool) -> str:
    """Return why ranks cannot have equally many micro-batches of a batch of whole units; nothing if they can."""
    if budget is not None or (size is not None and grouped):
        if batch_size % ranks:
            return (
                f"training.batch_size {batch_size} is not a multiple of the {ranks} processes, which then cannot "
                f"share its micro-batches evenly; {-(-batch_size // ranks) * ranks} is"
            )
        return ""
    size = size or -(-batch_size // ranks)
    if -(-batch_size // size) % ranks:
        return (
            f"a batch of {batch_size} in micro-batches of {size} makes {-(-batch_size // size)} of them, which "
            f"{ranks} processes cannot share evenly; change training.batch_size or training.micro_batch_size"
        )
    return ""


def _next_other(prompts: Sequence[tuple[int, ...]]) -> list[int]:
    """Return for each place of a ring the next one with another prompt, of which there are at least two."""
    count, numbers = len(prompts), dict[tuple[int, ...], int]()
    kinds = [numbers.setdefault(prompt, len(numbers)) for prompt in prompts]
    following = [0] * count
    for place in reversed(range(2 * count)):  # twice round, for those whose next one is beyond the end
        here, after = place % count, (place + 1) % count
        following[here] = following[after] if kinds[here] == kinds[after] else after
    return following


def one_prompt(units: Sequence[Unit]) -> bool:
    """Return whether all units, of which there must be one, have the same prompt: then no mismatched pair exists."""
    first = _prompt(units[0])
    return all(_prompt(unit) == first for unit in units)


def _prompt(unit: Unit) -> tuple[int, ...]:
    sequence = unit.sequences[0]
    return sequence.ids[: sequence.prompt_length]
