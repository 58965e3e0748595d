"""The sizes of a run's batches: the largest ones decide over memory, the average over time."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from humanline.train.config import TrainConfig
from humanline.train.data.batch import Block
from humanline.train.data.prompts import Context
from humanline.train.data.stream import StepBatch, Stream
from humanline.train.preflight.largest import cells, largest_steps

LOOKED_AT = 64  # first steps of a run, whose batches are formed whatever is in them; averages are of these


@dataclass(frozen=True, slots=True)
class Work:
    """How much a step computes on, on average and over all ranks, under either layout of rows."""

    padded_tokens: float = 0.0
    real_tokens: float = 0.0
    padded_pairs: float = 0.0  # of a token and one it might attend to
    real_pairs: float = 0.0
    counted: float = 0.0  # tokens in the loss

    @classmethod
    def of(cls, blocks: Iterable[Block], steps: int) -> Work:
        """Return the average over steps."""
        blocks = list(blocks)
        return cls(
            sum(b.input_ids.numel() for b in blocks) / steps,
            sum(sum(b.lengths) for b in blocks) / steps,
            sum(b.input_ids.numel() * b.input_ids.shape[1] for b in blocks) / steps,
            sum(n * n for b in blocks for n in b.lengths) / steps,
            sum(int(b.mask.sum()) for b in blocks) / steps,
        )

    def laid_out(self, padding: str) -> tuple[float, float]:
        """Return the tokens, and the pairs of tokens, that a pass runs over."""
        free = padding == "free"
        return (self.real_tokens, self.real_pairs) if free else (self.padded_tokens, self.padded_pairs)


@dataclass(frozen=True, slots=True)
class Workload:
    """The batches of a run as far as they decide over memory and time.

    Parameters
    ----------
    first : Block
        The largest one that a step trains on first, while there are no gradients yet.
    later : Block or None
        The largest one of those that follow, where there are any.
    without_gradient : Block
        The largest one of a pass without gradient.
    held_out : Block or None
        The largest of the evaluation.
    passes : int
        Micro-batches a step and rank, at most.
    work, other : Work
        Of a step's micro-batches, and of KTO's mismatched pairs.
    window : int
        Bytes of log-probabilities of one step and rank.
    steps, ranks : int
    remark : str
        Where these numbers do not come from the data.
    travelled : Block or None
        The largest by which the distance from the start is measured.
    prompts : dict
        Tokens of the shortest and the longest prompt that is answered, as far as they are known: in `rounds`, at
        looks (`held_out`), for the distance (`travelled`).
    """

    first: Block
    later: Block | None
    without_gradient: Block
    held_out: Block | None
    passes: int
    work: Work
    other: Work
    window: int
    steps: int
    ranks: int = 1
    remark: str = ""
    travelled: Block | None = None
    prompts: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    @classmethod
    def of_stream(
        cls, stream: Stream, steps: int, held_out: Sequence[Block] = (), travelled: Block | None = None
    ) -> Workload:
        """Look at the first batches of a run and at the largest; raise ValueError as the stream does.

        Parameters
        ----------
        stream : Stream
            As any of its ranks sees it: all of their shares are looked at.
        steps : int
            Length of the run.
        held_out : sequence of Block
            Of the evaluation.
        travelled : Block, optional
            Of the distance from the start (`block_of_answers`).
        """
        size = functools.partial(_size, padding=stream.padding)
        looked_at = min(steps, LOOKED_AT)
        typical = [batch for step in range(looked_at) for batch in stream.of_all(step)]
        others = sorted(step for step in largest_steps(stream, steps) if step >= looked_at)
        batches = typical + [batch for step in others for batch in stream.of_all(step)]
        trained, mismatched = _blocks(batches)
        work, other = (Work.of(blocks, looked_at) for blocks in _blocks(typical))
        return cls(
            first=max((batch.micro_batches[0].block for batch in batches), key=size),
            later=max((m.block for b in batches for m in b.micro_batches[1:]), key=size, default=None),
            without_gradient=max([*trained, *mismatched], key=size),
            held_out=max(held_out, key=size) if held_out else None,
            passes=max(len(batch.micro_batches) for batch in batches),
            work=work,
            other=other,
            window=max(
                sum(_logprob_bytes(m.block) + _logprob_bytes(m.mismatched) for m in b.micro_batches) for b in batches
            ),
            steps=steps,
            ranks=stream.ranks,
            travelled=travelled,
        )

    @classmethod
    def at_limits(cls, config: TrainConfig, *, ranks: int = 1, why: str) -> Workload:
        """Return the workload of a run in which every row has `data.max_length` tokens, all of them in the loss.

        Parameters
        ----------
        config : TrainConfig
        ranks : int
        why : str
            Why the data cannot be looked at.
        """
        training, width, together = config.training, config.data.max_length, config.rows_together
        units = -(-training.batch_size * config.rows_a_unit // (ranks * together))  # of what stays together, a process
        most = training.micro_batch_tokens // width if training.micro_batch_tokens else config.rows_a_pass(ranks)
        fit = min(units, max(1, most // together))  # of these, in a pass
        block = full_block(fit * together, width)
        whole = full_block(1, width)
        work = _times(Work.of([whole], 1), training.batch_size * config.rows_a_unit)
        mismatched = config.objective.mismatched
        return cls(
            first=block,
            later=block if fit < units else None,
            without_gradient=block,
            held_out=_held_out_at_limits(config),
            passes=-(-units // fit),
            work=work,
            other=work if mismatched else Work(),
            window=4 * units * together * (width - 1) * (1 + mismatched),
            steps=training.steps or 0,
            ranks=ranks,
            remark=f"every row is taken to have {width} tokens (data.max_length), all in the loss: {why}",
            travelled=block_of_answers(config),
        )

    def with_rows(self, share: float) -> Workload:
        """Return the workload in which a pass has a share of its rows, the longest ones."""
        first, without_gradient = _cut(self.first, share), _cut(self.without_gradient, share)
        cuts = len(self.first.lengths) / len(first.lengths)
        passes = max(self.passes, round(self.passes * cuts))
        # The rows that are left make the passes that follow.
        later = first if self.later is None else _cut(self.later, share)
        return replace(
            self, first=first, later=later if passes > 1 else None, without_gradient=without_gradient, passes=passes
        )


@dataclass(frozen=True, slots=True)
class Drawn:
    """A batch of completions that transformers' generate draws: rows, and tokens of prompts and of completions."""

    rows: int
    prompt: int
    new: int


def lengths_of_prompts(**prompts: Sequence[Context]) -> dict[str, tuple[int, int]]:
    """Return the tokens of the shortest and the longest of each kind of prompt that there is."""
    lengths = {name: [len(one.ids) for one in of_kind] for name, of_kind in prompts.items()}
    return {name: (min(found), max(found)) for name, found in lengths.items() if found}


def batches_drawn(config: TrainConfig, prompts: Mapping[str, tuple[int, int]]) -> list[Drawn]:
    """Return the largest batches of completions that generate draws in a process of the run.

    Parameters
    ----------
    config : TrainConfig
    prompts : dict
        As in `Workload`; prompts that are not known are as long as leaves room for the longest completion.
    """
    asked = {}
    if config.rounds is not None and not config.rounds.overlap:  # else a process of its own draws
        asked["rounds"] = config.rounds.sampling
    if config.rounds is not None and config.data.eval is not None:
        asked["held_out"] = config.asking
    if config.evaluation.distance is not None:
        asked["travelled"] = config.travelling
    found, limit = [], config.data.max_length
    for name, sampling in asked.items():
        if sampling.engine.kind == "generate":
            shortest, longest = prompts.get(name, (max(1, limit - sampling.max_tokens),) * 2)
            new = max(1, min(sampling.max_tokens, limit - shortest))
            found.append(Drawn(sampling.engine.batch_size, longest, new))
    return found


def block_of_answers(config: TrainConfig, prompts: Iterable[Context] = ()) -> Block | None:
    """Return the largest block by which the distance from the start is measured, if it is; all labels count in it.

    Parameters
    ----------
    config : TrainConfig
    prompts : iterable of Context
        By which it is measured; default: as long as they may be.
    """
    if config.evaluation.distance is None:
        return None
    longest = max((len(one.ids) for one in prompts), default=config.data.max_length)
    return full_block(config.evaluation.batch_size, min(config.data.max_length, longest + config.travelling.max_tokens))


def full_block(rows: int, width: int) -> Block:
    """Return a block in which every row is whole and every label counts; its tokens are on the meta device."""
    ids = torch.empty((rows, width), dtype=torch.long, device="meta")
    return Block(("row",) * rows, ids, torch.ones((rows, width - 1), dtype=torch.bool), (width,) * rows)


def _held_out_at_limits(config: TrainConfig) -> Block | None:
    """Return the largest block of the evaluation of a run whose rows are all as long as they may be, if it has one."""
    if config.data.eval is None or config.rounds is not None:  # in rounds held-out prompts are answered
        return None
    units = min(config.evaluation.batch_size, config.evaluation.limit or config.evaluation.batch_size)
    pairs = config.data_shape == "preference" and config.objective.unit == "example"  # looked at as pairs, too
    return full_block(units * (2 if pairs else config.rows_a_unit), config.data.max_length)


def _cut(block: Block, share: float) -> Block:
    """Return a share of a block's rows, the longest and those with most in the loss."""
    rows = max(1, round(len(block.lengths) * share))
    order = sorted(range(len(block.lengths)), key=lambda row: -block.lengths[row])[:rows]
    return Block(
        tuple(block.names[row] for row in order),
        block.input_ids[order],
        block.mask[order],
        tuple(block.lengths[row] for row in order),
    )


def _blocks(batches: Iterable[StepBatch]) -> tuple[list[Block], list[Block]]:
    """Return the blocks that are trained on, and those of mismatched pairs."""
    micros = [micro for batch in batches for micro in batch.micro_batches]
    return [one.block for one in micros], [one.mismatched for one in micros if one.mismatched is not None]


def _size(block: Block, padding: str) -> float:
    """Return the size by which blocks are compared."""
    rows, width = block.input_ids.shape
    lengths = np.array(block.lengths if padding == "free" else [width] * rows)
    return float(cells(lengths).sum()) + int(block.mask.sum()) / 2048


def shape_of(block: Block) -> tuple[Any, ...]:
    """Return all of a block that a dry run looks at."""
    return tuple(block.input_ids.shape), block.lengths, int(block.mask.sum())


def _logprob_bytes(block: Block | None) -> int:
    return 0 if block is None else 4 * block.mask.numel()


def _times(work: Work, factor: float) -> Work:
    return Work(*(factor * getattr(work, name) for name in Work.__slots__))


def cheap_shape(stream: Stream, config: TrainConfig) -> tuple[int, int]:
    """Return at least the rows and the width of a run's largest block, from its first batch and its limits."""
    budget, longest = config.training.micro_batch_tokens, config.data.max_length
    if budget is not None:
        return 4 * budget // longest + 1, longest
    return max(len(micro.block.lengths) for micro in stream.step(0).micro_batches), longest
