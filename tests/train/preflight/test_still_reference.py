"""A run that ends before its reference is synced says so: it is offline by another name."""

from __future__ import annotations

import pytest

from humanline.cli import main
from humanline.system.stop import StopRequested
from humanline.train.data.run_data import left_of_a_pass
from humanline.train.loop import train
from humanline.train.preflight.still_reference import still_reference
from humanline.train.preflight.validate import validate
from tests.helpers.cases import StopAt
from tests.helpers.rounds import online
from tests.helpers.support import CLIP, SCHEDULES, config

SAID = "does not sync before the run's"
SET = "{kind: before_step, every: 3}"


def used(schedule, steps: int) -> set[int]:
    """The snapshots that a reference model in memory would have been at the steps, from its copies alone."""
    now, found = 0, set()
    for step in range(steps):
        found.add(now)
        now = step if schedule.copies_before_update(step) else now
        now = step + 1 if schedule.copies_after_update(step) else now
    return found


@pytest.mark.parametrize("name", [name for name in SCHEDULES if name != "never"])
def test_it_is_said_exactly_where_no_step_sees_another_reference(toy, tmp_path, name):
    """For every length of run, by what a reference model in memory would do."""
    given = config(toy, tmp_path, "dpo", transform=CLIP, reference={"schedule": SCHEDULES[name]})
    for steps in range(1, 12):
        assert bool(still_reference(given, steps)) is (used(given.reference.schedule, steps) == {0}), steps


def test_nothing_is_said_of_a_schedule_that_promises_no_sync(toy, tmp_path):
    """Offline runs, objectives without a reference, and runs whose length is not known yet."""
    assert still_reference(config(toy, tmp_path, "dpo"), 3) == []
    assert still_reference(config(toy, tmp_path, {"kind": "nll"}), 3) == []
    late = config(toy, tmp_path, "dpo", reference={"schedule": {"kind": "before_step", "every": 9}})
    assert still_reference(late, 0) == []


def test_rounds_say_it_of_a_reference_that_outlives_them_alone(toy, tmp_path):
    """Where a round syncs the reference or is its unit, the run as a whole has no single start to go by."""

    def rounds_of(reference):
        return online(toy, toy["prompts"], tmp_path, reference=reference)

    late = {"kind": "before_step", "every": 9}
    kept = {"schedule": late, "round_start": "keep", "storage": "model"}
    assert SAID in still_reference(rounds_of(kept), 8)[0]
    assert still_reference(rounds_of(kept), 11) == []
    assert still_reference(rounds_of({"schedule": late}), 8) == []
    assert still_reference(rounds_of({"schedule": {"kind": "each_round"}}), 8) == []


def test_validate_and_train_say_it(toy, tmp_path, capsys):
    """Both, before the first step; with one step more neither does."""
    for steps, said in ((4, True), (5, False)):
        reference = {"schedule": {"kind": "before_step", "every": 3}}
        training = {"steps": steps, "batch_size": 2}
        given = config(toy, tmp_path / str(steps), "dpo", transform=CLIP, reference=reference, training=training)
        remarks = [one for one in validate(given).remarks if SAID in one]
        assert [one.split(" does not")[0] for one in remarks] == [f"reference.schedule: {SET}"] * said
        capsys.readouterr()
        recipe = tmp_path / f"{steps}.yaml"
        recipe.write_text(given.model_dump_json())
        assert main(["train", str(recipe)]) == 0
        assert (SAID in "".join(capsys.readouterr())) is said


def test_epochs_of_rounds_that_leave_many_prompts_out_are_said(toy, tmp_path, capsys):
    """Of 48 prompts a pass of rounds of 32 leaves 16 out, which both commands say; rounds of 16 or 47 few or none."""

    def epochs_of(contexts, epochs=3.0, **length):
        rounds = {"contexts_per_round": contexts, "samples": 2, "steps": 2}
        training = length or {"epochs": epochs}
        whole = {"rounds": rounds, "training": training | {"batch_size": 8}}
        return online(toy, toy["prompts"], tmp_path / "run", scoring={"rewards": [{"kind": "tag_count"}]}, **whole)

    many = "training.epochs: 3 makes 3 round(s): a pass has 1 whole one(s), of 32 prompts"
    (said,) = left_of_a_pass(epochs_of(32), 48)
    assert said.startswith(many) and "leaves out 16 of 48" in said
    assert left_of_a_pass(epochs_of(16), 48) == left_of_a_pass(epochs_of(47), 48) == []
    assert left_of_a_pass(epochs_of(32, steps=4), 48) == []
    assert left_of_a_pass(config(toy, tmp_path, "dpo", training={"epochs": 1.5, "batch_size": 8}), 0) == []
    assert said in validate(epochs_of(32)).remarks
    with pytest.raises(StopRequested):
        train(epochs_of(32), stop=StopAt(0))
    assert said in capsys.readouterr().err
