"""The largest batches of a run are found wherever in it they are, by lengths alone."""

from __future__ import annotations

import random

import numpy as np
import pytest

from humanline.train.data.batch import Unit
from humanline.train.data.sequences import TokenSequence
from humanline.train.preflight import workload as looked
from humanline.train.preflight.workload import Workload, _size
from tests.helpers.units import LOCAL, OBJECTIVES, stream_of, unit

KINDS = OBJECTIVES | {"local": LOCAL}
MEMBERS = {"dpo": 2, "kto": 1, "grpo": 3, "local": 3}


def heavy(kind: str, count: int = 600) -> list[Unit]:
    """Units of which few are far longer than most."""
    rng = random.Random(kind)
    lengths = [[min(256, 2 + int(8 * rng.paretovariate(1.2))) for _ in range(MEMBERS[kind])] for _ in range(count)]
    return [unit(rng, number, own) for number, own in enumerate(lengths)]


def test_a_long_row_is_found_however_late_it_comes():
    """One row of 2000 tokens at step 300 of 400 is in the largest pass, and does not move the averages of the run."""
    short, long = TokenSequence((5,) * 15, 5), TokenSequence((5,) * 2000, 5)
    place = int(np.random.default_rng([0, 0]).permutation(400)[300])

    def workload(at_place: TokenSequence) -> Workload:
        units = [Unit(f"u{i}", (at_place if i == place else short,) * 2) for i in range(400)]
        return Workload.of_stream(stream_of(units, KINDS["dpo"], batch_size=1, max_length=4096), 400)

    found, even = workload(long), workload(short)
    assert found.first.input_ids.shape == (2, 2000) and even.first.input_ids.shape == (2, 15)
    assert found.without_gradient.lengths == (2000, 2000) and found.window == 4 * 2 * 1999
    assert found.work == even.work


def test_the_most_counted_tokens_are_found_among_rows_of_equal_length():
    """Where all rows are as long as they may be, the pass with most of its tokens in the loss is the largest."""
    place = int(np.random.default_rng([0, 0]).permutation(400)[300])
    units = [Unit(f"u{i}", (TokenSequence((5,) * 32, 1 if i == place else 30),) * 2) for i in range(400)]
    found = Workload.of_stream(stream_of(units, KINDS["dpo"], batch_size=1), 400)
    assert int(found.first.mask.sum()) == 2 * 31


@pytest.mark.parametrize("padding", ["right", "free"])
@pytest.mark.parametrize("passes", ["size", "whole", "budget"])
@pytest.mark.parametrize("kind", KINDS)
def test_one_process_finds_passes_as_large_as_those_of_all_steps(monkeypatch, kind, passes, padding):
    """First passes, and those that follow them, are as large as where every batch of two epochs is formed."""
    sizes = {
        "size": {"micro_batch_size": 6 if kind == "local" else 2},
        "whole": {},
        "budget": {"micro_batch_tokens": 800},
    }
    stream = stream_of(heavy(kind), KINDS[kind], batch_size=8, max_length=256, padding=padding, **sizes[passes])
    monkeypatch.setattr(looked, "LOOKED_AT", 4)
    some = Workload.of_stream(stream, 150)
    monkeypatch.setattr(looked, "LOOKED_AT", 150)
    every = Workload.of_stream(stream, 150)
    assert _size(some.first, padding) == _size(every.first, padding)
    assert (every.later is None) == (passes == "whole")
    assert some.later is every.later is None or _size(some.later, padding) == _size(every.later, padding)
    assert some.passes == every.passes


def test_the_longest_row_is_found_for_several_processes(monkeypatch):
    """Whichever process gets it; and one epoch of a run of many has every row, so a long run costs no more."""
    stream = stream_of(heavy("dpo"), KINDS["dpo"], batch_size=8, micro_batch_size=2, max_length=256, ranks=2)
    monkeypatch.setattr("humanline.train.preflight.largest._EPOCHS", 1)
    longest = max(one.length for one in stream.units)
    assert Workload.of_stream(stream, 10**9).first.input_ids.shape == (4, longest)
