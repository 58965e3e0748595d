"""Dials that bring a problem closer to training: what each changes, by plain loops too, and that off is off."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from humanline.schedule import BeforeStep
from humanline.sim.bandit import Bandit
from humanline.sim.labels import Judge
from humanline.sim.objectives import Dpo, Grpo, Kto
from humanline.sim.run import Fixed, Rollouts, Run, behaviour_law, simulate
from humanline.sim.sequence import Sequences
from humanline.sim.variants import make_run
from humanline.sim.world import verified
from humanline.theory import ClipRange
from tests.sim.test_run import BANDIT, SEQUENCES, SMALL, assert_same, record, steady
from tests.sim.test_world import room

OBJECTIVES = {"dpo": Dpo(0.7), "kto": Kto(0.8, 1.3, 0.9), "grpo": Grpo(0.15, 0.1)}
LONG = replace(SEQUENCES, enumerated=False)
LONGER = Sequences(length=6, enumerated=False)
NETWORK = replace(SEQUENCES, features=3, hidden=2)
CLIPPED = replace(SMALL, schedule=BeforeStep(every=2), transform=ClipRange(-0.3, 0.4))
DIALS = {
    "wrong": replace(SMALL, judge=Judge(wrong=0.4)),
    "wrong online": replace(SMALL, judge=Judge(wrong=0.4), source=Rollouts(3)),
    "noise": replace(SMALL, judge=Judge(noise=0.8), task=replace(SEQUENCES, verifiable=0.3)),
    "noise and wrong online": replace(SMALL, judge=Judge(2.0, 0.3), source=Rollouts(2, "sync")),
    "proxy": replace(CLIPPED, task=replace(BANDIT, proxy=0.6)),
    "proxy of a sequence": replace(SMALL, task=replace(SEQUENCES, proxy=0.0), source=Rollouts(3)),
    "proxy, right or wrong": replace(SMALL, task=replace(SEQUENCES, proxy=0.5, verifiable=0.4)),
    "proxy, verifiable arms": replace(SMALL, task=replace(BANDIT, proxy=0.5, verifiable=0.4), group_size=4),
    "proxy on features": replace(SMALL, task=replace(SEQUENCES, features=3, proxy=0.5)),
    "passes": replace(CLIPPED, source=Fixed(passes=3)),
    "passes, in part": replace(SMALL, task=SEQUENCES, source=Fixed(passes=7), judge=Judge(wrong=0.5)),
    "passes of a quartile": replace(SMALL, source=Fixed(passes=2, quartile=2), steps=6, groups=3, group_size=2),
    "coverage": replace(SMALL, source=Fixed(coverage=0.2, tilt=0.3)),
    "coverage of nothing": replace(SMALL, task=SEQUENCES, source=Fixed(coverage=0.0)),
    "features": replace(CLIPPED, task=replace(SEQUENCES, features=3), reference_tilt=0.5),
    "features, whole history": replace(SMALL, task=replace(SEQUENCES, features=2, order=None, misfit=0.9)),
    "network": replace(SMALL, task=NETWORK, source=Rollouts(4)),
    "network of arms": replace(CLIPPED, task=replace(BANDIT, hidden=3)),
    "long": replace(CLIPPED, task=LONG),
    "long online": replace(SMALL, task=replace(LONG, proxy=0.4, order=2), source=Rollouts(3), judge=Judge(noise=0.5)),
    "long quartile": replace(SMALL, task=LONG, source=Fixed(quartile=2), groups=2, group_size=2),
    "long network": replace(SMALL, task=replace(NETWORK, enumerated=False, proxy=0.7), source=Fixed(passes=2)),
}


@pytest.mark.parametrize("name", DIALS)
def test_a_dial_means_the_same_in_plain_loops(name):
    """Problem, data, labels and steps of every dial are those of loops that draw them again, seed by seed."""
    objective = list(OBJECTIVES.values())[list(DIALS).index(name) % 3]
    run = DIALS[name]
    run = replace(run, objective=objective, steps=min(run.steps, 5))
    assert_same(replace(steady(run), optimizer="sgd"), [0, 2**40])


@pytest.mark.slow
@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("name", DIALS)
def test_a_dial_means_the_same_with_every_objective(name, objective):
    """Each dial with each objective, for more steps."""
    assert_same(replace(DIALS[name], objective=OBJECTIVES[objective], optimizer="sgd"), [1, 3])


#: Final scores of seeds 0 and 7 after 12 steps of SGD at .5, by the code without any dial.
STORED = {
    "bandit/dpo/offline+humanline": (0.6705639025045651, 0.6011516913123967),
    "bandit/dpo/online": (0.6775530450462289, 0.5790704252893734),
    "bandit/kto/offline+humanline": (0.6228897211442436, 0.5459121260329026),
    "bandit/kto/online": (0.6277356014084912, 0.5315488768161379),
    "bandit/grpo/offline+humanline": (1.0844928466636379, 0.8846141708300388),
    "bandit/grpo/online": (0.6829034548725343, 0.6555997662246728),
    "sequence/dpo/offline+humanline": (0.680096949425128, 0.6890903026645602),
    "sequence/dpo/online": (0.6799791084065551, 0.6897507257912964),
    "sequence/kto/offline+humanline": (0.6763169745565045, 0.685845076650902),
    "sequence/kto/online": (0.6763548147167531, 0.6861763890836985),
    "sequence/grpo/offline+humanline": (0.690850973186057, 0.6988406682411029),
    "sequence/grpo/online": (0.6905340266240632, 0.7000970700729998),
    "verifiable/dpo/offline+humanline": (0.2059202618959722, 0.21384682215585088),
    "verifiable/dpo/online": (0.2068190042251013, 0.2142403518963788),
    "verifiable/kto/offline+humanline": (0.2047546330501953, 0.21262653826129968),
    "verifiable/kto/online": (0.20537202290713047, 0.21287334131013158),
    "verifiable/grpo/offline+humanline": (0.20904000148474416, 0.2169373748109588),
    "verifiable/grpo/online": (0.2101875093131271, 0.21748625226575596),
}


@pytest.mark.parametrize("cell", STORED)
def test_with_all_dials_off_a_run_has_the_numbers_it_had_without_them(cell):
    """Stored scores come out again, to 1e-12 for other processors; on the one they were made on, to the bit."""
    task, objective, variant = cell.split("/")
    run = replace(make_run(task, objective, 0.5, variant, steps=12), optimizer="sgd", measurements=2)
    np.testing.assert_allclose(simulate(run, [0, 7]).scores[:, -1], STORED[cell], rtol=0, atol=1e-12)


# ---- labels ---------------------------------------------------------------------------------------------------------


def labels_and_truth(run: Run, seeds) -> tuple[Tensor, Tensor]:
    """Labels and true scores of all groups of a run, (S, groups, G)."""
    batches, world = record(run, seeds).batches, run.task.draw(seeds)
    truth = [world.scores_of(batch.contexts, batch.responses) for batch in batches]
    return torch.cat([batch.scores for batch in batches], 1), torch.cat(truth, 1)


def test_a_judge_without_mistakes_gives_true_scores():
    """By default the labels are the scores, to the bit."""
    for task in (BANDIT, SEQUENCES, replace(SEQUENCES, verifiable=0.3)):
        labels, truth = labels_and_truth(replace(SMALL, task=task), [0, 1])
        assert torch.equal(labels, truth)


@pytest.mark.parametrize("source", [Fixed(), Rollouts(3)], ids=["fixed", "rollouts"])
def test_comparisons_are_wrong_as_often_as_asked(source):
    """Of 8,000 groups the share turned upside down is off by no more than Hoeffding's distance at 1e-9."""
    run = replace(SMALL, source=source, groups=400, steps=10, judge=Judge(wrong=0.3))
    labels, truth = labels_and_truth(run, [0, 1])
    upside_down = truth.amin(-1, keepdim=True) + truth.amax(-1, keepdim=True) - truth
    turned = (labels == upside_down).all(-1)
    differ = truth.amax(-1) > truth.amin(-1)
    assert ((labels == truth).all(-1) | turned).all()
    assert abs(float(turned[differ].double().mean()) - 0.3) <= room(int(differ.sum()))
    assert not torch.equal(turned[0], turned[1])


def test_noise_has_its_standard_deviation_and_mean_0():
    """Over 24,000 labels mean and variance of what the judge adds are those of a normal law (z = 6)."""
    labels, truth = labels_and_truth(replace(SMALL, groups=400, steps=10, judge=Judge(noise=2.0)), [0, 1])
    added = (labels - truth).flatten() / 2.0
    assert abs(float(added.mean())) <= 6 / math.sqrt(len(added))
    assert abs(float(added.square().mean()) - 1) <= 6 * math.sqrt(2 / len(added))


def test_a_group_is_judged_once_however_often_it_is_used():
    """In further passes the same groups come with the same labels, and no context gets another's."""
    run = replace(SMALL, task=SEQUENCES, groups=6, steps=8, source=Fixed(passes=4), judge=Judge(noise=1.0))
    batches = record(run, [3]).batches
    groups = [
        (int(x), tuple(responses), tuple(labels))
        for batch in batches
        for x, responses, labels in zip(
            batch.contexts, batch.responses[0].tolist(), batch.scores[0].tolist(), strict=True
        )
    ]
    assert len(groups) == 48 and len(set(groups)) == 12  # 12 groups, 4 passes
    assert all(groups.count(group) == 4 for group in set(groups))
    passes = [groups[12 * p : 12 * (p + 1)] for p in range(4)]
    assert all(sorted(each) == sorted(passes[0]) for each in passes)
    assert len({tuple(each) for each in passes}) == 4  # in another order
    assert [x for x, _, _ in groups] == [i % 2 for i in range(48)]


def test_one_pass_is_the_run_without_passes_and_begins_a_run_of_more():
    """The first pass over few groups is the beginning of the data of a run with one pass."""
    many = torch.cat([batch.responses for batch in record(SMALL, [0, 4]).batches], 1)
    few = torch.cat([b.responses for b in record(replace(SMALL, source=Fixed(passes=2)), [0, 4]).batches], 1)
    assert torch.equal(few[:, :18], many[:, :18])  # 32 groups / 2, in whole turns of 3 contexts
    assert not torch.equal(few, many)


@pytest.mark.parametrize(
    "task",
    [Bandit(), Bandit(hidden=4), Sequences(), Sequences(features=6), LONGER],
    ids=["bandit", "network", "sequence", "features", "long"],
)
@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.9])
def test_the_proxy_has_exactly_the_correlation_asked_for(task, correlation):
    """Over contexts and responses, in each seed; the truth, the start and what is measured stay as they were."""
    world, plain = replace(task, proxy=correlation).draw([0, 5]), task.draw([0, 5])
    assert torch.equal(world.scores, plain.scores) and torch.equal(world.start, plain.start)
    assert plain.labels is None
    if task == LONGER:
        contexts, every = torch.arange(4), torch.arange(4**6).expand(2, 4, -1)
        truth, label = world.scores_of(contexts, every), world.labels_of(contexts, every)
    else:
        truth, label = world.scores, world.labels
    for values in (truth, label):
        assert float(values.mean((1, 2)).abs().max()) < 1e-9
        assert float((values.square().mean((1, 2)) - 1).abs().max()) < 1e-9
    assert float(((truth * label).mean((1, 2)) - correlation).abs().max()) < 1e-9


def test_a_proxy_says_right_or_wrong_as_often_as_the_truth_does():
    """Verifiable labels are the proxy's best responses of the same share at the start, and not the true ones."""
    task = Sequences(verifiable=0.2, proxy=0.5)
    world, graded = task.draw([0, 1]), Sequences(proxy=0.5).draw([0, 1])
    law = world.law(world.table(world.start))
    assert torch.equal(world.labels, verified(graded.labels, law, 0.2))
    assert torch.equal(world.scores, Sequences(verifiable=0.2).draw([0, 1]).scores)
    assert not torch.equal(world.labels, world.scores)


# ---- coverage -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", [Bandit(), Sequences()], ids=["bandit", "sequence"])
def test_coverage_multiplies_the_odds_of_good_answers_alone(task):
    """Odds of the good answers are multiplied by the coverage, and the law among the others stays as it was."""
    seeds = range(4)
    world = task.draw(seeds)
    plain = behaviour_law(world, Fixed(tilt=0.3), seeds)
    good = verified(world.quality, world.law(world.table(world.start)), 0.2) > 0
    good &= world.quality > world.quality.amin(-1, keepdim=True)
    for coverage in (0.5, 0.1, 0.0):
        law = behaviour_law(world, Fixed(tilt=0.3, coverage=coverage), seeds)
        torch.testing.assert_close(law.exp().sum(-1), torch.ones(law.shape[:2], dtype=torch.float64))
        share, before = (torch.where(good, each.exp(), 0.0).sum(-1) for each in (law, plain))
        torch.testing.assert_close(share / (1 - share), coverage * before / (1 - before))
        rest, rest_before = (torch.where(good, -torch.inf, each).log_softmax(-1).exp() for each in (law, plain))
        torch.testing.assert_close(rest, rest_before)


def test_coverage_0_leaves_something_to_write_even_if_the_worst_answer_is_nearly_all_there_is():
    """Where the start policy writes almost nothing but the worst answer, that one is never among the good."""
    world = Bandit(contexts=1, arms=3, alignment=-1.0, sharpness=40.0, misfit=0.0).draw(range(8))
    law = behaviour_law(world, Fixed(coverage=0.0), range(8))
    assert not torch.isnan(law).any()
    torch.testing.assert_close(law.exp().sum(-1), torch.ones((8, 1), dtype=torch.float64))


# ---- sharing --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hidden", [0, 4], ids=["linear", "network"])
def test_with_features_an_update_in_one_context_moves_the_others(hidden):
    """A step on groups of context 0 alone changes every context's policy; with a table it changes that one's."""
    moved = {}
    for task in (Sequences(features=6, hidden=hidden), Sequences()):
        trace = simulate(Run(task, steps=1, groups=1), [0, 1])
        change = (trace.policy - trace.world.table(trace.world.start)).abs().amax(-1)
        moved[task.features] = (change > 0).tolist()
    assert moved == {6: [[True] * 4] * 2, 0: [[True, False, False, False]] * 2}


@pytest.mark.parametrize("task", [Sequences(features=16), Sequences(features=16, hidden=16), Bandit(hidden=8)])
def test_a_policy_on_features_starts_as_sharp_as_asked_and_learns(task):
    """Logits have the standard deviation asked for around their node's mean; online DPO raises the true score."""
    world = replace(task, sharpness=1.5).draw(range(4))
    nodes = world.table(world.start).unflatten(-1, (-1, world.vocab))
    centred = nodes - nodes.mean(-1, keepdim=True)
    torch.testing.assert_close(centred.square().mean((1, 2, 3)).sqrt(), torch.full((4,), 1.5, dtype=torch.float64))
    scores = simulate(Run(task, source=Rollouts(4), learning_rate=0.1, steps=48), range(4)).scores
    assert (scores[:, -1] > scores[:, 0] + 0.1).all()


def test_a_network_has_no_direction_that_is_better_wherever_it_is():
    """Parameters of a network do not add up to a better policy, so a tilted reference is refused."""
    with pytest.raises(ValueError, match="reference_tilt"):
        simulate(replace(SMALL, task=NETWORK, reference_tilt=0.5), [0])


# ---- long sequences -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [0, 1, 2, None])
def test_what_is_not_enumerated_has_the_numbers_of_what_is(order):
    """Score, best score and divergence by recursion are those by enumeration; rollouts and steps are the same."""
    listed = Sequences(vocab=3, length=4, contexts=2, order=order)
    run = Run(listed, source=Rollouts(2), learning_rate=0.3, steps=6, groups=8)
    one, other = (simulate(replace(run, task=task), [0, 5]) for task in (listed, replace(listed, enumerated=False)))
    torch.testing.assert_close(one.scores, other.scores, rtol=0, atol=1e-9)
    torch.testing.assert_close(one.policy, other.policy, rtol=0, atol=1e-7)
    assert other.behaviour is None
    world, long = one.world, other.world
    torch.testing.assert_close(world.best_score(), long.best_score(), rtol=0, atol=1e-12)
    start = world.table(world.start)
    found = long.divergence(one.policy, start)
    torch.testing.assert_close(world.divergence(one.policy, start), found, rtol=0, atol=1e-12)
    assert (found > 0).all()
    contexts, every = torch.arange(2), torch.arange(81).expand(2, 2, -1)
    torch.testing.assert_close(world.scores_of(contexts, every), long.scores_of(contexts, every), rtol=0, atol=1e-12)
    assert torch.equal(world.places(contexts, every), long.places(contexts, every))


def test_sixteen_tokens_are_trained_on_and_measured_without_a_law():
    """4^16 sequences are sampled; their score is exact, what needs the law is refused by name."""
    task = Sequences(length=16, enumerated=False)
    trace = simulate(Run(task, source=Rollouts(4), learning_rate=0.1, steps=16), [0, 1])
    world = trace.world
    assert (trace.scores[:, -1] > trace.scores[:, 0] + 0.5).all()
    contexts = torch.arange(4)
    drawn = world.sample(trace.policy, contexts, torch.from_numpy(np.random.default_rng(3).random((2, 4, 4000, 16))))
    assert int(drawn.max()) > 2**31 and int(drawn.min()) >= 0
    means = world.scores_of(contexts, drawn)
    error = means.std((1, 2)) / math.sqrt(16_000)
    assert (abs(means.mean((1, 2)) - trace.scores[:, -1]) <= 6 * error).all()
    with pytest.raises(ValueError, match=r"4\^16 sequences are not enumerated"):
        world.law(trace.policy)
    for source in (Fixed(tilt=1.0), Fixed(coverage=0.5)):
        with pytest.raises(ValueError, match="tilt and coverage"):
            simulate(Run(task, source=source, steps=1), [0])


def test_an_estimated_win_rate_is_near_the_exact_one():
    """From 256 draws a context of each policy it is within Hoeffding's distance for two samples, at 1e-9."""
    from humanline.sim.measures import win_rate

    listed = Sequences(vocab=3, length=4, contexts=4)
    run = Run(listed, source=Rollouts(4), learning_rate=0.1, steps=24)
    trace, long = simulate(run, range(6)), replace(listed, enumerated=False).draw(range(6))
    start = trace.world.table(trace.world.start)
    exact = win_rate(trace.world.law(trace.policy), trace.world.law(start), trace.world.scores)
    found = long.estimated_win_rate(trace.policy, start)
    assert float((found - exact).abs().max()) <= room(4 * 256) and float(exact.min()) > 0.55
    torch.testing.assert_close(long.estimated_win_rate(start, start), torch.full((6,), 0.5).double(), rtol=0, atol=0.1)


def test_equal_scores_count_half_in_an_estimated_win_rate():
    """A policy that always writes the same sequence wins half the time against itself."""
    world = LONG.draw([0, 1])
    same = torch.full_like(world.scores, -torch.inf)
    same[..., :: world.vocab] = 0.0
    assert world.estimated_win_rate(same, same).tolist() == [0.5, 0.5]


def test_fixed_data_of_long_sequences_have_the_drifted_policys_law():
    """Sequences sampled token by token have the frequencies of the law where that can be had (DKW at 1e-9)."""
    listed = Sequences(vocab=2, length=3, contexts=1)
    run = Run(replace(listed, enumerated=False), source=Fixed(drift=1.0), steps=1, groups=20_000)
    drawn = record(run, [0]).batches[0].responses[0].flatten()
    law = behaviour_law(listed.draw([0]), Fixed(drift=1.0), [0])[0, 0].exp()
    share = torch.bincount(drawn, minlength=8) / len(drawn)
    assert float((share.cumsum(-1) - law.cumsum(-1)).abs().max()) <= room(len(drawn))


# ---- checks ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "said", "error"),
    [
        (lambda: Judge(noise=-1.0), "noise", ValueError),
        (lambda: Judge(wrong=1.5), "wrong", ValueError),
        (lambda: Judge(wrong="often"), "wrong", TypeError),
        (lambda: Fixed(passes=0), "passes", ValueError),
        (lambda: Fixed(passes=2.0), "passes", TypeError),
        (lambda: Fixed(coverage=-0.1), "coverage", ValueError),
        (lambda: Fixed(coverage=1.1), "coverage", ValueError),
        (lambda: Bandit(hidden=-1), "hidden", ValueError),
        (lambda: Bandit(proxy=1.1), "proxy", ValueError),
        (lambda: Sequences(features=-1), "features", ValueError),
        (lambda: Sequences(hidden=2), "hidden: a network reads features", ValueError),
        (lambda: Sequences(misfit=2.0), "misfit", ValueError),
        (lambda: Sequences(proxy=-0.5), "proxy", ValueError),
        (lambda: Sequences(enumerated=1), "enumerated", TypeError),
        (lambda: Sequences(length=63, vocab=2, enumerated=False), "4,611,686,018,427,387,904 is the limit", ValueError),
        (lambda: Sequences(length=10**9, enumerated=False), "length", ValueError),
        (lambda: Sequences(length=16, order=None, enumerated=False), "smaller order", ValueError),
        (lambda: Sequences(length=16, verifiable=0.2, enumerated=False), "verifiable", ValueError),
        (lambda: replace(SMALL, judge=None), "judge must", TypeError),
    ],
)
def test_dials_out_of_range_are_named(make, said, error):
    """A dial out of its range, or without what it needs, is refused by name where it is set."""
    with pytest.raises(error, match=said):
        make()
