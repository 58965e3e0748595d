"""Which steps of a run have the largest batches, found by lengths alone: none of these batches is formed for that."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from humanline.train.data.stream import Stream
from humanline.train.data.units import columns_of

_UNITS = 1 << 21  # that are looked at, where a run draws more: a second's work; each of the data once all the same
_EPOCHS = 64
_EACH = 4  # steps that are named of each kind, since what is told by lengths is near what batches are


def cells(lengths: np.ndarray) -> np.ndarray:
    """Return how much rows of these lengths count: their tokens, and a little for attention that holds all pairs."""
    return np.asarray(lengths * (1 + lengths / 2048))


def largest_steps(stream: Stream, steps: int) -> set[int]:
    """Return the steps with the longest rows, the most tokens, the most of them in the loss, and the largest passes.

    Parameters
    ----------
    stream : Stream
    steps : int
        Length of the run. Of one of many epochs the first ones are looked at, in which every unit is.
    """
    size, batch = len(stream.units), stream.batch_size
    steps = min(steps, max(-(-size // batch), min(_EPOCHS * size, _UNITS) // batch))
    lengths, prompts, learned, starts = columns_of(stream.units)
    places, rows = stream.places(steps), max(1, len(lengths) // size)
    if stream.splits and np.array_equal(starts, rows * np.arange(size)):  # then a row stands for itself
        places = (rows * places[..., None] + np.arange(rows)).reshape(steps, -1)
        starts, rows = np.arange(len(lengths)), 1
    longest = np.maximum.reduceat(lengths, starts)[places]
    order = np.argsort(-longest, axis=1, kind="stable")  # as passes are made: the longest first
    longest, places = (np.take_along_axis(one, order, axis=1) for one in (longest, places))
    sums = [np.add.reduceat(column, starts)[places] for column in (lengths, cells(lengths), learned)]
    found = [longest[:, 0], *(one.sum(axis=1) for one in sums), *_passes(stream, rows, longest, *sums)]
    if stream.objective.mismatched:  # of one row each; a prompt's answer is nearly always that of the next one
        drawn = stream.places(steps)
        answers = np.roll((lengths - prompts)[drawn], -1, axis=1)
        found.append(np.minimum(prompts[drawn] + answers, stream.max_length).max(axis=1))
    each = min(_EACH, steps)
    return {int(step) for sizes in found for step in np.argpartition(-sizes, each - 1)[:each]}


def _passes(
    stream: Stream, rows: int, longest: np.ndarray, tokens: np.ndarray, counts: np.ndarray, learned: np.ndarray
) -> Iterator[np.ndarray]:
    """Yield the size of each step's first pass, which finds no gradients yet, and of the one that follows it.

    Parameters
    ----------
    stream : Stream
    rows : int
        Of a piece, which stays together.
    longest, tokens, counts, learned : (steps, pieces) arrays
        Of the pieces of each step, the longest first.
    """
    steps, pieces = longest.shape
    free, budget, each = stream.padding == "free", stream.micro_batch_tokens, stream.micro_batch_size
    tokens, counts, learned = (np.pad(one.cumsum(axis=1), ((0, 0), (1, 0))) for one in (tokens, counts, learned))
    every, start = np.arange(steps), np.zeros(steps, dtype=np.int64)
    for _ in range(2):
        width = longest[every, np.minimum(start, pieces - 1)]
        if budget is None:
            end = start + (pieces if each is None else max(1, each // (rows if stream.grouping else 1)) * stream.ranks)
        elif free:
            end = (tokens <= (tokens[every, start] + budget * stream.ranks)[:, None]).sum(axis=1) - 1
        else:
            end = start + np.maximum(1, budget // (rows * width)) * stream.ranks
        end = np.minimum(end, pieces)
        computed_on = counts[every, end] - counts[every, start] if free else rows * (end - start) * cells(width)
        yield computed_on + (learned[every, end] - learned[every, start]) / 2048
        start = end
