"""The batch stream: the batch of any step, computed from the step's number alone.

The stream runs on over epoch seams and has no state, so looking ahead, resuming and splitting over ranks are all the
same call. Every rank knows the whole step and takes its own micro-batches of it; global counts therefore need no
communication.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from humanline.train.batch import MicroBatch, Unit, make_micro_batch
from humanline.train.config import GrpoObjective, Objective
from humanline.train.tokens import TokenSequence


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


class Stream:
    """Serve the batch of every step of a run over a fixed list of units.

    Units are drawn without replacement epoch by epoch, from a permutation keyed by (seed, epoch). Within a step they
    are sorted by length before they are cut into micro-batches, so that little is padded.

    Parameters
    ----------
    units : sequence of Unit
    objective : Objective
        GRPO's advantage settings and KTO's need for mismatched pairs are read from it.
    batch_size : int
        Units a step, over all ranks.
    micro_batch_size : int or None
        Units a forward pass and rank; None = the whole share of a rank at once.
    seed : int or None
        None = keep the order as it is (evaluation).
    pad_id, max_length, rank, ranks : int

    Raises
    ------
    ValueError
        If the batch is larger than the data, cannot be shared evenly by the ranks, or, under KTO, is a single example
        or the data have a single prompt, so that no mismatched pair exists.
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
    ) -> None:
        if batch_size > len(units):
            raise ValueError(f"training.batch_size {batch_size} is larger than the data: {len(units)} to use")
        micro = micro_batch_size or -(-batch_size // ranks)
        if -(-batch_size // micro) % ranks:
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

    def steps(self, epochs: float) -> int:
        """Return the number of whole steps in so many epochs, at least 1."""
        return max(1, math.floor(epochs * len(self.units) / self.batch_size + 1e-9))

    def step(self, step: int) -> StepBatch:
        """Return the batch of a step."""
        units = self._draw(step * self.batch_size, self.batch_size)
        mismatched = self._mismatched(units, step) if self.objective.kind == "kto" else None
        order = sorted(range(len(units)), key=lambda i: -units[i].length)
        cuts = [order[i : i + self.micro_batch_size] for i in range(0, len(order), self.micro_batch_size)]
        grpo = self.objective if isinstance(self.objective, GrpoObjective) else None
        return StepBatch(
            micro_batches=tuple(
                make_micro_batch(
                    [units[i] for i in cut],
                    self.pad_id,
                    grpo,
                    None if mismatched is None else [mismatched[i] for i in cut],
                )
                for cut in cuts[self.rank :: self.ranks]
            ),
            total_micro_batches=len(cuts),
            total_units=len(units),
            total_tokens=sum(unit.tokens for unit in units),
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

    def _mismatched(self, units: Sequence[Unit], step: int) -> list[TokenSequence]:
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
            pairs.append(TokenSequence(ids=ids, prompt_length=len(prompt), truncated=len(ids) < len(whole)))
        return pairs


def _prompt(unit: Unit) -> tuple[int, ...]:
    sequence = unit.sequences[0]
    return sequence.ids[: sequence.prompt_length]
