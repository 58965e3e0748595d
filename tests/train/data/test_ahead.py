"""Batches that a second thread makes before they are asked for: the same ones, in time, and within limits."""

from __future__ import annotations

import random
import threading
from collections import Counter

import pytest
import torch

from humanline.schedule import BeforeStep
from humanline.train.data.ahead import MadeAhead
from humanline.train.data.batch import find_indices
from humanline.train.data.stream import FixedBatches
from tests.helpers.units import OBJECTIVES, stream_of, units_of


class Made:
    """Makes a number for each step, and counts how often and where."""

    def __init__(self, end: int, limit: int = 100, fails: int = -1) -> None:
        self.made: Counter[int] = Counter()
        self.threads: set[int] = set()
        self.fails = fails
        self.ahead = MadeAhead(self.make, lambda made: 1, limit, end)

    def make(self, step: int) -> int:
        self.made[step] += 1
        self.threads.add(threading.get_ident())
        if step == self.fails:
            raise ValueError(f"step {step} is broken")
        return 10 * step

    def idle(self) -> None:
        """Wait until the thread has made what it was told to."""
        for future in list(self.ahead._made.values()):
            future.exception()


@pytest.mark.parametrize("every", [1, 4])
def test_a_step_that_is_scored_and_then_trained_on_is_made_once(every):
    """Under windows of one and four steps each batch is there before it is asked for, and made once."""
    made, end, scored = Made(end=20), 20, 0
    for step in range(end):
        made.ahead.over(step)
        while scored < end and BeforeStep(every=every).snapshot(scored) == step:
            assert made.ahead.get(scored) == 10 * scored
            made.idle()
            assert scored + 1 == end or scored + 1 in made.made  # the next one is there
            scored += 1
        assert made.ahead.get(step) == 10 * step
        made.idle()
        assert scored == end or scored in made.made  # so is the first one of the next window
    assert set(made.made) == set(range(end)) and set(made.made.values()) == {1}
    assert threading.get_ident() not in made.threads and len(made.threads) == 1
    made.ahead.close()


def test_a_whole_data_set_scored_ahead_is_not_kept():
    """Of what is scored long before it is trained on, only the first few steps stay; the others are made again once."""
    made = Made(end=50, limit=5)
    made.ahead.over(0)
    for step in range(50):
        made.ahead.get(step)
        made.idle()
        assert len(made.ahead._made) <= 5 + 4
    for step in range(50):
        made.ahead.over(step)
        assert made.ahead.get(step) == 10 * step
        made.idle()
        assert len(made.ahead._made) <= 5 + 4
        assert step + 1 == 50 or step + 1 in made.ahead._made
    assert max(made.made.values()) == 2 and made.made[0] == made.made[3] == 1
    made.ahead.close()


def test_what_is_held_is_what_is_there():
    """However steps are asked for, made again and let go of: the sum of the sizes of those that are there."""
    rng = random.Random(0)
    made = Made(end=40, limit=60)
    made.ahead.size = lambda number: number
    for first in range(0, 40, 3):
        made.ahead.over(first)
        for step in rng.choices(range(first, 40), k=4):
            assert made.ahead.get(step) == 10 * step
        made.idle()
        assert made.ahead._held() == sum(10 * step for step in made.ahead._made)
        assert made.ahead._sizes.keys() == made.ahead._made.keys()
    made.ahead.over(40)
    assert made.ahead._held() == 0
    made.ahead.close()


def test_an_error_of_the_thread_is_raised_where_the_step_is_asked_for():
    """Other steps are not touched by it, it comes again where it is asked for again, and goes with its cause."""
    made = Made(end=4, fails=2)
    assert [made.ahead.get(0), made.ahead.get(1)] == [0, 10]
    for _ in range(2):
        with pytest.raises(ValueError, match="step 2 is broken"):
            made.ahead.get(2)
    made.fails = -1
    assert made.ahead.get(2) == 20
    made.ahead.close()


def test_closing_ends_the_thread():
    """Nothing is left of it, and whoever asks afterwards gets the same."""
    before = set(threading.enumerate())
    made = Made(end=4)
    assert made.ahead.get(0) == 0
    assert set(threading.enumerate()) > before
    made.ahead.close()
    assert set(threading.enumerate()) == before
    assert made.ahead.get(3) == 30
    made.ahead.close()


@pytest.mark.parametrize("kind", OBJECTIVES)
def test_batches_are_those_of_their_steps(kind):
    """In any order, over epoch seams and in several processes: what the stream makes of the step's number alone."""
    rng = random.Random(kind)
    for rank in range(2):
        options = {"batch_size": 4, "micro_batch_size": 2, "rank": rank, "ranks": 2}
        plain = stream_of(units_of(kind, 6), OBJECTIVES[kind], **options)
        batches = FixedBatches(stream_of(units_of(kind, 6), OBJECTIVES[kind], **options), 9)
        for step in [*range(9), *rng.choices(range(9), k=12)]:
            one, other = batches.step(step), plain.step(step)
            assert len(one.micro_batches) == len(other.micro_batches)
            for mine, theirs in zip(one.micro_batches, other.micro_batches, strict=True):
                assert mine.rows == theirs.rows and mine.block.names == theirs.block.names
                assert torch.equal(mine.block.input_ids, theirs.block.input_ids)
        batches.close()


def test_indices_are_those_of_the_labels_that_count_and_of_real_tokens():
    """For rows of any lengths: True places of the mask in order, tokens before the padding, and their bounds."""
    mask = torch.tensor([[False, True, True], [True, False, False], [False, False, False]])
    found = find_indices(mask, (4, 2, 1))
    assert found.rows.tolist() == [0, 0, 1] and found.places.tolist() == [1, 2, 0]
    assert found.tokens.tolist() == [0, 1, 2, 3, 4, 5, 8] and found.bounds.tolist() == [0, 4, 6, 7]
    for lengths in ((4, 2), (4, 2, 0), (5, 2, 1)):
        with pytest.raises(ValueError, match=r"lengths of 3 rows must be that many, in 1 \.\. 4"):
            find_indices(mask, lengths)
    with pytest.raises(ValueError, match="beyond the length of their row"):
        find_indices(mask, (2, 2, 1))


@pytest.mark.parametrize("name,number", [("cuda", 3), ("cuda:1", 1)])
def test_the_thread_works_for_the_gpu_of_the_one_that_trains(monkeypatch, name, number):
    """Also where that is called "cuda" alone, as accelerate calls the only one, which torch takes for no GPU to set."""
    chosen: list[tuple[int, str]] = []
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3 if threading.current_thread() is here else 0)
    monkeypatch.setattr(
        torch._C, "_cuda_setDevice", lambda n: chosen.append((n, threading.current_thread().name)), raising=False
    )
    monkeypatch.setattr("humanline.train.data.batch.pinned", torch.clone)
    here = threading.current_thread()
    units = units_of("dpo", 6)
    batches = FixedBatches(stream_of(units, OBJECTIVES["dpo"], batch_size=2, micro_batch_size=2), 3, torch.device(name))
    batches.prepare(0)
    assert batches.step(0).total_units == 2
    batches.close()
    assert [n for n, _ in chosen] == [number] and chosen[0][1].startswith("humanline-batches")
