"""The batch stream: the batch of any step, computed from the step's number alone.

The stream runs on over epoch seams and has no state, so looking ahead, resuming and splitting over ranks are all the
same call. Every rank knows the whole step and takes its own micro-batches of it; global counts therefore need no
communication.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from torch import Tensor

from humanline.schedule import Schedule, Snapshots
from humanline.train.batch import MicroBatch, Unit, make_micro_batch
from humanline.train.config import GrpoObjective, Objective
from humanline.train.tokens import TokenSequence

_Rows = Sequence[tuple[TokenSequence, ...]]  # the sequences of each member of a step


@dataclass(frozen=True, slots=True)
class StepBatch:
    """One optimizer step: this rank's micro-batches, and counts over all ranks."""

    micro_batches: tuple[MicroBatch, ...]
    total_micro_batches: int
    total_units: int
    total_tokens: int

    @property
    def own_tokens(self) -> int:
        """Return the number of tokens, prompts included and padding left out, of this rank's rows."""
        return sum(len(s.ids) for micro in self.micro_batches for unit in micro.units for s in unit.sequences)


class Batches(Protocol):
    """The batches of a run, as training and references ask for them."""

    @property
    def end(self) -> int:
        """Return the number of steps whose batches are known by now."""

    def prepare(self, step: int) -> bool:
        """Make sure that the batch of a step is known; return False if the run ends before it."""

    def step(self, step: int) -> StepBatch:
        """Return the batch of a step before `end`."""

    def schedule(self, schedule: Schedule) -> Snapshots:
        """Return a reference schedule as it is meant for these batches."""

    def mismatch(self, step: int, batch: StepBatch, scored: Callable[[MicroBatch], Tensor]) -> dict[str, float]:
        """Return how far log-probabilities that came with the data are from the policy's own, where there are any."""


class FixedBatches:
    """So many steps of a stream whose data are there from the start."""

    def __init__(self, stream: Stream, steps: int) -> None:
        self.stream, self.end = stream, steps

    def prepare(self, step: int) -> bool:
        """Return whether there is such a step."""
        return step < self.end

    def step(self, step: int) -> StepBatch:
        """Return the batch of a step."""
        return self.stream.step(step)

    def schedule(self, schedule: Schedule) -> Snapshots:
        """Return the schedule itself."""
        return schedule

    def mismatch(self, step: int, batch: StepBatch, scored: Callable[[MicroBatch], Tensor]) -> dict[str, float]:
        """Return nothing: fixed data come without."""
        return {}


class Stream:
    """Serve the batch of every step of a run over a fixed list of units.

    Units are drawn without replacement epoch by epoch, from a permutation keyed by (seed, epoch). Within a step they
    are sorted by length before they are cut into micro-batches, so that little is padded. A micro-batch is as many
    units as `micro_batch_size` says, or as fit into `micro_batch_tokens`. Under such a budget steps differ in their
    number of micro-batches, but never ranks: the largest ones of a step are halved until all ranks have the same
    number. KTO's mismatched pairs, of which only the sum over a step is needed, are sorted and cut by their own
    lengths into as many blocks as there are micro-batches. They are only ever scored without gradient; since nothing
    is kept of them, a block may take up to four budgets.

    Parameters
    ----------
    units : sequence of Unit
    objective : Objective
        GRPO's advantage settings and KTO's need for mismatched pairs are read from it.
    batch_size : int
        Units a step, over all ranks.
    micro_batch_size : int or None
        Units a forward pass and rank; None = the whole share of a rank at once, or as many as the budget allows.
    seed : int or None
        None = keep the order as it is (evaluation).
    pad_id, max_length, rank, ranks : int
    micro_batch_tokens : int, optional
        The most tokens a forward pass and rank; not together with a micro_batch_size.
    padding : "right" or "free"
        Whether tokens of padding are part of the budget.

    Raises
    ------
    ValueError
        If the batch is larger than the data, cannot be shared evenly by the ranks, or, under KTO, is a single example
        or the data have a single prompt, so that no mismatched pair exists; or if a unit alone exceeds the budget.
    """

    def __init__(
        self,
        units: Sequence[Unit],
        objective: Objective,
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
    ) -> None:
        if batch_size > len(units):
            raise ValueError(f"training.batch_size {batch_size} is larger than the data: {len(units)} to use")
        self.padding = padding
        micro = micro_batch_size or -(-batch_size // ranks)
        if micro_batch_tokens is not None:
            self._refuse_budget(units, micro_batch_size, micro_batch_tokens, batch_size, ranks)
        elif -(-batch_size // micro) % ranks:
            raise ValueError(
                f"a batch of {batch_size} in micro-batches of {micro} makes {-(-batch_size // micro)} of them, which "
                f"{ranks} processes cannot share evenly; change training.batch_size or training.micro_batch_size"
            )
        if objective.kind == "kto" and batch_size < 2:
            raise ValueError("KTO estimates z_0 from mismatched pairs: training.batch_size must be at least 2; got 1")
        if objective.kind == "kto" and len({_prompt(unit) for unit in units}) < 2:
            raise ValueError("KTO estimates z_0 from mismatched pairs, but all examples have the same prompt")
        self.units, self.objective, self.batch_size, self.micro_batch_size = list(units), objective, batch_size, micro
        self.seed, self.pad_id, self.max_length, self.rank, self.ranks = seed, pad_id, max_length, rank, ranks
        self.micro_batch_tokens = micro_batch_tokens

    def steps(self, epochs: float) -> int:
        """Return the number of whole steps in so many epochs, at least 1."""
        return max(1, math.floor(epochs * len(self.units) / self.batch_size + 1e-9))

    def step(self, step: int) -> StepBatch:
        """Return the batch of a step."""
        units = self._draw(step * self.batch_size, self.batch_size)
        kto = self.objective.kind == "kto"
        grpo = self.objective if isinstance(self.objective, GrpoObjective) else None
        mismatched = self._mismatched(units, step) if kto else []
        cuts, others = self._cut([unit.sequences for unit in units], [(sequence,) for _, sequence in mismatched])
        own = slice(self.rank, None, self.ranks)
        return StepBatch(
            micro_batches=tuple(
                make_micro_batch(
                    [units[i] for i in cut], self.pad_id, grpo, [mismatched[i] for i in other] if kto else None
                )
                for cut, other in zip(cuts[own], others[own], strict=True)
            ),
            total_micro_batches=len(cuts),
            total_units=len(units),
            total_tokens=sum(unit.tokens for unit in units),
        )

    def _cut(self, units: _Rows, mismatched: _Rows) -> tuple[list[list[int]], list[list[int]]]:
        """Return for every micro-batch of a step, over all ranks, the numbers of its units and mismatched pairs."""
        budget = self.micro_batch_tokens
        if budget is None:
            size = self.micro_batch_size
            orders = [_longest_first(units), _longest_first(mismatched)]
            cuts, others = ([order[i : i + size] for i in range(0, len(units), size)] for order in orders)
            return cuts, others
        cuts = self._greedy(units, budget)
        others = self._greedy(mismatched, _UNKEPT * budget)
        count = -(-max(len(cuts), len(others)) // self.ranks) * self.ranks
        self._halve(cuts, units, count)
        if mismatched:
            self._halve(others, mismatched, count)
        return cuts, others or [[]] * count

    def _greedy(self, rows: _Rows, budget: int) -> list[list[int]]:
        """Cut members, the longest first, whenever the next one would exceed the budget."""
        cuts: list[list[int]] = []
        for i in _longest_first(rows):
            if cuts and self._size(rows, [*cuts[-1], i]) <= budget:
                cuts[-1].append(i)
            else:
                cuts.append([i])
        return cuts

    def _halve(self, cuts: list[list[int]], rows: _Rows, count: int) -> None:
        """Halve the largest cuts until there are so many."""
        while len(cuts) < count:
            largest = max((n for n, cut in enumerate(cuts) if len(cut) > 1), key=lambda n: self._size(rows, cuts[n]))
            half = len(cuts[largest]) // 2
            cuts[largest : largest + 1] = cuts[largest][:half], cuts[largest][half:]

    def _size(self, rows: _Rows, cut: Sequence[int]) -> int:
        """Return the tokens of one forward pass over members of a step."""
        lengths = [len(sequence.ids) for i in cut for sequence in rows[i]]
        return sum(lengths) if self.padding == "free" else len(lengths) * max(lengths)

    def _refuse_budget(
        self, units: Sequence[Unit], micro_batch_size: int | None, budget: int, batch_size: int, ranks: int
    ) -> None:
        if micro_batch_size is not None:
            raise ValueError("give at most one of training.micro_batch_size and training.micro_batch_tokens")
        if batch_size % ranks:
            raise ValueError(
                f"training.batch_size {batch_size} is not a multiple of the {ranks} processes, which then cannot share "
                f"its micro-batches evenly; {-(-batch_size // ranks) * ranks} is"
            )
        rows = [unit.sequences for unit in units]
        sizes = [self._size(rows, [i]) for i in range(len(rows))]
        largest = max(sizes)
        if largest > budget:
            unit, above = units[sizes.index(largest)], sum(size > budget for size in sizes)
            more = f", and {above - 1} more are above it too" if above > 1 else ""
            raise ValueError(
                f"training.micro_batch_tokens is {budget}, but {unit.id} alone takes {largest} tokens{more}; set "
                f"training.micro_batch_tokens to at least {largest}, or lower data.max_length"
            )

    def _draw(self, start: int, count: int) -> list[Unit]:
        """Return the units at some positions of the endless stream."""
        drawn: list[Unit] = []
        size = len(self.units)
        for position in range(start, start + count):
            epoch, place = divmod(position, size)
            if place == 0 or not drawn:
                order = self._order(epoch)
            drawn.append(self.units[order[place]])
        return drawn

    def _order(self, epoch: int) -> np.ndarray:
        if self.seed is None:
            return np.arange(len(self.units))
        return np.random.default_rng([self.seed, epoch]).permutation(len(self.units))

    def _mismatched(self, units: Sequence[Unit], step: int) -> list[tuple[str, TokenSequence]]:
        """Pair each prompt with the answer of the next example, in the order of the step, that has another prompt.

        Where the whole step has one prompt the answers come from the examples that follow it in the stream.
        """
        others, end = list(units), (step + 1) * self.batch_size
        while len({_prompt(unit) for unit in others}) < 2:
            others += self._draw(end, self.batch_size)
            end += self.batch_size
        pairs = []
        for i, unit in enumerate(units):
            prompt, following = _prompt(unit), (others[(i + j) % len(others)] for j in range(1, len(others)))
            other = next(o for o in following if _prompt(o) != prompt).sequences[0]
            whole = prompt + other.ids[other.prompt_length :]
            ids = whole[: self.max_length]
            pair = TokenSequence(ids=ids, prompt_length=len(prompt), truncated=len(ids) < len(whole))
            pairs.append((f"{unit.id}#mismatched", pair))
        return pairs


# How many budgets a forward pass without gradient may take: it holds the activations of one layer at a time, where
# training holds the inputs of all layers and everything of one.
_UNKEPT = 4


def _longest_first(rows: _Rows) -> list[int]:
    return sorted(range(len(rows)), key=lambda i: -max(len(sequence.ids) for sequence in rows[i]))


def _prompt(unit: Unit) -> tuple[int, ...]:
    sequence = unit.sequences[0]
    return sequence.ids[: sequence.prompt_length]
