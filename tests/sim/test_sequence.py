"""Sequences of tokens."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
import torch

from humanline.sim.measures import perceive, win_rate
from humanline.sim.run import Fixed, Run, behaviour_law, simulate
from humanline.sim.sequence import Sequences, histories
from humanline.sim.world import expected
from tests.sim import oracle


@pytest.mark.parametrize("order", [None, 0, 1, 2, 7])
@pytest.mark.parametrize(("vocab", "length"), [(2, 1), (2, 5), (3, 3), (5, 2)])
def test_every_sequence_is_enumerated_once(vocab, length, order):
    """Cells are nodes and tokens of all sequences in order, nodes are position and visible history, no more."""
    child, cells = histories(vocab, length, order)
    seen = length if order is None else order
    sequences = list(product(range(vocab), repeat=length))
    assert cells.shape == (len(sequences), length)
    assert (cells % vocab).tolist() == [list(tokens) for tokens in sequences]
    visited = {}
    for tokens, row in zip(sequences, (cells // vocab).tolist(), strict=True):
        for t, node in enumerate(row):
            history = t, tokens[max(0, t - seen) : t]
            assert visited.setdefault(history, node) == node
            if t:
                assert child[row[t - 1], tokens[t - 1]] == node
    assert sorted(visited.values()) == list(range(len(child)))  # each node is another history, and none is idle
    assert child[0].tolist() == [0] * vocab or length > 1


def test_more_order_than_length_is_the_whole_history():
    """An order of the length and more distinguishes what None does, on the same numbers."""
    for order in (3, 4, 100):
        one, other = Sequences(3, 4, order=order).draw([0]), Sequences(3, 4, order=None).draw([0])
        assert torch.equal(one.cells, other.cells)
        assert torch.equal(one.start, other.start)


def test_a_policy_of_order_0_writes_independent_tokens():
    """With order 0 the law of a sequence is the product of the laws of its positions."""
    world = Sequences(vocab=3, length=4, contexts=2, order=0).draw([1])
    law = world.law(world.table(world.start)).exp().view(1, 2, 3, 3, 3, 3)
    margins = [law.sum([d for d in (2, 3, 4, 5) if d != keep]) for keep in (2, 3, 4, 5)]
    torch.testing.assert_close(torch.einsum("spa,spb,spc,spd->spabcd", *margins), law)


def test_a_policy_of_order_1_forgets_all_but_the_last_token():
    """With order 1 the third token does not depend on the first once the second is known; without order it does."""
    for order, same in ((1, True), (None, False)):
        world = Sequences(vocab=3, length=3, contexts=1, order=order).draw([1])
        law = world.law(world.table(world.start)).exp().view(3, 3, 3)
        third = law / law.sum(-1, keepdim=True)
        assert bool(torch.allclose(third[0], third[1])) is same


def test_the_score_is_a_sum_over_tokens_of_mean_0_and_variance_1():
    """The score of a sequence is the standardised sum of one number for each token in its history."""
    world = Sequences().draw(range(4))
    torch.testing.assert_close(world.scores.mean((1, 2)), torch.zeros(4, dtype=torch.float64), rtol=0, atol=1e-12)
    torch.testing.assert_close(world.scores.square().mean((1, 2)), torch.ones(4, dtype=torch.float64))
    slow = oracle.problem(Sequences(vocab=2, length=4, order=None), 2)
    np.testing.assert_allclose(Sequences(vocab=2, length=4, order=None).draw([2]).scores[0].numpy(), slow.scores)


def test_alignment_1_starts_towards_the_score():
    """At alignment 1 the start prefers the better of two tokens at every last node; at -1 the worse."""
    for alignment, sign in ((1.0, 1), (-1.0, -1)):
        world = Sequences(alignment=alignment).draw([0])
        law, scores = world.law(world.table(world.start)).view(4, -1, 4), world.scores.view(4, -1, 4)
        assert torch.equal(law.argsort(-1), (sign * scores).argsort(-1))


def test_verifiable_changes_the_scores_alone():
    """A verifiable problem has the start and the graded quality of the one that is not."""
    plain, graded = Sequences(verifiable=0.3).draw([0, 1]), Sequences().draw([0, 1])
    assert torch.equal(plain.start, graded.start)
    assert torch.equal(plain.quality, graded.quality)
    assert torch.equal(graded.scores, graded.quality)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"vocab": 1}, ValueError),
        ({"vocab": 2.0}, TypeError),
        ({"length": 0}, ValueError),
        ({"length": False}, TypeError),
        ({"contexts": 0}, ValueError),
        ({"order": -1}, ValueError),
        ({"order": 1.5}, TypeError),
        ({"alignment": 2}, ValueError),
        ({"sharpness": -1}, ValueError),
        ({"verifiable": 1.5}, ValueError),
        ({"verifiable": math.nan}, ValueError),
    ],
)
def test_parameters_out_of_range_are_named(change, error):
    """A parameter out of its range is refused with its name, where the problem is described."""
    with pytest.raises(error, match=next(iter(change))):
        Sequences(**change)


@pytest.mark.parametrize(
    ("vocab", "length", "said"),
    [(2, 21, "2,097,152.*1,048,576"), (1025, 2, "1,050,625.*1,048,576"), (2, 10**9, "length"), (10**9, 20, "limit")],
)
def test_more_sequences_than_can_be_enumerated_are_refused(vocab, length, said):
    """Beyond 2^20 sequences the error names size and limit, at once, however long the sequences are."""
    with pytest.raises(ValueError, match=said):
        Sequences(vocab=vocab, length=length)


def test_too_many_problems_at_once_are_refused_with_size_and_limit():
    """Beyond 2^28 responses over seeds and contexts the error names size and limit, before anything is drawn."""
    with pytest.raises(ValueError, match=r"419,430,400 .* 268,435,456 .* fewer seeds or contexts"):
        Sequences(vocab=2, length=20, contexts=4).draw(range(100))


@pytest.mark.parametrize("vocab", [np.int64(2**32), np.int32(2**16)], ids=["int64", "int32"])
def test_numpy_integers_do_not_overflow_the_limit(vocab):
    """A vocabulary given as a numpy integer is counted exactly, not modulo its width."""
    with pytest.raises(ValueError, match="limit"):
        Sequences(vocab=vocab, length=2)


@pytest.mark.slow
@pytest.mark.parametrize(("vocab", "length"), [(2, 20), (4, 10)])
def test_a_million_sequences_work(vocab, length):
    """2^20 sequences are enumerated, trained on and measured, and their exact law still sums to 1."""
    task = Sequences(vocab=vocab, length=length, contexts=1, order=1)
    trace = simulate(Run(task, steps=2, groups=2, measurements=1), [0])
    world = trace.world
    assert world.scores.shape == (1, 1, 2**20)
    law, start = world.law(trace.policy), world.law(world.table(world.start))
    assert float(law.exp().sum()) == pytest.approx(1, abs=1e-9)
    assert float(win_rate(start, start, world.scores)) == pytest.approx(0.5, abs=1e-9)
    perception = perceive(law, start)
    assert np.isfinite(perception.utility).all()
    assert 0 < perception.mass[0, 0] <= 1


def test_the_limit_itself_is_allowed():
    """2^20 sequences can be described, and a law over 2^12 drawn, in each shape."""
    for vocab, length in ((2, 20), (4, 10), (2**20, 1), (2**10, 2)):
        Sequences(vocab=vocab, length=length)
    world = Sequences(vocab=4, length=6, order=None, contexts=1).draw([0])
    law = behaviour_law(world, Fixed(), [0])
    assert float(law.exp().sum()) == pytest.approx(1, abs=1e-12)
    assert abs(float(expected(law, world.scores))) < 5
