"""Divergences of next-token distributions, exact over the vocabulary and in chunks."""

from __future__ import annotations

import pytest
import torch

from humanline.objectives import token_kl, token_logprobs
from humanline.sim.sequence import Sequences
from tests import oracles_loss as oracle

N, H, V = 11, 6, 17
VARIANTS = [{}, {"temperature": 0.7}, {"softcap": 1.5}, {"temperature": 1.3, "softcap": 2.0}]


def problem(dtype=torch.float64, seed=0, n=N, v=V, scale=1.0):
    g = torch.Generator().manual_seed(seed)
    shapes = ((n, H), (v, H), (n, H + 1), (v, H + 1))
    return [scale * torch.randn(shape, generator=g, dtype=dtype) for shape in shapes]


@pytest.mark.parametrize("options", VARIANTS)
@pytest.mark.parametrize("chunk_size", [1, 4, 100, None])
def test_values_equal_plain_python(options, chunk_size):
    """Of models of different widths, for every chunk size, temperature and soft cap."""
    found = token_kl(*problem(), chunk_size=chunk_size, **options)
    expected = [
        oracle.token_kl(row, head, other, others, **{"temperature": 1.0, "softcap": None, **options})
        for row, other in zip(problem()[0].tolist(), problem()[2].tolist(), strict=True)
        for head, others in [(problem()[1].tolist(), problem()[3].tolist())]
    ]
    assert found.dtype == torch.float64 and not found.requires_grad
    assert found.tolist() == pytest.approx(expected, rel=1e-12, abs=1e-12)


def test_the_same_bits_are_no_distance_and_narrow_ones_are_close():
    """Exactly 0 in every type where both are the same, and in bf16 the value of the rounded operands."""
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        hidden, head, *_ = problem(dtype)
        assert token_kl(hidden, head, hidden.clone(), head.clone()).tolist() == [0.0] * N
    narrow = problem(torch.bfloat16)
    found = token_kl(*narrow)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), token_kl(*(one.double() for one in narrow)), rtol=1e-5, atol=1e-6)


def test_small_distances_survive_a_large_vocabulary():
    """In float32, at 50,000 words and 1e-4 nats, where a sum of log-ratios is wrong by more, it is right to 1 %."""
    hidden, head, *_ = problem(torch.float32, n=8, v=50_000)
    near = hidden + 5e-3 * torch.randn(hidden.shape, generator=torch.Generator().manual_seed(1))
    exact = token_kl(hidden.double(), head.double(), near.double(), head.double())
    assert exact.min() > 1e-6 and exact.max() < 1e-3
    torch.testing.assert_close(token_kl(hidden, head, near, head).double(), exact, rtol=1e-2, atol=0)


def test_peaked_laws_are_finite_and_no_distance_is_negative():
    """Where one of them gives words a probability that float32 cannot hold."""
    found = token_kl(*problem(torch.float32, scale=9.0))
    assert torch.isfinite(found).all() and (found > 0).all()
    assert not len(token_kl(*(one[:0] if one.shape[0] == N else one for one in problem())))


def test_it_is_the_mean_of_log_ratios():
    """Over the words, with the probabilities of the first: the expectation of what `token_logprobs` tells apart."""
    hidden, head, other, others = problem()
    mean = torch.zeros(N, dtype=torch.float64)
    for word in range(V):
        labels = torch.full((N,), word)
        own = token_logprobs(hidden, head, labels)
        mean += own.exp() * (own - token_logprobs(other, others, labels))
    torch.testing.assert_close(token_kl(hidden, head, other, others), mean, rtol=1e-10, atol=1e-12)


@pytest.mark.wrong_shapes
def test_what_does_not_fit_is_refused():
    """Two vocabularies, rows that are not as many, and settings out of range."""
    hidden, head, other, others = problem()
    with pytest.raises(ValueError, match="two vocabularies, of 17 and 16 words"):
        token_kl(hidden, head, other, others[:-1])
    with pytest.raises(ValueError, match="hidden's rows"):
        token_kl(hidden, head, other[:-1], others)
    with pytest.raises(ValueError, match="temperature"):
        token_kl(hidden, head, other, others, temperature=0.0)
    with pytest.raises(ValueError, match="chunk_size"):
        token_kl(hidden, head, other, others, chunk_size=0)


@pytest.mark.parametrize("order", [1, None])
def test_summed_along_sequences_it_is_the_simulators_divergence(order):
    """Of the simulator's policies over sequences: its visits' mean of these, of every node, is the KL of whole laws."""
    world = Sequences(vocab=3, length=4, contexts=2, order=order).draw([0])
    other = 1.5 * world.start + torch.randn(world.start.shape, generator=torch.Generator().manual_seed(0)).double()
    p, q = (world.table(params.double())[0] for params in (world.start, other))  # of each context, nodes * words
    laws = [world.law(table[None])[0] for table in (p, q)]
    nodes = len(world.child)
    at_node = torch.eye(nodes, dtype=torch.float64)  # the hidden state of a node, whose logits are its row of a table
    for context in range(2):
        heads = [table[context].view(nodes, 3).T.contiguous() for table in (p, q)]
        kl = token_kl(at_node, heads[0], at_node, heads[1])
        along = kl[world.cells // 3].sum(1)  # of every sequence
        expected = float((laws[0][context].exp() * (laws[0][context] - laws[1][context])).sum())
        assert float((laws[0][context].exp() * along).sum()) == pytest.approx(expected, rel=1e-10)
        assert expected > 0.1
