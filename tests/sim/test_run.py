"""A whole run against a plain re-implementation; seeds, pairing, schedules, data."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise, product

import numpy as np
import pytest
import torch
from torch import Tensor

from humanline.schedule import AfterStep, BeforeStep, EachRound, Never
from humanline.sim.bandit import Bandit
from humanline.sim.lag import Lag
from humanline.sim.objectives import Batch, Dpo, Grpo, Kto
from humanline.sim.run import Fixed, Rollouts, Run, behaviour_law, simulate
from humanline.sim.sequence import Sequences
from humanline.sim.world import World, expected
from humanline.theory import BetaRejection, BetaShape, ClipRange
from tests.sim import oracle

BANDIT = Bandit(contexts=3, arms=5, features=4)
SEQUENCES = Sequences(vocab=3, length=3, contexts=2)
OBJECTIVES = {"dpo": Dpo(0.7), "kto": Kto(0.8, 1.3, 0.9), "grpo": Grpo(0.15, 0.1)}
SCHEDULES = [
    Never(),
    BeforeStep(every=1),
    BeforeStep(every=3),
    AfterStep(every=4),
    EachRound(round_steps=4),
    Lag(3),
    Lag(4, 3),
]
NEAR = BetaRejection.near(ClipRange(-1.0, 1.0), 8, policy_ratio_bound=4, ref_ratio_bound=4)
TRANSFORMS = [None, ClipRange(-0.3, 0.4), NEAR]
SOURCES = [Fixed(), Rollouts(3), Rollouts(3, "sync")]
SMALL = Run(task=BANDIT, objective=Dpo(0.7), learning_rate=0.2, steps=8, groups=4, group_size=3)


class Recorder:
    """An objective that keeps what it is given, and has the loss of another."""

    def __init__(self, objective) -> None:
        self.objective, self.batches, self.ratios, self.found = objective, [], [], []

    def rows(self, batch: Batch) -> Tensor:
        self.batches.append(batch)
        return self.objective.rows(batch)

    def losses(self, batch, log_ratio, raw, mismatched):
        self.ratios.append(log_ratio.detach().clone())
        losses, metrics = self.objective.losses(batch, log_ratio, raw, mismatched)
        self.found.append(losses.detach())
        return losses, metrics


def record(run: Run, seeds) -> Recorder:
    recorder = Recorder(run.objective)
    simulate(replace(run, objective=recorder), seeds)
    return recorder


def responses(run: Run, seeds) -> Tensor:
    """All responses of a run, (S, steps * groups, G)."""
    return torch.cat([batch.responses for batch in record(run, seeds).batches], 1)


def steady(run: Run) -> Run:
    """Take larger batches where Adam would blow up what rounding leaves of gradients that cancel exactly.

    GRPO's do where all members of a group agree on a token, since their advantages sum to 0.
    """
    if isinstance(run.objective, Grpo) and isinstance(run.task, Sequences) and run.optimizer == "adam":
        return replace(run, groups=16, group_size=4, learning_rate=0.1, objective=replace(run.objective, kl_coef=0.01))
    return run


def assert_same(run: Run, seeds: list[int], tolerance: float = 1e-10) -> None:
    """Compare a run with the oracle's."""
    fast = simulate(run, seeds)
    for index, seed in enumerate(seeds):
        slow = oracle.outcome(run, seed)
        pairs = {
            "params": (fast.params[index], slow.params[-1]),
            "reference": (fast.reference[index].flatten(), slow.reference.flatten()),
            "scores": (fast.scores[index], [slow.scores[step] for step in fast.measured_at]),
            "outside": (fast.outside[index], slow.outside if run.transform else 0.0),
            "saturation": (fast.saturation[index], slow.saturation),
        }
        listed = getattr(run.task, "enumerated", True)
        assert (fast.behaviour is None) == (getattr(run.source, "quartile", None) is not None or not listed)
        if fast.behaviour is not None:
            pairs["behaviour"] = (fast.behaviour[index], slow.behaviour)
        for name, (mine, theirs) in pairs.items():
            np.testing.assert_allclose(mine.numpy(), theirs, rtol=0, atol=tolerance, err_msg=f"{name} of {run}")


# ---- the whole run --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "objective,schedule",
    [
        pytest.param(name, schedule, id=f"{name}-{schedule}", marks=pytest.mark.slow if (i + j) % 3 else ())
        for i, name in enumerate(OBJECTIVES)
        for j, schedule in enumerate(SCHEDULES)  # by default each schedule once, and each objective at least twice
    ],
)
def test_a_run_is_the_run_of_plain_loops(objective, schedule):
    """Loss, gradient, sync, data and optimizer of every choice give the parameters of a loop that keeps every table."""
    combinations = list(product(TRANSFORMS, SOURCES, [("adam", BANDIT), ("sgd", SEQUENCES)]))
    combinations += list(product(TRANSFORMS[1:], SOURCES[1:2], [("adam", SEQUENCES), ("sgd", BANDIT)]))
    for transform, source, (optimizer, task) in combinations[SCHEDULES.index(schedule) % 2 :: 2]:
        run = Run(
            task,
            OBJECTIVES[objective],
            source,
            schedule,
            transform,
            learning_rate=0.25 if optimizer == "adam" else 0.7,
            steps=8,
            groups=3,
            group_size=3,
            optimizer=optimizer,
        )
        assert_same(steady(run), [5])


@pytest.mark.parametrize(
    "run",
    [
        replace(SMALL, source=Fixed(tilt=0.7, drift=0.9)),
        replace(SMALL, source=Fixed(tilt=-1.3), task=replace(BANDIT, verifiable=0.25)),
        replace(SMALL, source=Fixed(quartile=1), group_size=2, groups=5),
        replace(SMALL, source=Fixed(tilt=-0.5, quartile=4), objective=Kto(), group_size=2),
        replace(SMALL, source=Fixed(quartile=3), steps=1, groups=2, group_size=2),
        replace(SMALL, task=replace(SEQUENCES, order=None, verifiable=0.3), objective=Kto(), optimizer="sgd"),
        replace(SMALL, task=replace(SEQUENCES, order=0, verifiable=0.6), objective=Grpo(0.2, 0.3), optimizer="sgd"),
        replace(SMALL, task=replace(SEQUENCES, order=2, alignment=-0.4, sharpness=1.7), source=Rollouts(5)),
        replace(SMALL, task=replace(BANDIT, verifiable=0.25, misfit=0.9, alignment=0.0), source=Rollouts(1)),
        replace(SMALL, task=replace(BANDIT, sharpness=0.0, misfit=1.0), source=Rollouts(20, "sync")),
        replace(
            SMALL,
            schedule=BeforeStep(every=2),
            transform=BetaRejection(
                BetaShape(0.61, 1), BetaShape(1, 2.0), policy_ratio_bound=2, ref_ratio_bound=3, rule="both"
            ),
        ),
        replace(SMALL, schedule=BeforeStep(every=2), source=Rollouts(3, "sync"), steps=12, measurements=5),
        replace(SMALL, schedule=BeforeStep(every=1), source=Rollouts(5), steps=36, transform=NEAR, groups=2),
        replace(SMALL, schedule=AfterStep(every=5), source=Rollouts(3, "sync"), steps=12, measurements=50),
        replace(SMALL, reference_tilt=-0.8),
        replace(SMALL, reference_tilt=0.8, schedule=BeforeStep(every=3), task=SEQUENCES),
        replace(SMALL, reference_tilt=0.8, schedule=AfterStep(every=3), objective=Kto(), source=Rollouts(4)),
        replace(SMALL, reference_tilt=0.8, schedule=Lag(3)),
        replace(SMALL, reference_tilt=-2.0, schedule=Never(), objective=Grpo(), source=Rollouts(4, "sync")),
    ],
    ids=lambda run: f"{type(run.task).__name__}-{type(run.objective).__name__}-{run.source}",
)
def test_settings_of_problem_and_data_mean_the_same_in_plain_loops(run):
    """Every setting of a problem and of a source says what its documentation says, for several seeds at once."""
    assert_same(steady(run), [0, 3, 2**40])


def test_measurements_are_evenly_spread_from_the_start_to_the_last_update():
    """The exact score is taken before the first update, after the last, and evenly between; never twice a step."""
    for steps, measurements, at in ((8, 4, [0, 2, 4, 6, 8]), (3, 8, [0, 1, 2, 3]), (7, 1, [0, 7]), (1, 1, [0, 1])):
        trace = simulate(replace(SMALL, steps=steps, measurements=measurements), [0])
        assert trace.measured_at == at
        assert trace.scores.shape == (1, len(at))
        start = trace.world.law(trace.world.table(trace.world.start))
        assert torch.equal(trace.scores[:, 0], expected(start, trace.world.scores))
        assert torch.equal(trace.scores[:, -1], expected(trace.world.law(trace.policy), trace.world.scores))


def test_each_step_sees_the_parameters_before_every_update_and_after_the_last():
    """The callback is told 0 ... steps and the parameters of that moment."""
    seen = []
    trace = simulate(SMALL, [5], each_step=lambda step, params: seen.append((step, params.clone())))
    assert [step for step, _ in seen] == list(range(SMALL.steps + 1))
    for (_, params), slow in zip(seen, oracle.outcome(SMALL, 5).params, strict=True):
        np.testing.assert_allclose(params[0].numpy(), slow, rtol=0, atol=1e-12)
    assert torch.equal(seen[-1][1], trace.params)


def test_parameters_told_to_each_step_stay_as_they_were():
    """What the callback keeps is the parameters of that step, not the last ones (trap 4)."""
    kept, copied = [], []
    simulate(SMALL, [5], each_step=lambda _, params: (kept.append(params), copied.append(params.clone())))
    assert all(torch.equal(a, b) for a, b in zip(kept, copied, strict=True))


# ---- schedules ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", [BANDIT, SEQUENCES], ids=["bandit", "sequences"])
@pytest.mark.parametrize("source", [Fixed(), Rollouts(3)], ids=["fixed", "rollouts"])
def test_syncing_before_the_update_leaves_a_zero_log_ratio_at_step_0_only(task, source):
    """With BeforeStep(1) the policy differs from its reference at every step but the first (trap 1)."""
    run = replace(SMALL, task=task, source=source, schedule=BeforeStep(every=1))
    largest = [float(ratio.abs().max()) for ratio in record(run, [0, 1]).ratios]
    assert largest[0] == 0.0
    assert min(largest[1:]) > 1e-3


@pytest.mark.parametrize("task", [BANDIT, SEQUENCES], ids=["bandit", "sequences"])
def test_syncing_after_every_update_switches_the_ratio_off(task):
    """With AfterStep(1) every log-ratio is exactly 0, DPO's loss is ln 2 and its sigmoid one half (trap 1)."""
    run = replace(SMALL, task=task, schedule=AfterStep(every=1))
    found = record(run, [0, 1])
    assert max(float(ratio.abs().max()) for ratio in found.ratios) == 0.0
    torch.testing.assert_close(torch.stack(found.found), torch.full((8, 2), math.log(2), dtype=torch.float64))
    assert simulate(run, [0, 1]).saturation.tolist() == [0.5, 0.5]


def test_the_first_step_of_a_synced_round_has_log_ratio_zero():
    """Rounds that begin with a sync score their first step with the policy itself, whatever the schedule."""
    for schedule in (Never(), BeforeStep(every=5), AfterStep(every=5)):
        for start, zero in (("sync", [0, 3, 6]), ("keep", [0] if schedule.kind != "after_step" else [0, 5])):
            run = replace(SMALL, source=Rollouts(3, start), schedule=schedule)
            ratios = record(run, [0]).ratios
            none = {step for step, ratio in enumerate(ratios) if float(ratio.abs().max()) == 0.0}
            assert none == set(zero) | ({5} if schedule.kind == "after_step" else set())


# ---- seeds ----------------------------------------------------------------------------------------------------------

RUNS = [
    replace(SMALL, schedule=BeforeStep(every=2), transform=NEAR, source=Fixed(tilt=0.4)),
    replace(SMALL, task=SEQUENCES, objective=Kto(), transform=ClipRange(-0.3, 0.3), source=Rollouts(3)),
    replace(SMALL, task=replace(BANDIT, verifiable=0.3), objective=Grpo(), source=Rollouts(3, "sync")),
]


@pytest.mark.parametrize("run", RUNS, ids=["fixed", "sequences", "verifiable"])
def test_the_same_seeds_give_the_same_bits(run):
    """A run repeated gives bitwise equal parameters, scores and measures, whatever torch's own generator says."""
    first = simulate(run, [4, 0, 9])
    torch.manual_seed(123)
    np.random.seed(5)
    again = simulate(run, [4, 0, 9])
    for name in ("scores", "outside", "policy", "reference", "behaviour", "params"):
        assert torch.equal(getattr(first, name), getattr(again, name)), name


@pytest.mark.parametrize("run", RUNS, ids=["fixed", "sequences", "verifiable"])
def test_a_seed_gives_the_same_alone_and_among_others(run):
    """Problem and data of a seed are bitwise its own, and its parameters up to the rounding of batched products.

    Bitwise on one thread here; a BLAS may choose another kernel for another batch, so 1e-12 is asked.
    """
    many = [7, 2, 0, 11, 5]
    all_together, data = simulate(run, many), responses(run, many)
    for some in ([0], [11, 7], [5, 0, 2]):
        where = [many.index(seed) for seed in some]
        part = simulate(run, some)
        for name in ("scores", "quality", "start"):
            assert torch.equal(getattr(part.world, name), getattr(all_together.world, name)[where])
        assert torch.equal(responses(run, some), data[where])
        torch.testing.assert_close(part.params, all_together.params[where], rtol=0, atol=1e-12)


class Spoilt:
    """A problem whose first seed starts at nan."""

    def __init__(self, task) -> None:
        self.task = task

    def draw(self, seeds) -> World:
        world = self.task.draw(seeds)
        start = world.start.clone()
        start[0] = torch.nan
        return replace(world, start=start)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_seed_of_nan_reaches_no_other(objective):
    """A seed whose parameters are nan leaves every other seed bitwise as it was."""
    for task, source, transform in ((BANDIT, Rollouts(2), NEAR), (SEQUENCES, Rollouts(2), TRANSFORMS[1])):
        run = replace(SMALL, task=task, objective=OBJECTIVES[objective], source=source, transform=transform)
        clean, spoilt = simulate(run, [0, 1, 2]), simulate(replace(run, task=Spoilt(task)), [0, 1, 2])
        assert torch.isnan(spoilt.params[0]).all()
        for name in ("scores", "params", "policy", "reference", "behaviour", "outside"):
            assert torch.equal(getattr(spoilt, name)[1:], getattr(clean, name)[1:]), name


def test_variants_of_a_seed_share_problem_and_data():
    """Fixed data and problem do not depend on objective, schedule, transform, optimizer or learning rate."""
    base = responses(SMALL, [3, 8])
    others = [
        {"objective": Kto()},
        {"schedule": BeforeStep(every=1), "transform": NEAR},
        {"optimizer": "sgd", "learning_rate": 5.0},
        {"transform": ClipRange(-1, 1)},
    ]
    for change in others:
        run = replace(SMALL, **change)
        assert torch.equal(responses(run, [3, 8]), base)
        assert torch.equal(simulate(run, [3, 8]).world.scores, simulate(SMALL, [3, 8]).world.scores)


def test_a_longer_run_begins_as_the_shorter_one():
    """Data of step s do not depend on how many steps follow."""
    for source, transform in ((Fixed(), NEAR), (Rollouts(3), None), (Rollouts(5), NEAR)):
        run = replace(SMALL, source=source, schedule=BeforeStep(every=1), transform=transform, learning_rate=0.5)
        short, long = simulate(run, [1, 2]), simulate(replace(run, steps=16, measurements=2), [1, 2])
        assert torch.equal(short.scores[:, -1], long.scores[:, 1])


@pytest.mark.parametrize("task", [BANDIT, SEQUENCES], ids=["bandit", "sequences"])
def test_the_uniforms_of_rollouts_do_not_depend_on_the_round(task):
    """A policy that does not move writes the same groups whether it is asked every step or every third."""
    run = replace(SMALL, task=task, learning_rate=1e-300, optimizer="sgd")
    written = [responses(replace(run, source=Rollouts(every)), [0, 4]) for every in (1, 3, 100)]
    assert all(torch.equal(each, written[0]) for each in written)


def test_rollouts_are_written_by_the_policy_at_the_start_of_the_round():
    """All groups of a round come from the weights at its start, and the last law kept is that policy's."""
    run = replace(SMALL, task=SEQUENCES, source=Rollouts(3), steps=8, learning_rate=0.5)
    params = []
    trace = simulate(run, [6], each_step=lambda _, now: params.append(now.clone()))
    world = trace.world
    assert torch.equal(trace.behaviour, world.law(world.table(params[6])))
    assert not torch.equal(trace.behaviour, world.law(world.table(params[7])))


# ---- fixed data -----------------------------------------------------------------------------------------------------


def test_fixed_data_have_the_frequencies_of_the_behaviour_law():
    """Over 60,000 draws no cumulative frequency is off by more than the DKW inequality allows at 1e-9."""
    for task in (Bandit(contexts=2, arms=6), Sequences(vocab=3, length=3, contexts=2)):
        source = Fixed(tilt=0.5, drift=1.0)
        run = Run(task, source=source, steps=1, groups=60_000)
        drawn = responses(run, [0])[0]
        world = task.draw([0])
        law = behaviour_law(world, source, [0])[0].exp()
        torch.testing.assert_close(law.sum(-1), torch.ones(2, dtype=torch.float64))
        for x in range(2):
            mine = drawn[x::2].flatten()
            count = torch.bincount(mine, minlength=law.shape[-1]) / len(mine)
            room = math.sqrt(math.log(2 / 1e-9) / (2 * len(mine)))
            assert float((count.cumsum(-1) - law[x].cumsum(-1)).abs().max()) <= room


def test_tilt_moves_the_quality_of_the_data():
    """The expected quality of fixed data rises with tilt for every seed: its derivative is a variance."""
    for task in (Bandit(verifiable=0.3), Sequences()):
        world = task.draw(range(8))
        means = [expected(behaviour_law(world, Fixed(tilt), range(8)), world.quality) for tilt in (-2, -0.5, 0, 0.5, 2)]
        assert all((after > before).all() for before, after in pairwise(means))


def test_without_tilt_and_drift_the_start_writes_the_data():
    """Fixed(0, 0) is the start policy's own law."""
    world = SEQUENCES.draw([0, 1])
    law = behaviour_law(world, Fixed(0.0, 0.0), [0, 1])
    torch.testing.assert_close(law, world.law(world.table(world.start)), rtol=0, atol=1e-12)


@pytest.mark.parametrize("task", [BANDIT, SEQUENCES], ids=["bandit", "sequences"])
def test_quartiles_partition_four_times_as_many_groups_by_likelihood(task):
    """The four quartiles are the groups of a run four times as long, each no less likely than the one before."""
    run = replace(SMALL, task=task, steps=6, groups=4, group_size=2)  # 24 groups: whole turns of 3 and of 2 contexts
    seeds, contexts = [0, 9], torch.arange(24) % task.contexts
    whole = responses(replace(run, steps=24, source=Fixed()), seeds)
    quarters = [responses(replace(run, source=Fixed(quartile=q)), seeds) for q in (1, 2, 3, 4)]
    world = task.draw(seeds)
    start = world.table(world.start)
    for s in range(len(seeds)):
        for x in range(task.contexts):
            groups = sorted(row for quarter in quarters for row in quarter[s][contexts == x].tolist())
            assert groups == sorted(whole[s][torch.arange(96) % task.contexts == x].tolist())
            likely = []
            for quarter in quarters:
                paths = world.cells[quarter[s][contexts == x]]
                likely.append(start[s, x][paths].mean((-2, -1)))
            assert all(a.max() <= b.min() + 1e-12 for a, b in pairwise(likely))
            assert likely[0].mean() < likely[3].mean()


# ---- bad input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: Run(steps=0), ValueError),
        (lambda: Run(steps=2.0), TypeError),
        (lambda: Run(steps=True), TypeError),
        (lambda: Run(steps="3"), TypeError),
        (lambda: Run(groups=0), ValueError),
        (lambda: Run(group_size=1), ValueError),
        (lambda: Run(measurements=0), ValueError),
        (lambda: Run(learning_rate=0.0), ValueError),
        (lambda: Run(learning_rate=-1.0), ValueError),
        (lambda: Run(learning_rate=math.nan), ValueError),
        (lambda: Run(learning_rate=math.inf), ValueError),
        (lambda: Run(learning_rate="0.1"), TypeError),
        (lambda: Run(optimizer="lion"), ValueError),
        (lambda: Run(reference_tilt=math.nan), ValueError),
        (lambda: Run(source=Rollouts(1, "sync"), schedule=BeforeStep(every=1)), ValueError),
        (lambda: Run(source=Rollouts(1, "sync"), schedule=BeforeStep(every=4)), ValueError),
        (lambda: Fixed(tilt=math.nan), ValueError),
        (lambda: Fixed(drift=-0.1), ValueError),
        (lambda: Fixed(quartile=0), ValueError),
        (lambda: Fixed(quartile=5), ValueError),
        (lambda: Fixed(quartile=2.0), TypeError),
        (lambda: Rollouts(0), ValueError),
        (lambda: Rollouts(True), TypeError),
        (lambda: Rollouts(4, "maybe"), ValueError),
        (lambda: BeforeStep(every=0), ValueError),
        (lambda: AfterStep(every=0), ValueError),
        (lambda: EachRound(round_steps=0), ValueError),
        (lambda: Dpo(0.0), ValueError),
        (lambda: Dpo(math.nan), ValueError),
        (lambda: Kto(beta=-1.0), ValueError),
        (lambda: Kto(desirable_weight=-1.0), ValueError),
        (lambda: Kto(undesirable_weight=math.inf), ValueError),
        (lambda: Grpo(clip_eps=0.0), ValueError),
        (lambda: Grpo(clip_eps=1.0), ValueError),
        (lambda: Grpo(kl_coef=-0.1), ValueError),
        (lambda: simulate(SMALL, []), ValueError),
        (lambda: simulate(SMALL, [0, 0]), ValueError),
        (lambda: simulate(SMALL, [-1]), ValueError),
        (lambda: simulate(SMALL, [0.0]), TypeError),
        (lambda: simulate(SMALL, [True]), TypeError),
        (lambda: simulate(SMALL, ["0"]), TypeError),
    ],
)
def test_settings_out_of_range_are_refused_at_once(make, error):
    """Numbers out of their range raise a ValueError and things that are no number a TypeError, where they are made."""
    with pytest.raises(error):
        make()


def test_numpy_integers_are_integers():
    """Seeds and counts may be numpy integers, and mean the same."""
    run = replace(SMALL, steps=np.int64(8), source=Rollouts(np.int32(3)))
    plain = replace(SMALL, source=Rollouts(3))
    assert run == plain
    assert torch.equal(simulate(run, np.arange(2)).params, simulate(plain, range(2)).params)


def test_kto_needs_another_group_for_its_reference_point():
    """KTO with one group a step has no mismatched pair, which is an error and not a matched pair (trap 10)."""
    with pytest.raises(ValueError, match="groups"):
        simulate(Run(objective=Kto(), groups=1, steps=1), [0])


# ---- large numbers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_a_seed_that_blows_up_is_nan_and_others_go_on(optimizer):
    """At a rate where some seeds of GRPO become nan the others stay finite, and are as they are without them."""
    run = Run(
        Bandit(),
        Grpo(),
        learning_rate=30.0 if optimizer == "adam" else 2.0,
        steps=64,
        optimizer=optimizer,
    )
    seeds = list(range(12))
    scores = simulate(run, seeds).scores
    fine = torch.isfinite(scores[:, -1])
    assert fine.any() and not fine.all()
    alone = simulate(run, [seed for seed, good in zip(seeds, fine.tolist(), strict=True) if good])
    torch.testing.assert_close(alone.scores, scores[fine], rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", ["task", "objective", "source", "schedule", "transform"])
def test_a_part_of_another_kind_is_refused_by_name(name):
    """A name in place of a type is a TypeError that says which part, when the run is described and not later."""
    with pytest.raises(TypeError, match=f"{name} must "):
        replace(SMALL, **{name: "offline"})


@pytest.mark.parametrize("schedule", [Never(), BeforeStep(every=1), AfterStep(every=4)], ids=str)
def test_rounds_of_one_step_that_begin_with_a_sync_leave_a_schedule_nothing_to_do(schedule):
    """Only EachRound, which says the same, may be combined with them."""
    with pytest.raises(ValueError, match="the schedule has no effect"):
        replace(SMALL, source=Rollouts(1, "sync"), schedule=schedule)
    replace(SMALL, source=Rollouts(1, "sync"), schedule=EachRound(round_steps=1))


def test_online_rounds_say_how_long_each_round_is():
    """`EachRound()` takes the length of the Rollouts, where it was Never without a word; fixed data have no rounds."""
    run = replace(SMALL, source=Rollouts(4), schedule=EachRound())
    assert run == replace(run, schedule=EachRound(round_steps=4))
    scores = [simulate(replace(run, schedule=one), [0]).scores for one in (EachRound(), Never())]
    assert not torch.equal(*scores)
    with pytest.raises(ValueError, match="does not say how long a round is: give round_steps, or Rollouts"):
        replace(run, source=Fixed(), schedule=EachRound())
