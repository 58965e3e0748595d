"""Laws, samples and look-ups of problems with finitely many responses."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
import torch

from humanline.sim.bandit import Bandit
from humanline.sim.sequence import Sequences
from humanline.sim.world import (
    World,
    check_seeds,
    check_size,
    expected,
    generator,
    normals,
    sample_law,
    standardise,
    token_logprobs,
    verified,
    whole,
)
from tests.sim import oracle

TASKS = {
    "bandit": Bandit(contexts=2, arms=6),
    "one arm of two": Bandit(contexts=3, arms=2, features=1),
    "order 1": Sequences(vocab=3, length=3, contexts=2),
    "order 0": Sequences(vocab=2, length=5, contexts=2, order=0),
    "order 2": Sequences(vocab=2, length=5, contexts=1, order=2),
    "whole history": Sequences(vocab=2, length=4, contexts=2, order=None),
    "one token": Sequences(vocab=4, length=1, contexts=2),
}
tasks = pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)


def room(count: int, chance: float = 1e-9) -> float:
    """How far the frequencies of `count` draws may be from a law (DKW), but for the given chance."""
    return math.sqrt(math.log(2 / chance) / (2 * count))


def uniforms(*shape: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(7).random(shape))


@tasks
def test_a_law_sums_to_one_and_a_table_to_one_at_every_node(task):
    """Responses of a context, and tokens of a node, have probabilities that sum to 1, also far from the start."""
    world = task.draw([0, 5])
    for scale in (1.0, 50.0):
        table = world.table(scale * world.start)
        ones = torch.ones(1, dtype=torch.float64)
        torch.testing.assert_close(world.law(table).exp().sum(-1), ones.expand(2, task.contexts))
        nodes = table.unflatten(-1, (-1, world.vocab)).exp().sum(-1)
        torch.testing.assert_close(nodes, ones.expand(nodes.shape))


@tasks
def test_the_problem_of_a_seed_is_the_one_of_plain_loops(task):
    """Start, scores, table and law are those drawn and enumerated again without a look-up."""
    world = task.draw([3, 8])
    for index, seed in enumerate((3, 8)):
        slow = oracle.problem(task, seed)
        table = slow.table(slow.start)
        for mine, theirs in (
            (world.start[index].flatten(), slow.start.flatten()),
            (world.scores[index], slow.scores),
            (world.quality[index], slow.quality),
            (world.table(world.start)[index].flatten(), table.flatten()),
            (world.law(world.table(world.start))[index], slow.law(table)),
        ):
            np.testing.assert_allclose(mine.numpy(), theirs, rtol=0, atol=1e-12)


@tasks
def test_the_law_of_a_response_is_the_sum_over_its_tokens(task):
    """Looking up tokens and enumerating responses give the same log-probabilities."""
    world = task.draw([0, 1, 2])
    table, count = world.table(world.start), world.scores.shape[-1]
    contexts = torch.arange(5) % task.contexts
    responses = torch.arange(3 * 5 * 4).view(3, 5, 4) % count
    tokens = token_logprobs(table, world.places(contexts, responses))
    law = world.law(table)
    for s, b, g in product(range(3), range(5), range(4)):
        assert float(tokens[s, b, g].sum()) == pytest.approx(float(law[s, contexts[b], responses[s, b, g]]), abs=1e-12)


@tasks
def test_tokens_drawn_one_by_one_have_the_law_of_responses(task):
    """No cumulative frequency of 60,000 draws is off by more than the DKW inequality allows at 1e-9."""
    world = task.draw([4, 1])
    table, count = world.table(2 * world.start), 30_000
    contexts = torch.arange(task.contexts).repeat_interleave(count // task.contexts)
    drawn = world.sample(table, contexts, uniforms(2, len(contexts), 2, world.cells.shape[1]))
    law = world.law(table).exp()
    for s, x in product(range(2), range(task.contexts)):
        mine = drawn[s][contexts == x].flatten()
        share = torch.bincount(mine, minlength=law.shape[-1]) / len(mine)
        assert float((share.cumsum(-1) - law[s, x].cumsum(-1)).abs().max()) <= room(len(mine))


@tasks
def test_responses_drawn_at_once_have_the_law(task):
    """Drawing whole responses from a law, normalised or not, gives its frequencies (DKW at 1e-9)."""
    world = task.draw([4, 1])
    law, count = world.law(world.table(2 * world.start)), 30_000
    contexts = torch.arange(task.contexts).repeat(count // task.contexts)
    u = uniforms(2, len(contexts), 2)
    drawn = sample_law(law + 300.0, contexts, u)
    for s, x in product(range(2), range(task.contexts)):
        mine = drawn[s][contexts == x].flatten()
        share = torch.bincount(mine, minlength=law.shape[-1]) / len(mine)
        assert float((share.cumsum(-1) - law[s, x].exp().cumsum(-1)).abs().max()) <= room(len(mine))


@tasks
def test_expected_is_the_mean_of_samples(task):
    """The exact expected score lies within Hoeffding's distance (at 1e-9) of the mean of 60,000 sampled scores."""
    world = task.draw([4])
    table = world.table(world.start)
    contexts = torch.arange(task.contexts).repeat(30_000 // task.contexts)
    drawn = world.sample(table, contexts, uniforms(1, len(contexts), 2, world.cells.shape[1]))
    scores = world.scores[0, contexts[:, None], drawn[0]]
    spread = float(world.scores.max() - world.scores.min())
    exact = float(expected(world.law(table), world.scores))
    assert abs(float(scores.mean()) - exact) <= spread * room(scores.numel())


def test_one_token_drawn_is_one_response_drawn():
    """With one token a response both ways of drawing agree draw by draw."""
    world = Bandit(contexts=3, arms=7).draw([0, 1])
    table, contexts, u = world.table(world.start), torch.arange(30) % 3, uniforms(2, 30, 5)
    assert torch.equal(world.sample(table, contexts, u[..., None]), sample_law(world.law(table), contexts, u))


def test_the_ends_of_the_unit_interval_never_draw_what_has_no_probability():
    """Uniforms of 0 and of the largest float below 1 draw the first and the last response that can occur."""
    law = torch.tensor([[[0.0, 0.2, 0.0, 0.5, 0.3, 0.0], [0.1, 0.2, 0.3, 0.4, 0.0, 0.0]]], dtype=torch.float64).log()
    u = torch.tensor([0.0, math.nextafter(1.0, 0.0), 0.25, 0.6999], dtype=torch.float64).expand(1, 2, 4)
    assert sample_law(law, torch.tensor([0, 1]), u).tolist() == [[[1, 4, 3, 3], [0, 3, 1, 3]]]
    world = World(torch.zeros((1, 6), dtype=torch.long), torch.arange(6)[:, None], law, law, law[:, :, :1])
    assert world.sample(law, torch.tensor([0, 1]), u[..., None])[0, :, 0].tolist() == [1, 0]


def test_contexts_are_drawn_from_their_own_law():
    """A group draws from the law of its context and of its seed, in whatever order contexts come."""
    law = torch.full((2, 3, 6), -torch.inf, dtype=torch.float64)
    for s, x in product(range(2), range(3)):
        law[s, x, 3 * s + x] = 0.0
    contexts = torch.tensor([2, 0, 1, 2])
    want = [[[2], [0], [1], [2]], [[5], [3], [4], [5]]]
    assert sample_law(law, contexts, uniforms(2, 4, 1)).tolist() == want
    world = World(torch.zeros((1, 6), dtype=torch.long), torch.arange(6)[:, None], law, law, law[:, :, :1])
    assert world.sample(law, contexts, uniforms(2, 4, 1, 1)).tolist() == want


# ---- streams --------------------------------------------------------------------------------------------------------


def test_streams_of_a_seed_depend_on_seed_and_name_alone():
    """The same seed and name give the same numbers, other seeds and names others, and torch's generator none."""
    first = normals(3, "target", 4, 5)
    torch.manual_seed(0)
    assert torch.equal(first, normals(3, "target", 4, 5))
    assert first.dtype == torch.float64
    others = [normals(4, "target", 4, 5), normals(3, "start", 4, 5), normals(2**70 + 3, "target", 4, 5)]
    assert all(not torch.equal(first, other) for other in others)
    assert generator(3, "a").random() == generator(3, "a").random() != generator(3, "b").random()


def test_seeds_draw_the_same_problem_alone_and_among_others():
    """A problem depends on its own seed, bit by bit, wherever it stands in the list."""
    for task in TASKS.values():
        many, one = task.draw([9, 4, 2**33]), task.draw([4])
        for name in ("scores", "quality", "start"):
            assert torch.equal(getattr(many, name)[1:2], getattr(one, name)), (task, name)


# ---- scores ---------------------------------------------------------------------------------------------------------


def test_standardised_values_have_mean_0_and_variance_1_in_each_seed():
    """Each seed is standardised over contexts and responses together; what is constant becomes 0."""
    values = torch.from_numpy(np.random.default_rng(0).normal(size=(3, 4, 5))) * 7 + 2
    values[2] = 3.0
    scaled = standardise(values)
    torch.testing.assert_close(scaled[:2].mean((1, 2)), torch.zeros(2, dtype=torch.float64))
    torch.testing.assert_close(scaled[:2].square().mean((1, 2)), torch.ones(2, dtype=torch.float64))
    assert (scaled[2] == 0).all()


@pytest.mark.parametrize("share", [0.01, 0.2, 0.5, 0.9, 0.999])
def test_verified_responses_are_the_fewest_best_ones_with_the_share(share):
    """The responses of score 1 are a top set, have at least the share, and without their worst have less."""
    for task in (Bandit(verifiable=share), Sequences(verifiable=share), Sequences(order=None, verifiable=share)):
        world = task.draw([0, 1, 2])
        probs = world.law(world.table(world.start)).exp()
        assert set(world.scores.unique().tolist()) <= {0.0, 1.0}
        for s, x in product(range(3), range(task.contexts)):
            good = world.scores[s, x] == 1
            quality, p = world.quality[s, x], probs[s, x]
            assert quality[good].min() > (quality[~good].max() if (~good).any() else -math.inf)
            assert float(p[good].sum()) >= share - 1e-12
            worst = torch.where(good, quality, torch.inf).argmin()
            assert float(p[good].sum() - p[worst]) < share + 1e-12


def test_verified_is_not_misled_by_rounding():
    """Of ten equally likely arms the best three have a share of .3 (and so on), although floats do not say so."""
    law = torch.full((1, 1, 10), math.log(0.1), dtype=torch.float64)
    quality = torch.arange(10.0, dtype=torch.float64).view(1, 1, 10)
    for count in range(1, 10):
        assert float(verified(quality, law, count / 10).sum()) == count


def test_verified_breaks_ties_of_quality_by_position():
    """Among equals the first responses are taken."""
    law = torch.tensor([[[0.25, 0.25, 0.25, 0.25]]], dtype=torch.float64).log()
    quality = torch.zeros((1, 1, 4), dtype=torch.float64)
    assert verified(quality, law, 0.4).tolist() == [[[1.0, 1.0, 0.0, 0.0]]]


# ---- checks ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "error"), [(True, TypeError), (1.0, TypeError), ("1", TypeError), (None, TypeError), (-1, ValueError)]
)
def test_whole_numbers_only(value, error):
    """Booleans, floats and texts are no counts; a count below the least is a ValueError; both are named."""
    with pytest.raises(error, match="steps"):
        whole("steps", value, 0)


def test_numpy_integers_become_plain_ones():
    """A numpy integer is taken as the int that it is."""
    assert type(whole("steps", np.int64(3), 1)) is int
    assert check_seeds(np.arange(3)) == [0, 1, 2]


@pytest.mark.parametrize(
    ("seeds", "error"), [([], ValueError), ([1, 1], ValueError), ([-1], ValueError), ([0.5], TypeError)]
)
def test_seeds_are_distinct_and_not_negative(seeds, error):
    """No seeds, repeated, negative and fractional seeds are refused."""
    with pytest.raises(error, match="seed"):
        check_seeds(seeds)


def test_a_size_beyond_the_limit_is_named_with_the_limit():
    """The message of a refused enumeration has both numbers and says what to do."""
    check_size("responses", 4, 4, "")
    with pytest.raises(ValueError, match=r"responses: 1,025 .* 1,024 .*; take fewer"):
        check_size("responses", 1025, 1024, "take fewer")


def test_the_divergence_is_the_sum_over_all_sequences_by_hand():
    """Sequences enumerated as tuples, probabilities as products over tokens, ``sum p ln(p/q)``, mean over contexts."""
    task = Sequences(vocab=3, length=3, contexts=2, order=1)
    world = task.draw([4])
    moved = world.start + 0.7 * torch.from_numpy(np.random.default_rng(5).normal(size=tuple(world.start.shape)))
    nodes = {(0, ()): 0} | {(t, (a,)): 1 + 3 * (t - 1) + a for t in (1, 2) for a in range(3)}

    def probability(logits, response):
        chance = 1.0
        for t, token in enumerate(response):
            row = [math.exp(logits[3 * nodes[t, response[max(0, t - 1) : t]] + v]) for v in range(3)]
            chance *= row[token] / math.fsum(row)
        return chance

    def by_hand(new, old):
        contexts = []
        for x in range(2):
            pairs = [[probability(p[0, x].tolist(), y) for p in (new, old)] for y in product(range(3), repeat=3)]
            contexts.append(math.fsum(p * math.log(p / q) for p, q in pairs))
        return math.fsum(contexts) / 2

    there, back = by_hand(moved, world.start), by_hand(world.start, moved)
    tables = [world.table(params) for params in (moved, world.start)]
    assert float(world.divergence(*tables)) == pytest.approx(there, rel=1e-12)
    assert float(world.divergence(*tables[::-1])) == pytest.approx(back, rel=1e-12)
    assert abs(there - back) > 1e-3


def test_the_divergence_of_a_policy_from_itself_is_0_and_one_that_is_sure_is_finite():
    """0 for equal laws; a response of probability 0 adds nothing, one that the other never has makes it infinite."""
    world = Bandit(contexts=2, arms=2, features=1).draw([0])
    sure = torch.tensor([[[1.0, 0.0], [0.5, 0.5]]], dtype=torch.float64).log()
    even = torch.full_like(sure, math.log(0.5))
    assert world.divergence(even, even).tolist() == [0.0]
    assert world.divergence(sure, even).tolist() == [pytest.approx(math.log(2) / 2)]
    assert world.divergence(even, sure).tolist() == [math.inf]
    assert math.isnan(world.divergence(even * math.nan, even)[0])
