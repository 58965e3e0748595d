"""What is said of rounds: whether a schedule can do anything in them."""

from __future__ import annotations

import itertools

import pytest

from humanline.schedule import InRounds
from humanline.train.config import TrainConfig
from humanline.train.online.round_log import RoundLog

FACTS = {"kept_contexts": 4, "contexts": 4, "without_score": 0, "equal_scores": 0}


def said_of(reference, *lengths):
    """Return the warnings about rounds of these lengths, in which up to 99 steps are allowed."""
    config = TrainConfig.model_validate(
        {
            "model": "model",
            "output": "run",
            "objective": {"kind": "grpo"},
            "reference": reference,
            "data": {"train": "prompts.jsonl", "max_length": 8},
            "source": {"kind": "rounds", "steps": 99, "scoring": {"rewards": [{"kind": "number"}]}},
            "training": {"steps": 9999},
            "optimizer": {"lr": 1e-3},
        }
    )
    said = []
    log = RoundLog(config, None, lambda numbers: None, said.append)
    for number, length in enumerate(lengths):
        log.made(number, {"facts": FACTS, "why": ""}, length, 0.0, "")
    return [line for line in said if line.startswith("warning")]


def moves(schedule, length):
    """Return whether a reference that is copied at the schedule's events is ever another one than at the start."""
    copied, seen = 0, set()
    for step in range(length):
        seen.add(copied)
        if schedule.copies_before_update(step):
            copied = step
        if schedule.copies_after_update(step):
            copied = step + 1
    return seen != {0}


@pytest.mark.parametrize("kind", ["before_step", "after_step"])
def test_a_schedule_that_never_syncs_within_a_round_is_told(kind):
    """Where, and only where, a second model in memory would hold the round's first weights all the while."""
    for every, length in itertools.product((1, 2, 3, 8), range(2, 12)):
        reference = {"schedule": {"kind": kind, "every": every}}
        schedule = TrainConfig.model_fields["reference"].annotation.model_validate(reference).schedule
        said = said_of(reference, length)
        assert bool(said) != moves(InRounds(schedule, lambda step, end=length: (0, end)), length), (every, length)
        assert not said or f"round 0 has {length} steps" in said[0]


def test_what_is_told_of_schedules_is_told_once():
    """A last round may be cut short, and a reference that is kept, or that of each round, is as it was meant."""
    every_two = {"schedule": {"kind": "before_step", "every": 2}}
    assert len(said_of(every_two, 3, 3, 3)) == 1 and not said_of(every_two, 64, 2)
    assert not said_of(every_two | {"round_start": "keep", "storage": "model"}, 3)
    assert not said_of({"schedule": {"kind": "each_round"}}, 3)
    singles = said_of(every_two, 64, 1, 1)
    assert len(singles) == 2 and "round 1 has a single step" in singles[0]
