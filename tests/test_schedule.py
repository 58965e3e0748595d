"""Reference schedules: the closed form and the events say the same."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from humanline.schedule import AfterStep, BeforeStep, EachRound, Never

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
