"""Learning rates: what a step's is, held against transformers' schedules, and that runs from before stay the same."""

from __future__ import annotations

import pytest
import torch
from transformers import get_cosine_schedule_with_warmup, get_linear_schedule_with_warmup

from humanline.train.config.run import OptimizerConfig
from humanline.train.policy.optimizer import lr_of_step
from humanline.train.run.fingerprint import same_settings
from tests.helpers.support import config, run, steps

THEIRS = {"linear": get_linear_schedule_with_warmup, "cosine": get_cosine_schedule_with_warmup}


@pytest.mark.parametrize("warm", [0.0, 0.1, 0.25])
@pytest.mark.parametrize("length", [1, 7, 40])
@pytest.mark.parametrize("kind", THEIRS)
def test_after_warm_up_rates_are_those_of_transformers(kind, length, warm):
    """From the end of the warm-up on a falling rate is that of transformers; before it rises evenly from above 0."""
    ours = OptimizerConfig(lr=3e-4, schedule=kind, warmup_fraction=warm)
    rise = round(warm * length)
    theirs = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=3e-4)
    schedule = THEIRS[kind](theirs, rise, length)
    for step in range(length):
        if step >= rise:
            assert lr_of_step(ours, step, length) == pytest.approx(schedule.get_last_lr()[0], rel=1e-12)
        else:
            assert lr_of_step(ours, step, length) == pytest.approx(3e-4 * (step + 1) / (rise + 1), rel=1e-12)
        theirs.step()
        schedule.step()


def test_the_constant_rate_is_to_the_bit_what_it_was():
    """Without a schedule the rate is the expression that earlier versions had."""
    for length in (1, 9, 1000):
        for warm in (0.0, 0.1, 0.3):
            given = OptimizerConfig(lr=5e-6, warmup_fraction=warm)
            for step in range(length):
                assert lr_of_step(given, step, length) == 5e-6 * min(1.0, (step + 1) / (round(warm * length) + 1))


def test_a_run_takes_the_rates_and_runs_from_before_go_on(toy, tmp_path):
    """The rates of a run are written down with its steps; the default is no setting that an earlier run would lack."""
    made = {"training__steps": 4, "optimizer__lr": 1e-3, "optimizer__schedule": "linear"}
    assert [row["lr"] for row in steps(run(toy, tmp_path / "run", **made))] == pytest.approx(
        [1e-3, 7.5e-4, 5e-4, 2.5e-4]
    )
    settings = same_settings(config(toy, tmp_path / "run").model_dump(mode="json"))
    assert "optimizer.schedule" not in settings
    assert (
        same_settings(config(toy, tmp_path / "run", **made).model_dump(mode="json"))["optimizer.schedule"] == "linear"
    )
