"""Token sequences -> the units, rows and micro-batches of one optimizer step.

A *unit* is what a batch size counts, which the objective says: one sequence, a pair or a group of completions. A *row*
is one padded sequence. Rows are right-padded and need no attention mask under a causal model; what counts is said by a
mask over positions, never by token ids. Within a micro-batch rows are ordered member by member: all chosen answers,
then all rejected ones. The rows of a group need not share a micro-batch: what GRPO knows of the group, each row's
advantage, is computed before they part.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from humanline.objectives import group_advantages
from humanline.train.config.objective import Grouping
from humanline.train.data.sequences import TokenSequence
from humanline.train.data.transfer import pinned, to_device

IDLE = "(nothing)"  # name of a row of which nothing counts


@dataclass(frozen=True, slots=True)
class Unit:
    """One slot of a batch: its sequences and what the objective needs to know about them."""

    id: str
    sequences: tuple[TokenSequence, ...]
    desirable: bool = True
    scores: tuple[float, ...] = ()

    @property
    def tokens(self) -> int:
        """Return the number of tokens that are learned."""
        return sum(sequence.learned for sequence in self.sequences)

    @property
    def length(self) -> int:
        """Return the length of the longest sequence."""
        return max(len(s.ids) for s in self.sequences)


@dataclass(frozen=True, slots=True)
class Row:
    """One sequence of a unit, on its way into a micro-batch."""

    unit: Unit
    member: int
    advantage: float | None = None  # within the whole unit, read by GRPO

    @property
    def sequence(self) -> TokenSequence:
        """Return its token ids."""
        return self.unit.sequences[self.member]

    @property
    def name(self) -> str:
        """Return a name that does not depend on what else is in the micro-batch."""
        return self.unit.id if len(self.unit.sequences) == 1 else f"{self.unit.id}#{self.member}"


def rows_of(unit: Unit, grouping: Grouping | None) -> tuple[Row, ...]:
    """Return the rows of a unit; of a group each with its advantage, by these settings, over the whole group."""
    if grouping is None:
        return tuple(Row(unit, member) for member in range(len(unit.sequences)))
    scores = torch.tensor(unit.scores, dtype=torch.float64)
    group = torch.zeros(len(scores), dtype=torch.long)
    advantages = group_advantages(scores, group, std=grouping.std, eps=grouping.eps).tolist()
    members = range(len(unit.sequences))
    return tuple(Row(unit, member, advantage) for member, advantage in zip(members, advantages, strict=True))


class Indices(NamedTuple):
    """Where a pass over a block's rows finds what it needs: made on the host, since finding it on a GPU takes a wait.

    Parameters
    ----------
    rows, places : (C,) integer tensors
        Of the labels that count, row by row: label `place` of a row is its token `place` + 1.
    tokens : (N,) integer tensor
        Of the tokens that are not padding, row by row, in the rows laid end to end with their padding.
    bounds : (R + 1,) integer tensor
        Where each row begins among these tokens, and where the last one ends.
    """

    rows: Tensor
    places: Tensor
    tokens: Tensor
    bounds: Tensor


def find_indices(mask: Tensor, lengths: Sequence[int]) -> Indices:
    """Return the indices of rows by the (R, T - 1) mask of the labels that count and the lengths without padding.

    Raises
    ------
    ValueError
        If there are not R lengths in 1 .. T, or a label counts that is padding.
    """
    width = mask.shape[1] + 1
    if len(lengths) != len(mask) or not all(1 <= n <= width for n in lengths):
        raise ValueError(f"lengths of {len(mask)} rows must be that many, in 1 .. {width}; got {tuple(lengths)}")
    rows, places = mask.nonzero(as_tuple=True)
    bounds = torch.tensor([0, *accumulate(lengths)])
    tokens = torch.cat([torch.arange(row * width, row * width + n) for row, n in enumerate(lengths)])
    bounds, tokens = bounds.to(mask.device), tokens.to(mask.device)
    if bool((places + 1 >= (bounds[1:] - bounds[:-1])[rows]).any()):
        raise ValueError("the mask counts labels beyond the length of their row")
    return Indices(rows, places, tokens, bounds)


Inputs = tuple[Tensor, Tensor, tuple[int, ...], Indices | None]


@dataclass(frozen=True, slots=True)
class Block:
    """Rows of one forward pass: (R, T) token ids, the (R, T - 1) mask of the labels that count, lengths unpadded.

    `make_block` gives it its indices; without them each pass has to find them. A copy on a device knows the block that
    it was made from, so that what the host asks of it takes no wait.
    """

    names: tuple[str, ...]
    input_ids: Tensor
    mask: Tensor
    lengths: tuple[int, ...]
    indices: Indices | None = None
    original: Block | None = None

    @property
    def inputs(self) -> Inputs:
        """Return the arguments of a policy: token ids, mask, lengths and indices."""
        return self.input_ids, self.mask, self.lengths, self.indices

    @property
    def on_host(self) -> Block:
        """Return the block that this is a copy of, or itself."""
        return self.original or self

    def to(self, device: torch.device) -> Block:
        """Return the block on a device."""
        ids, mask, indices = self.input_ids, self.mask, self.indices
        return replace(
            self,
            input_ids=to_device(ids, device),
            mask=to_device(mask, device),
            indices=None if indices is None else Indices(*(to_device(one, device) for one in indices)),
            original=self.on_host,
        )

    def pinned(self) -> Block:
        """Return the block in memory from which a GPU takes it without a wait."""
        indices = None if self.indices is None else Indices(*map(pinned, self.indices))
        return replace(self, input_ids=pinned(self.input_ids), mask=pinned(self.mask), indices=indices)


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """The rows of one forward and backward pass."""

    rows: tuple[Row, ...]  # in the order of the block; none where nothing counts (`idle_micro_batch`)
    block: Block
    mismatched: Block | None  # KTO: some of the step's prompts with other prompts' answers, of whichever units
    desirable: Tensor  # (R,) bool, the labels of examples
    advantages: Tensor | None  # (R,), read by GRPO

    @property
    def units(self) -> tuple[Unit, ...]:
        """Return the units whose first row is here: all of them, but where groups are split."""
        return tuple(row.unit for row in self.rows if row.member == 0)

    def to(self, device: torch.device) -> MicroBatch:
        """Return the micro-batch on a device."""
        return replace(
            self,
            block=self.block.to(device),
            mismatched=None if self.mismatched is None else self.mismatched.to(device),
            desirable=to_device(self.desirable, device),
            advantages=None if self.advantages is None else to_device(self.advantages, device),
        )

    def pinned(self) -> MicroBatch:
        """Return the micro-batch in memory from which a GPU takes it without a wait."""
        return replace(
            self,
            block=self.block.pinned(),
            mismatched=None if self.mismatched is None else self.mismatched.pinned(),
            desirable=pinned(self.desirable),
            advantages=None if self.advantages is None else pinned(self.advantages),
        )


def make_block(sequences: Sequence[TokenSequence], names: Sequence[str], pad_id: int) -> Block:
    """Pad sequences on the right into one block.

    Parameters
    ----------
    sequences : non-empty sequence of TokenSequence
    names : sequence of str
        One name a row, for messages and for the keys of random draws.
    pad_id : int
        Any token id; padding is recognised by position alone.

    Raises
    ------
    ValueError
        If a prompt is empty: its first token would be predicted from nothing.
    """
    width = max(len(s.ids) for s in sequences)
    input_ids = torch.full((len(sequences), width), pad_id, dtype=torch.long)
    mask = torch.zeros((len(sequences), width - 1), dtype=torch.bool)
    for row, (sequence, name) in enumerate(zip(sequences, names, strict=True)):
        if sequence.prompt_length < 1:
            raise ValueError(f"{name}: the prompt must hold at least one token, for the first answer token to follow")
        input_ids[row, : len(sequence.ids)] = torch.tensor(sequence.ids)
        first = sequence.prompt_length - 1
        mask[row, first : len(sequence.ids) - 1] = True
        for start, end in sequence.said:
            mask[row, first + start : first + end] = False
    lengths = tuple(len(s.ids) for s in sequences)
    return Block(tuple(names), input_ids, mask, lengths, find_indices(mask, lengths))


def make_micro_batch(
    rows: Sequence[Row], pad_id: int, mismatched: Sequence[tuple[str, TokenSequence]] | None = None
) -> MicroBatch:
    """Build the tensors of some rows.

    Parameters
    ----------
    rows : non-empty sequence of Row
        Unit by unit.
    pad_id : int
    mismatched : sequence of (name, TokenSequence), optional
        KTO's prompts with other prompts' answers.

    Raises
    ------
    ValueError
        If units have different numbers of sequences, unless they are groups of GRPO.
    """
    rows = sorted(rows, key=lambda row: row.member)
    advantages = [row.advantage for row in rows if row.advantage is not None]
    if not advantages and len({len(row.unit.sequences) for row in rows}) > 1:
        raise ValueError("units of one micro-batch must have the same number of sequences")
    return MicroBatch(
        rows=tuple(rows),
        block=make_block([row.sequence for row in rows], [row.name for row in rows], pad_id),
        mismatched=None if mismatched is None else _mismatched_block(mismatched, pad_id),
        desirable=torch.tensor([row.unit.desirable for row in rows]),
        advantages=torch.tensor(advantages, dtype=torch.float32) if advantages else None,
    )


def idle_micro_batch(
    sequence: TokenSequence, pad_id: int, mismatched: Sequence[tuple[str, TokenSequence]] | None = None
) -> MicroBatch:
    """Build a micro-batch in which nothing counts, for a process that has no row left where others have one.

    All processes must make the same number of passes. This one adds exactly 0 to gradients and metrics of GRPO, whose
    rows alone are split so far that some process may have none.

    Parameters
    ----------
    sequence : TokenSequence
        What the pass runs over (`idle_sequence`).
    pad_id : int
    mismatched : sequence of (name, TokenSequence), optional
        KTO's, which count all the same.
    """
    return MicroBatch(
        rows=(),
        block=make_block([sequence], [IDLE], pad_id),
        mismatched=None if mismatched is None else _mismatched_block(mismatched, pad_id),
        desirable=torch.tensor([True]),
        advantages=torch.zeros(1),
    )


def idle_sequence(sequences: Iterable[TokenSequence]) -> TokenSequence:
    """Return the shortest sequence as one without an answer, so that nothing counts: it adds exactly 0 to any sum."""
    shortest = min(sequences, key=lambda sequence: len(sequence.ids))
    return replace(shortest, prompt_length=len(shortest.ids), said=())


def _mismatched_block(mismatched: Sequence[tuple[str, TokenSequence]], pad_id: int) -> Block:
    return make_block([sequence for _, sequence in mismatched], [name for name, _ in mismatched], pad_id)
