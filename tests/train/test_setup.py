"""What comes before the first step: one function makes a run ready, and all that need its model load it alike."""

from __future__ import annotations

import json
import shutil
from dataclasses import FrozenInstanceError, replace
from pathlib import Path

import pytest

from humanline.train.loop import take_steps, train
from humanline.train.online.commands import sample
from humanline.train.online.overlap import Job, _Worker
from humanline.train.policy import load as model
from humanline.train.policy.errors import ModelError
from humanline.train.run.metrics import read_metrics
from humanline.train.run.result import RunResult
from humanline.train.setup import set_up
from humanline.train.step.trial import Trial
from tests.helpers.rounds import online
from tests.helpers.support import CLIP, config, same, steps, weights, without_timing


def test_a_run_is_ready_before_its_steps_are_taken(toy, tmp_path):
    """Set up and stepped in two calls, a run is what `train` makes of it; what is ready cannot be changed in place."""
    with set_up(config(toy, tmp_path / "run"), show_progress=False) as run:
        assert (tmp_path / "run" / "start.json").is_file() and run.start.updates == 0 and run.steps == 8
        with pytest.raises(FrozenInstanceError):
            run.steps = 9
        result = take_steps(run)
    assert same(weights(result), weights(train(config(toy, tmp_path / "whole"), show_progress=False)))


def test_a_trial_is_the_beginning_of_a_run_and_saves_nothing(toy, tmp_path):
    """Its metrics are the first of the whole run's, bit for bit; no checkpoint or model is written, whatever the disk.

    Each micro-batch is shown once, with its log-ratios and what the transform does to them.
    """
    changes = {"transform": CLIP, "training__micro_batch_size": 4, "optimizer__warmup_fraction": 0.5}
    changes |= {"checkpoint": {"every": 1}}
    whole = without_timing(steps(train(config(toy, tmp_path / "whole", **changes), show_progress=False)))
    seen = []

    def observe(step, batch, log_ratio, marks):
        assert log_ratio.shape == batch.block.mask.shape and not log_ratio.requires_grad
        seen.append((step, *(int(marks[name].sum()) for name in ("clipped_low", "clipped_high"))))

    given = config(toy, tmp_path / "trial", **changes)
    with set_up(given, show_progress=False, trial=Trial(3, observe)) as run:
        assert run.steps == 8 and run.batches.end == 3
        result = take_steps(run)
    assert without_timing(steps(result)) == whole[:3]
    assert [step for step, *_ in seen] == [0, 0, 1, 1, 2, 2] and sum(low + high for _, low, high in seen) > 0
    assert {path.name for path in (tmp_path / "trial").iterdir() if "lock" not in path.name} == {
        "config.json",
        "data.json",
        "levels.json",
        "metrics.jsonl",
        "run.log",
        "start.json",
    }
    in_rounds = online(toy, toy["prompts"], tmp_path / "rounds")
    with pytest.raises(ValueError, match="fixed data"), set_up(in_rounds, trial=Trial(3, observe)):
        pass
    assert not (tmp_path / "rounds").exists()


def test_a_finished_run_is_its_result(toy, tmp_path):
    """A run that is finished is not made ready again; and the folder is free again once the context ends."""
    given = config(toy, tmp_path / "run", training__steps=1)
    done = train(given, show_progress=False)
    for _ in range(2):
        with set_up(given, resume=True, show_progress=False) as again:
            assert isinstance(again, RunResult) and again == done


def test_what_rounds_told_is_written_down_also_where_they_fail(toy, tmp_path):
    """A round that is told of and then fails has its line in the metrics, before what failed is raised."""
    with set_up(config(toy, tmp_path / "run"), show_progress=False) as run:

        class Failing:
            def prepare(self, step: int) -> bool:
                run.told.append({"round": 3, "steps": 4})
                raise OSError("the disk is gone")

            def close(self) -> None:
                pass

        with pytest.raises(OSError, match="the disk is gone"):
            take_steps(replace(run, batches=Failing()))
    assert list(read_metrics(tmp_path / "run/metrics.jsonl")) == [{"kind": "sample", "round": 3, "steps": 4}]


def test_all_that_load_a_model_refuse_it_alike(toy, tmp_path):
    """Training, the command that samples and the second process name the same misfit, before they read a prompt."""
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("no row")
    given = online(toy, str(prompts), tmp_path / "run", data={"train": str(prompts), "max_length": 500})
    job = Job(given, tmp_path, 0, "policy", "cpu", 1)
    calls = [lambda: train(given), lambda: sample(given, str(tmp_path / "out.jsonl")), lambda: _Worker(job, print)]
    for call in calls:
        with pytest.raises(ModelError, match=r"data\.max_length 500 exceeds the 128 positions"):
            call()


def test_start_up_follows_the_names_of_weight_files_where_weights_are_looked_at_and_read(toy, tmp_path, monkeypatch):
    """Once before anything is loaded, once as the weights are, and not for a tokenizer or settings alone."""
    looked: list[str] = []
    true = model.refuse_files_elsewhere
    monkeypatch.setattr(model, "refuse_files_elsewhere", lambda path: (looked.append(path), true(path))[1])
    model.load_tokenizer(toy["model"])
    model.load_outline(toy["model"])
    assert not looked
    with set_up(config(toy, tmp_path / "run"), show_progress=False):
        assert looked == [toy["model"]] * 2


def test_config_json_is_looked_at_once_while_it_is_the_same(toy, tmp_path):
    """What its limits are compared with is read once for tokenizer and settings, and again when the file is another."""
    folder = Path(shutil.copytree(toy["model"], tmp_path / "model"))
    misses = model._written_settings.cache_info().misses
    model.load_tokenizer(str(folder))
    model.load_outline(str(folder))
    assert model._written_settings.cache_info().misses == misses + 1
    settings = json.loads((folder / "config.json").read_text()) | {"num_hidden_layers": 10**9}
    (folder / "config.json").write_text(json.dumps(settings))
    with pytest.raises(ModelError, match="num_hidden_layers is 1000000000"):
        model.load_tokenizer(str(folder))
