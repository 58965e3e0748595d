"""Token sequences -> what one optimizer step computes on: units, rows, micro-batches.

A *unit* is what a batch size counts: one sequence (nll, kto), a pair (dpo) or a group of completions (grpo). A *row* is
one padded sequence. Rows are right-padded and need no attention mask under a causal model; what counts is said by a
mask over positions, never by token ids. Within a micro-batch rows are ordered member by member: all chosen answers,
then all rejected ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from humanline.objectives import group_advantages
from humanline.train.config import GrpoObjective
from humanline.train.tokens import TokenSequence


@dataclass(frozen=True, slots=True)
class Unit:
    """One slot of a batch: its sequences and what the objective needs to know about them."""

    id: str
    sequences: tuple[TokenSequence, ...]
    desirable: bool = True
    scores: tuple[float, ...] = ()

    @property
    def tokens(self) -> int:
        """Return the number of completion tokens."""
        return sum(sequence.completion_length for sequence in self.sequences)

    @property
    def length(self) -> int:
        """Return the length of the longest sequence."""
        return max(len(s.ids) for s in self.sequences)


@dataclass(frozen=True, slots=True)
class Block:
    """Rows of one forward pass: (R, T) token ids, the (R, T - 1) mask of the labels that count, lengths unpadded."""

    names: tuple[str, ...]
    input_ids: Tensor
    mask: Tensor
    lengths: tuple[int, ...]

    @property
    def inputs(self) -> tuple[Tensor, Tensor, tuple[int, ...]]:
        """Return what a scorer is called with."""
        return self.input_ids, self.mask, self.lengths

    def to(self, device: torch.device) -> Block:
        """Return the block on a device."""
        return replace(self, input_ids=self.input_ids.to(device), mask=self.mask.to(device))


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """What one forward and backward pass sees."""

    units: tuple[Unit, ...]
    block: Block
    mismatched: Block | None  # KTO: some of the step's prompts with other prompts' answers, of whichever units
    desirable: Tensor  # (R,) bool, read by KTO
    advantages: Tensor | None  # (R,), read by GRPO

    def to(self, device: torch.device) -> MicroBatch:
        """Return the micro-batch on a device."""
        return replace(
            self,
            block=self.block.to(device),
            mismatched=None if self.mismatched is None else self.mismatched.to(device),
            desirable=self.desirable.to(device),
            advantages=None if self.advantages is None else self.advantages.to(device),
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
        mask[row, sequence.prompt_length - 1 : len(sequence.ids) - 1] = True
    return Block(tuple(names), input_ids, mask, tuple(len(s.ids) for s in sequences))


def make_micro_batch(
    units: Sequence[Unit],
    pad_id: int,
    grpo: GrpoObjective | None,
    mismatched: Sequence[tuple[str, TokenSequence]] | None,
) -> MicroBatch:
    """Build the tensors of a few units.

    Parameters
    ----------
    units : non-empty sequence of Unit
    pad_id : int
    grpo : GrpoObjective or None
        Settings of the advantages.
    mismatched : sequence of (name, TokenSequence) or None
        KTO's prompts with other prompts' answers.

    Raises
    ------
    ValueError
        If units have different numbers of sequences, unless they are groups of GRPO.
    """
    members = max(len(unit.sequences) for unit in units)
    if grpo is None and any(len(unit.sequences) != members for unit in units):
        raise ValueError("units of one micro-batch must have the same number of sequences")
    places = [(i, member) for member in range(members) for i, unit in enumerate(units) if member < len(unit.sequences)]
    rows = [(units[i], member) for i, member in places]
    names = [unit.id if members == 1 else f"{unit.id}#{member}" for unit, member in rows]
    advantages = None
    if grpo is not None:
        scores = torch.tensor([unit.scores[member] for unit, member in rows], dtype=torch.float64)
        group = torch.tensor([i for i, _ in places])
        advantages = group_advantages(scores, group, std=grpo.advantage_std, eps=grpo.advantage_eps).float()
    other = None
    if mismatched is not None:
        other = make_block([sequence for _, sequence in mismatched], [name for name, _ in mismatched], pad_id)
    return MicroBatch(
        units=tuple(units),
        block=make_block([unit.sequences[member] for unit, member in rows], names, pad_id),
        mismatched=other,
        desirable=torch.tensor([unit.desirable for unit, _ in rows]),
        advantages=advantages,
    )
