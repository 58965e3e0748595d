"""Reference schedules: the closed form and the events say the same."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from pydantic import ValidationError

from humanline.schedule import AfterStep, BeforeStep, EachRound, InRounds, Never

PERIODS = [1, 2, 3, 7]


@pytest.mark.parametrize("k", PERIODS)
def test_before_step_follows_the_design(k):
    """With BeforeStep(k) the weights just before the update of sync step t score the batches of t + 1 ... t + k."""
    schedule = BeforeStep(every=k)
    assert schedule.snapshot(0) == 0
    for sync in range(0, 10 * k, k):
        assert [schedule.snapshot(s) for s in range(sync + 1, sync + k + 1)] == [sync] * k


@pytest.mark.parametrize("k", PERIODS)
def test_after_step_follows_the_design(k):
    """With AfterStep(k) theta_{jk} scores its own batch and the k - 1 that follow."""
    for step in range(10 * k):
        assert AfterStep(every=k).snapshot(step) == step - step % k


def test_before_step_lags_one_to_k():
    """The lag of BeforeStep(k) runs from 1 to k after the first step, that of AfterStep(k) from 0 to k - 1."""
    for k in PERIODS:
        before, after = BeforeStep(every=k), AfterStep(every=k)
        assert {s - before.snapshot(s) for s in range(1, 6 * k)} == set(range(1, k + 1))
        assert {s - after.snapshot(s) for s in range(6 * k)} == set(range(k))


@pytest.mark.parametrize(
    "schedule",
    [
        Never(),
        *(BeforeStep(every=k) for k in PERIODS),
        *(AfterStep(every=k) for k in PERIODS),
        EachRound(round_steps=5),
    ],
)
def test_events_and_closed_form_agree(schedule):
    """A reference that is overwritten at the schedule's events holds theta_snapshot(s) while step s is computed."""
    held = 0
    for step in range(40):
        assert schedule.snapshot(step) == held
        if schedule.copies_before_update(step):
            held = step
        if schedule.copies_after_update(step):
            held = step + 1


@pytest.mark.parametrize("every", [0, -1, 1.5, "2"])
def test_periods_are_positive_integers(every):
    """A period that is not a positive integer is refused."""
    with pytest.raises(ValidationError):
        BeforeStep(every=every)


SCHEDULES = [Never(), *(BeforeStep(every=k) for k in PERIODS), *(AfterStep(every=k) for k in PERIODS), EachRound()]


def rounds_of(lengths):
    """What tells the bounds of a step's round, where rounds have these lengths."""
    starts = [sum(lengths[:i]) for i in range(len(lengths) + 1)]
    bounds = [pair for pair in pairwise(starts) for _ in range(*pair)]
    return lambda step: bounds[step]


def lengths_of(seed):
    rng = random.Random(seed)
    return [rng.choice([1, 1, 2, 3, 4, 8, 13]) for _ in range(12)]


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("seed", range(5))
def test_events_and_closed_form_agree_within_rounds(schedule, seed):
    """A reference overwritten at the events holds theta_snapshot(s) at every step of rounds of any lengths."""
    lengths = lengths_of(seed)
    within, held = InRounds(schedule, rounds_of(lengths)), 0
    for step in range(sum(lengths)):
        assert within.snapshot(step) == held
        if within.copies_before_update(step):
            held = step
        if within.copies_after_update(step):
            held = step + 1


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_round_begins_like_a_run(schedule):
    """Counted from the first step of its round, each step sees what the schedule says of a run that begins there."""
    lengths = lengths_of(9)
    within = InRounds(schedule, rounds_of(lengths))
    seen = [within.snapshot(step) for step in range(sum(lengths))]
    alone = [
        start + schedule.snapshot(s) for i, n in enumerate(lengths) for start in [sum(lengths[:i])] for s in range(n)
    ]
    assert seen == alone
    for i in range(len(lengths)):
        assert seen[sum(lengths[:i])] == sum(lengths[:i])  # the first step of a round sees its own weights


def test_each_round_is_held_for_the_whole_round():
    """EachRound, and Never begun anew, score a whole round with the weights at its start (Algorithm 1, line 3)."""
    lengths = [4, 1, 6]
    for schedule in (EachRound(), Never(), AfterStep(every=100), BeforeStep(every=100)):
        within = InRounds(schedule, rounds_of(lengths))
        assert [within.snapshot(step) for step in range(11)] == [0] * 4 + [4] + [5] * 6


def test_a_period_begins_anew_in_each_round():
    """With k = 2 in rounds of 5 steps the lag of a round does not depend on how many steps went before."""
    within = InRounds(BeforeStep(every=2), rounds_of([5, 5]))
    assert [within.snapshot(step) for step in range(10)] == [0, 0, 0, 2, 2, 5, 5, 5, 7, 7]
    within = InRounds(AfterStep(every=2), rounds_of([5, 5]))
    assert [within.snapshot(step) for step in range(10)] == [0, 0, 2, 2, 4, 5, 5, 7, 7, 9]
